package pubsub

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/require"
)

// A waiter that comes after this process's unlock, alone, lets listeners out of line ask first, unless it has little time. If none of them
// came, the next does so a while later.
func TestYield(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newManualHub(t)
		d.hub.Aside = moment - time.Millisecond
		const long = 2*(moment-time.Millisecond) + time.Millisecond
		q := d.q()
		comes := func(want time.Duration) *Waiter {
			t.Helper()
			w := &Waiter{}
			began := time.Now()
			if !d.hub.Join(w, q) {
				<-w.turn
			}
			require.Equal(t, want, time.Since(began))
			return w
		}
		d.hub.Yield(q)
		for _, hasty := range []*Waiter{{Until: time.Now().Add(long)}, {Hurry: time.Now().Add(long).UnixMilli()}} {
			require.True(t, d.hub.Join(hasty, q))
			hasty.Done(-1)
		}
		gave := time.Now()
		comes(long).Done(-1)
		d.hub.Yield(q)
		comes(0).Done(-1)
		w := comes(0)
		w.Saw(0, "a") // they have come, but not in a courtesy
		w.Held(time.Hour, false)
		require.Equal(t, Left, w.Leave())
		d.hub.Yield(q)
		comes(0).Done(-1)
		time.Sleep(time.Until(gave.Add(again)))
		d.hub.Yield(q)
		w = comes(long)
		w.Saw(0, "a")
		w.Held(time.Hour, false)
		d.obey()
		<-w.turn
		w.Done(-1)
		d.hub.Yield(q)
		w = &Waiter{}
		require.False(t, d.hub.Join(w, q))
		d.hub.message(d.ch, "0") // one has come and gone
		<-w.turn
		w.Done(-1)
		d.lapse()
		d.obey()
		d.hub.Yield(q)
		w = &Waiter{}
		require.False(t, d.hub.Join(w, q))
		second := &Waiter{}
		require.False(t, d.hub.Join(second, q))
		require.Equal(t, Left, w.Leave())
		<-second.turn // in its place
		second.Done(-1)
		d.empties()
		for n := range 1000 { // what is over is forgotten
			d.hub.Yield(Queue{Lock: strconv.Itoa(n)})
			time.Sleep(again)
		}
		require.LessOrEqual(t, len(d.hub.yields.of), 64)
	})
}

// A waiter that has let others ask first costs nothing more than that: its attempt counts, and keeps no subscription.
func TestYieldWithASubscription(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newManualHub(t)
		d.hub.Aside = moment - time.Millisecond
		next := func() *Waiter {
			w := &Waiter{}
			clear(d.hub.yields.of) // the last is long ago
			d.hub.Yield(d.q())
			require.False(t, d.hub.Join(w, d.q()))
			<-w.turn
			return w
		}
		d.line(1)[0].Done(-1)
		w := next()
		w.Held(-1, false)
		require.Empty(t, w.turn, "the attempt came when the subscription was live")
		w.Leave()
		require.Equal(t, noOp, d.take())

		time.Sleep(linger / 2)
		next().Done(-1)
		time.Sleep(linger / 2)
		synctest.Wait()
		d.unsubscribes()
	})
}
