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
