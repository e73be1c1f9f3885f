package pubsub

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// newWriter returns a hub whose waiter for a lock without a queue in Redis listens, and was refused.
func newWriter(t *testing.T) (*manualHub, *Waiter) {
	t.Helper()
	d := newManualHub(t)
	d.hub.Aside = moment - time.Millisecond
	d.shares = true
	w := d.writer()
	d.obey()
	asksIn(t, w, 0)
	return d, w
}

// writer returns a waiter that was refused.
func (d *manualHub) writer() *Waiter {
	w := &Waiter{}
	require.True(d.t, d.hub.Join(w, d.q()))
	w.Held(time.Hour, false)
	return w
}

// ours is an unlock by this library where there is no queue in Redis.
func (d *manualHub) ours() {
	d.hub.conns.message(d.ch, "00")
	d.hub.conns.message(d.ch, "1")
}

// own is one by this process.
func (d *manualHub) own() {
	d.t.Helper()
	require.True(d.t, d.hub.EndingForAll(d.q(), 0))
	d.ours()
}

// outsiders is one by another library.
func (d *manualHub) outsiders() { d.hub.conns.message(d.ch, "1") }

// refusedIn checks that the waiter asks after d, and refuses it: the client holder has the lock, if any.
func refusedIn(t *testing.T, w *Waiter, want time.Duration, holder string) {
	t.Helper()
	began := time.Now()
	<-w.turn
	require.Equal(t, want, time.Since(began))
	if holder != "" {
		w.Saw(0, holder)
	}
	w.Held(time.Hour, false)
}

// Where there is no queue in Redis, a process lets each of those that have had the lock lately have a turn before its next.
func TestRivalsFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, w := newWriter(t)
		d.ours()
		refusedIn(t, w, moment, "a") // no outsider came, so none is waited for in the next 250 ms
		d.ours()
		refusedIn(t, w, 0, "b")
		d.ours()
		refusedIn(t, w, 0, "")
		d.own()
		refusedIn(t, w, 2*step+time.Millisecond, "a")
		d.ours()
		refusedIn(t, w, step+time.Millisecond, "b")
		d.ours()
		refusedIn(t, w, 0, "")

		time.Sleep(lately + time.Nanosecond)
		d.own()
		refusedIn(t, w, moment+2*step, "a")
		d.ours() // b has gone
		refusedIn(t, w, 0, "")
		d.own()
		refusedIn(t, w, step+time.Millisecond, "")
		w.Leave()
		d.obey()
	})
}

// Where there is no queue in Redis, turns of this library's and of outsiders alternate.
func TestOutsidersAndRivals(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, w := newWriter(t)
		d.outsiders()
		refusedIn(t, w, 0, "")
		for range 2 {
			d.ours()
			refusedIn(t, w, moment, "outsider")
			d.outsiders()
			refusedIn(t, w, 0, "a")
		}
		d.ours()
		refusedIn(t, w, moment, "b")
		for range 2 {
			d.hub.conns.message(d.ch, "01") // nobody has unlocked
			refusedIn(t, w, 0, "b")
		}
		d.ours()
		refusedIn(t, w, moment, "")
		d.own()
		time.Sleep(moment / 2)
		d.ours() // before it asks, one has come and gone
		refusedIn(t, w, moment+step, "")
		d.own()
		refusedIn(t, w, moment+2*step, "") // those are a and b
		d.hub.conns.message(d.ch, "00")    // no unlock either
		d.hub.conns.message(d.ch, "3000")
		for _, want := range []time.Duration{2 * step, 2 * step, step} { // their second turn in a row was instead of a's
			d.outsiders()
			refusedIn(t, w, want+time.Millisecond, "")
		}
		for _, want := range []time.Duration{0, 0, moment} { // they had three turns more
			d.ours()
			refusedIn(t, w, want, "")
		}
		w.Leave()
		d.obey()
	})
}

// A process that has had its turn lets the others go first, and forgets those that do not come: it waits for them once.
func TestAbsentRivalsAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, w := newWriter(t)
		d.ours()
		refusedIn(t, w, moment, "a")
		d.ours()
		refusedIn(t, w, 0, "b")
		d.ours()
		refusedIn(t, w, 0, "")
		comes := func(want time.Duration) {
			t.Helper()
			d.own()
			began := time.Now()
			<-w.turn
			require.Equal(t, want, time.Since(began))
		}
		in := func() {
			w.Done(time.Hour)
			d.hub.Ending(d.q())
			w = d.writer()
		}
		comes(2*step + time.Millisecond)
		d.ours() // one has come, and gone
		w.Held(time.Hour, false)
		<-w.turn
		in()
		d.own()
		refusedIn(t, w, 2*step+time.Millisecond, "b") // it has come
		d.ours()
		<-w.turn
		in() // a is late, and stays away
		require.True(t, d.hub.EndingForAll(d.q(), 0))
		d.hub.Wake(d.q()) // it waits for nobody
		<-w.turn
		in()
		comes(step + time.Millisecond)
		in()
		comes(0)
		w.Leave()
		d.obey()
	})
}

// A release that has told nobody else takes the courtesy from the message that is on its way, which wakes the waiter: once.
func TestAloneWakesOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, w := newWriter(t)
		d.outsiders()
		refusedIn(t, w, 0, "a")
		d.ours()
		refusedIn(t, w, moment, "")

		require.True(t, d.hub.EndingForAll(d.q(), 0))
		d.hub.Alone(d.q())
		require.Empty(t, w.turn)
		d.ours()
		require.Len(t, w.turn, 1)
		<-w.turn
		w.Held(time.Hour, false)
		require.Empty(t, w.turn)
		w.Leave()
		d.obey()
	})
}

// The first waiter lets those who ask without a courtesy, such as TryLocks, go first once, not each time that they come.
func TestOneCourtesyForThoseWithout(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, w := newWriter(t)
		d.outsiders() // so each courtesy is due
		refusedIn(t, w, 0, "a")
		for range 3 {
			d.ours()
			time.Sleep(moment / 2)
			d.ours()
			refusedIn(t, w, 0, "a")
		}
		w.Leave()
		d.obey()
	})
}

// Nobody else can get what a waiter ahead of all waits for, so it asks at once.
func TestNoCourtesyAheadOfAll(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, w := newWriter(t)
		upgrade := d.joins(&Waiter{Ahead: true}, false)
		asksIn(t, upgrade, 0)
		d.ours()
		asksIn(t, upgrade, 0)
		leave(upgrade, w)
		d.obey()
	})
}
