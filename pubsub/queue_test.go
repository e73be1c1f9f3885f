package pubsub

import (
	"errors"
	"io"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// line makes a queue of n waiters behind a live subscription. No waiter has the turn.
func (d *manualHub) line(n int) []*Waiter {
	d.t.Helper()
	ws := []*Waiter{{}}
	require.True(d.t, d.hub.Join(ws[0], queue(d.ch)))
	for range n - 1 {
		w := &Waiter{}
		require.False(d.t, d.hub.Join(w, queue(d.ch)))
		ws = append(ws, w)
	}
	ws[0].Held(-1, false)
	d.obey()
	d.turn(ws, 0)
	ws[0].Held(-1, false)
	d.turn(ws, -1)
	return ws
}

// turn checks that only the i-th waiter got a turn, or none if i is -1.
func (d *manualHub) turn(ws []*Waiter, i int) {
	d.t.Helper()
	for j, w := range ws {
		select {
		case <-w.turn:
			require.Equal(d.t, i, j, "got the turn")
			require.NoError(d.t, refusal(w))
			i = -1
		default:
		}
	}
	require.Equal(d.t, -1, i, "did not get the turn")
}

func TestTimer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newManualHub(t)
		ws := d.line(2)
		next := func(want time.Duration) {
			t.Helper()
			began := time.Now()
			<-ws[0].turn
			require.Equal(t, want, time.Since(began))
		}
		never := func() {
			t.Helper()
			time.Sleep(1000 * time.Hour)
			synctest.Wait()
			d.turn(ws, -1)
		}
		d.hub.conns.message(d.ch, "0")
		<-ws[0].turn
		ws[0].Held(5*time.Second, false)
		next(5*time.Second + time.Millisecond)
		ws[0].Held(0, false)
		next(time.Millisecond)
		ws[0].Held(time.Second, false)
		next(time.Second + time.Millisecond)
		ws[0].Held(-1, false)
		next(time.Minute + time.Millisecond)
		ws[0].Held(time.Minute, false)
		d.hub.conns.message(d.ch, "0")
		<-ws[0].turn
		ws[0].Held(-time.Millisecond, false) // now without expiry
		next(time.Minute + time.Millisecond)
		ws[0].Done(time.Minute) // got it: those behind wait as long as it lives
		ws = ws[1:]
		next(time.Minute + time.Millisecond)
		ws[0].Held(math.MaxInt64, false)
		never()
		d.hub.conns.message(d.ch, "0")
		<-ws[0].turn
		ws[0].Held(time.Minute, false)
		ws[0].Leave()
		d.empties()
		time.Sleep(time.Hour)
		synctest.Wait()
	})
}

func TestAfterClose(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.line(2)
	topic := d.topic()
	d.hub.conns.message(d.ch, "0")
	d.turn(ws, 0)
	ws[0].Held(time.Hour, false)
	d.hub.Close()
	d.hub.Close()
	d.hub.conns.message(d.ch, "1")
	topic.expired()
	d.confirm("subscribe")
	requireClosed(t, ws...)
	late := &Waiter{}
	require.True(t, d.hub.Join(late, queue(plain("new"))))
	late.Held(0, false)
	requireClosed(t, late)
	require.Nil(t, d.hub.topics[queue(plain("new"))].timer, "no timer starts")
	leave(late, ws[1], ws[0])
}

// News of an earlier connection, or of other channels, changes nothing.
func TestNewsOfOthers(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.line(1)
	old := d.link.epoch
	d.link.down(errors.New("broken"), false)
	require.Equal(t, subscribing, d.take(), "asked for again")
	d.link.epoch++
	d.link.onSubscription(old, rueidis.PubSubSubscription{Kind: "subscribe", Channel: "c"})
	require.False(t, d.topic().sub.reach().confirmed, "a connection that is gone says nothing")
	d.confirm("subscribe")
	d.turn(ws, 0)
	d.link.onSubscription(d.link.epoch, rueidis.PubSubSubscription{Kind: "subscribe", Channel: "unknown"})
	ws[0].Held(-1, false)
	d.hub.conns.message(Channel{Name: "c", Sharded: true}, "1")
	d.hub.conns.message(plain("other"), "1")
	d.turn(ws, -1)
}

// A waiter that persists stays in line when others are told of an attempt without an answer. If the one with the turn stays, too, those
// that came since its last attempt are told of the next one.
func TestPersistentWaitersStay(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	w, stays, leaves := &Waiter{Persists: true}, &Waiter{Persists: true}, &Waiter{}
	require.True(t, d.hub.Join(w, queue(d.ch)))
	require.False(t, d.hub.Join(stays, queue(d.ch)))
	require.False(t, d.hub.Join(leaves, queue(d.ch)))
	w.Unanswered(io.ErrUnexpectedEOF)
	require.Empty(t, leaves.turn, "it came when the attempt was under way")
	w.Unanswered(io.ErrUnexpectedEOF)
	require.Len(t, leaves.turn, 1, "it waited when the next one began")
	require.ErrorIs(t, refusal(leaves), io.ErrUnexpectedEOF)
	require.Empty(t, stays.turn)
	leave(leaves, w)
	d.turn([]*Waiter{stays}, 0)
	leave(stays)
	d.empties()
}
