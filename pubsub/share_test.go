package pubsub

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// newShares returns a manualHub for a lock that can be shared.
func newShares(t *testing.T) *manualHub {
	t.Helper()
	d := newManualHub(t)
	d.shares = true
	return d
}

// joins makes a waiter join, and checks whether it asks at once.
func (d *manualHub) joins(w *Waiter, atOnce bool) *Waiter {
	d.t.Helper()
	require.Equal(d.t, atOnce, d.hub.Join(w, d.q()))
	return w
}

// asks requires a signal to ask, and takes it.
func (d *manualHub) asks(w *Waiter) {
	d.t.Helper()
	require.Len(d.t, w.turn, 1)
	<-w.turn
	granted, err := w.News()
	require.NoError(d.t, err)
	require.False(d.t, granted)
}

func (d *manualHub) asleep(ws ...*Waiter) {
	d.t.Helper()
	for _, w := range ws {
		require.Empty(d.t, w.turn)
	}
}

// Waiters for a share ask in parallel while none waits. When the first of a queue gets a share, those directly behind it ask too. The next
// waiter behind them wants the whole lock, and asks in its turn.
func TestShares(t *testing.T) {
	t.Parallel()
	d := newShares(t)
	a, b := d.joins(&Waiter{Shared: true}, true), d.joins(&Waiter{Shared: true}, true)
	a.Done(-1)
	b.Done(-1)
	require.True(t, d.hub.isEmpty())

	a, b = d.joins(&Waiter{Shared: true}, true), d.joins(&Waiter{Shared: true}, true)
	a.Held(-1, false)
	b.Held(-1, false)
	c := d.joins(&Waiter{Shared: true}, false)
	w := d.joins(&Waiter{}, false)
	e := d.joins(&Waiter{Shared: true}, false)
	d.obey() // subscribed: the first asks again
	d.asks(a)
	d.asleep(b, c, w, e)
	a.Held(-1, false)
	d.hub.conns.message(d.ch, "00")
	d.asleep(a, b, c, w, e)
	d.hub.conns.message(d.ch, "1")
	d.asks(a)
	d.asleep(b, c, w, e)
	require.False(t, a.Follows())
	a.Done(-1)
	d.asks(b)
	d.asks(c)
	d.asks(w)
	d.asleep(e)
	require.True(t, b.Follows())
	b.Done(-1)
	w.Held(-1, false)
	c.Held(-1, false) // refused: it is the last now
	d.asleep(w, e, c)
	d.hub.conns.message(d.ch, "0")
	d.asks(w)
	w.Leave()
	d.asks(e)
	e.Done(-1)
	d.asks(c)
	c.Done(-1)
	d.obey()
	d.lapse()
	d.empties()
}

// A refused attempt beside the queue counts, unless news came since it began.
func TestRefusedBesideTheQueue(t *testing.T) {
	t.Parallel()
	for _, news := range []bool{false, true} {
		d := newShares(t)
		w := d.joins(&Waiter{}, true)
		w.Held(-1, false)
		d.obey()
		d.asks(w)
		w.Done(-1) // the subscription lingers
		d.hub.Ending(d.q())
		r := d.joins(&Waiter{Shared: true}, true)
		if news {
			d.hub.conns.message(d.ch, "1")
		}
		r.Held(-1, false)
		if news {
			d.asks(r)
		} else {
			d.asleep(r)
		}
		r.Leave()
	}
}

// A message to all with a time makes the first waiter look at that time, if it would sleep longer. It announces no unlock, and has no
// effect without waiters.
func TestToldToLookEarlier(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newShares(t)
		a := d.joins(&Waiter{}, true)
		a.Held(time.Hour, false)
		b := d.joins(&Waiter{Shared: true}, false)
		d.obey()
		d.asks(a)
		began := time.Now()
		d.hub.conns.message(d.ch, "3000") // before the answer to that question, which may be older
		a.Held(30*time.Second, false)
		d.hub.conns.message(d.ch, "5000")
		d.asleep(a, b)
		<-a.turn
		require.Equal(t, 3*time.Second, time.Since(began).Truncate(time.Second))
		d.asleep(b)
		a.Held(time.Second, false)
		d.hub.conns.message(d.ch, "5000")
		<-a.turn
		require.Equal(t, 4*time.Second, time.Since(began).Truncate(time.Second), "never later")
		leave(b, a)
		d.hub.conns.message(d.ch, "2")
		time.Sleep(time.Second)
		d.empties()
	})
}
