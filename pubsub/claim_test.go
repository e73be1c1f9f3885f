package pubsub

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// claimed returns a queue of n waiters with the first claimed.
func (d *manualHub) claimed(n int) []*Waiter {
	d.t.Helper()
	ws := d.line(n)
	require.Same(d.t, ws[0], claimOf(d.hub, queue(d.ch)))
	d.turn(ws, -1)
	return ws
}

// claimOf is Hub.Claim without its second result.
func claimOf(h *Hub, q Queue) *Waiter {
	w, _ := h.Claim(q)
	return w
}

func requireGranted(t *testing.T, w *Waiter) {
	t.Helper()
	require.Len(t, w.turn, 1, "no signal")
	granted, err := w.News()
	require.True(t, granted)
	require.NoError(t, err)
	require.Equal(t, Granted, w.Leave(), "too late to leave")
}

func TestTimerAfterAGrant(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newManualHub(t)
		ws := d.claimed(3)
		require.True(t, ws[0].Grant(time.Minute))
		<-ws[0].turn
		began := time.Now()
		<-ws[1].turn
		require.Equal(t, time.Minute+time.Millisecond, time.Since(began), "the lease of the granted waiter")
		ws[1].Held(time.Minute, false)
		require.Same(t, ws[1], claimOf(d.hub, queue(d.ch)))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		d.turn(ws, -1)
		require.True(t, ws[1].Grant(time.Hour))
		<-ws[1].turn
		began = time.Now()
		<-ws[2].turn
		require.Equal(t, time.Hour+time.Millisecond, time.Since(began), "no longer that of the holder before")
		ws[2].Leave()
		d.empties()
	})
}

// A claim reports whether listeners outside the queue recently got an unlock message.
func TestClaimBesideOutsiders(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newManualHub(t)
		_, outsiders := d.hub.Claim(d.q())
		require.False(t, outsiders, "no queue")
		ws := d.line(1)
		claims := func(want bool) {
			t.Helper()
			w, outsiders := d.hub.Claim(d.q())
			require.Same(t, ws[0], w)
			require.Equal(t, want, outsiders)
			require.True(t, w.Queued(time.Hour))
		}
		d.hub.conns.message(d.ch, "0")
		d.turn(ws, 0)
		ws[0].Held(time.Hour, false)
		claims(false)
		d.hub.conns.message(d.ch, "00")
		d.turn(ws, 0)
		_, outsiders = d.hub.Claim(d.q())
		require.True(t, outsiders, "no waiter is claimed")
		ws[0].Held(time.Hour, false)
		time.Sleep(outsidersStay - time.Millisecond)
		claims(true)
		time.Sleep(time.Millisecond)
		claims(false)
		ws[0].Leave()
		d.obey()
		d.hub.Close()
	})
}
