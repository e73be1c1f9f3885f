package pubsub

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// A waiter does not ask for a lock held by this process, because the end of the hold wakes it.
func TestLocalHoldIsNotAskedFor(t *testing.T) {
	const ttl = 300 * time.Millisecond // less than subscriptions linger
	bubbles(t, map[string]func(d *manualHub, w *Waiter){
		"a message":             func(d *manualHub, _ *Waiter) { d.hub.conns.message(d.ch, "0") },
		"lost":                  func(d *manualHub, _ *Waiter) { d.hub.Wake(queue(d.ch)) },
		"a new subscription":    func(d *manualHub, _ *Waiter) { d.link.down(io.EOF, false); d.obey() },
		"claimed, and in doubt": func(d *manualHub, w *Waiter) { claimOf(d.hub, queue(d.ch)); w.Unclaim() },
		"the lease ends":        func(*manualHub, *Waiter) { time.Sleep(ttl + time.Millisecond); synctest.Wait() },
	}, func(t *testing.T, end func(d *manualHub, w *Waiter)) {
		d := newManualHub(t)
		d.holds(ttl)
		w := d.joins(&Waiter{}, false)
		require.Empty(t, w.turn)
		require.Equal(t, noOp, d.take(), "the subscription is live")
		end(d, w)
		require.Len(t, w.turn, 1)
		<-w.turn
		w.Held(time.Hour, false)
		require.Empty(t, w.turn)
		w.Leave()
		require.True(t, d.hub.Join(&Waiter{}, queue(d.ch)), "not known to be held any more")
	})
	t.Run("handed on", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			d := newManualHub(t)
			d.holds(time.Hour)
			for range 5 {
				w := d.joins(&Waiter{}, false)
				require.Same(t, w, claimOf(d.hub, queue(d.ch)))
				require.True(t, w.Grant(time.Hour))
				<-w.turn
				granted, err := w.News()
				require.NoError(t, err)
				require.True(t, granted)
			}
			require.Equal(t, noOp, d.take())
		})
	})
}

// holds makes a waiter get the lock for ttl, by an attempt begun on a live subscription.
func (d *manualHub) holds(ttl time.Duration) {
	d.t.Helper()
	w := d.line(1)[0]
	d.hub.conns.message(d.ch, "0")
	<-w.turn
	w.Done(ttl)
}

// A local hold is forgotten together with the subscription that could have announced its end.
func TestLocalHoldIsForgotten(t *testing.T) {
	bubbles(t, map[string]func(d *manualHub){
		"a message":    func(d *manualHub) { d.hub.conns.message(d.ch, "0") },
		"lost":         func(d *manualHub) { d.hub.Wake(queue(d.ch)) },
		"about to end": func(d *manualHub) { d.hub.Ending(queue(d.ch)) },
		"held by another": func(d *manualHub) {
			w := &Waiter{}
			d.hub.JoinFirst(w, queue(d.ch))
			w.Held(time.Hour, false)
			w.Leave()
		},
		"nobody to claim":       func(d *manualHub) { require.Nil(t, claimOf(d.hub, queue(d.ch))) },
		"the lease ends":        func(*manualHub) { time.Sleep(linger / 2) },
		"the connection breaks": func(d *manualHub) { d.link.down(io.EOF, false) },
		"subscribed again":      func(d *manualHub) { d.link.down(io.EOF, false); d.line(1)[0].Leave() },
		"about to unsubscribe":  func(d *manualHub) { d.lapse(); require.Equal(t, unsubscribing, d.take()) },
	}, func(t *testing.T, forget func(d *manualHub)) {
		d := newManualHub(t)
		d.holds(linger / 2)
		forget(d)
		require.True(t, d.hub.Join(&Waiter{}, queue(d.ch)))
	})
	t.Run("the attempt began before the subscription", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			d := newManualHub(t)
			w, x := &Waiter{}, &Waiter{}
			require.True(t, d.hub.Join(w, queue(d.ch)))
			w.Held(-1, false)
			require.Same(t, w, claimOf(d.hub, queue(d.ch)))
			d.obey()
			require.True(t, w.Grant(time.Hour))
			require.True(t, d.hub.Join(x, queue(d.ch)))
		})
	})
	for name, news := range map[string]func(d *manualHub){
		"a message":      func(d *manualHub) { d.hub.conns.message(d.ch, "0") },
		"to all":         func(d *manualHub) { d.hub.conns.message(d.ch, "1") },
		"somebody knows": func(d *manualHub) { d.hub.Wake(queue(d.ch)) },
	} {
		t.Run(name+", before the answer to the attempt", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				d := newManualHub(t)
				w := d.line(1)[0]
				d.hub.conns.message(d.ch, "0")
				<-w.turn
				news(d) // it may be about the same hold as the reply
				w.Done(time.Hour)
				require.True(t, d.hub.Join(&Waiter{}, queue(d.ch)))
			})
		})
	}
	t.Run("another lock's", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			d := newManualHub(t)
			ch, stays := d.ch, d.line(1)[0]
			d.ch = Channel{Name: "another"}
			d.holds(time.Hour)
			d.obey()

			same := Queue{Lock: "same channel", Channel: ch}
			w, x := &Waiter{}, &Waiter{}
			require.True(t, d.hub.Join(w, same))
			require.False(t, d.hub.Join(x, same))
			w.Done(time.Hour)
			x.Leave()
			require.True(t, d.hub.Join(&Waiter{}, same))
			stays.Leave()
		})
	})
	t.Run("one attempt", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			d := newManualHub(t)
			d.holds(time.Hour)
			require.True(t, d.hub.JoinFirst(&Waiter{}, queue(d.ch)), "a caller that does not wait asks")
		})
	})
}
