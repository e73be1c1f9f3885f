package pubsub

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/require"
)

const patience = time.Minute

// impatient returns a queue of n waiters that wait for one minute.
func (d *manualHub) impatient(n int) (ws []*Waiter) {
	d.t.Helper()
	for range n {
		w := &Waiter{Until: time.Now().Add(patience)}
		d.hub.Join(w, queue(d.ch))
		ws = append(ws, w)
	}
	ws[0].Held(-1, false)
	d.obey()
	d.turn(ws, 0)
	ws[0].Held(-1, false)
	return ws
}

func requireExpired(t *testing.T, ws ...*Waiter) {
	t.Helper()
	for _, w := range ws {
		require.Len(t, w.turn, 1, "no signal")
		granted, err := w.News()
		require.False(t, granted)
		require.ErrorIs(t, err, ErrExpired)
	}
}

// Each waiter is signalled when its time ends, no earlier. No waiter asks Redis because of it.
func TestWaitersExpire(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newManualHub(t)
		ws := d.impatient(3)
		forever := d.joins(&Waiter{}, false)
		time.Sleep(patience - 1)
		synctest.Wait()
		d.turn(ws, -1)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		requireExpired(t, ws...)
		for _, w := range ws {
			require.Equal(t, Left, w.Leave())
		}
		require.Empty(t, forever.turn, "no news for a waiter that stays")
		d.hub.conns.message(d.ch, "0")
		require.Len(t, forever.turn, 1)
		forever.Leave()
		d.empties()
	})
}

// The timer stops when a waiter leaves, and the waiter can be reused.
func TestNothingExpiresAfterLeaving(t *testing.T) {
	bubbles(t, map[string]func(d *manualHub, w *Waiter){
		"left":    func(_ *manualHub, w *Waiter) { w.Leave() },
		"done":    func(d *manualHub, w *Waiter) { d.hub.conns.message(d.ch, "0"); w.Done(-1) },
		"granted": func(d *manualHub, w *Waiter) { require.Same(d.t, w, claimOf(d.hub, queue(d.ch))); w.Grant(-1) },
	}, func(t *testing.T, leave func(d *manualHub, w *Waiter)) {
		d := newManualHub(t)
		w := d.impatient(1)[0]
		e := w.expiry
		leave(d, w)
		*w = Waiter{}
		require.False(t, e.timer.Stop(), "it runs on")
		e.fire() // was on its way
		require.Equal(t, Waiter{}, *w)
	})
}

// A claimed waiter whose time ends does not wait for the claim's outcome. If the grant came before it left, it has the lock.
func TestClaimedExpires(t *testing.T) {
	t.Parallel()
	claimed := func(t *testing.T) *Waiter {
		d := newManualHub(t)
		w := d.impatient(1)[0]
		require.Same(t, w, claimOf(d.hub, queue(d.ch)))
		time.Sleep(patience)
		synctest.Wait()
		requireExpired(t, w)
		return w
	}
	bubble.Test(t, func(t *testing.T) {
		w := claimed(t)
		require.Equal(t, Claimed, w.Leave())
		require.False(t, w.Grant(-1))
		require.Equal(t, Left, w.Leave())
	})
	bubble.Test(t, func(t *testing.T) {
		w := claimed(t)
		require.True(t, w.Grant(-1))
		requireGranted(t, w)
	})
}
