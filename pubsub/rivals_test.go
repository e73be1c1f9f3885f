package pubsub

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/require"
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

// Where there is no queue in Redis, a process lets each of those that have had the lock lately have a turn before its next.
func TestRivalsFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, w := newWriter(t)
		unlocked := func(want time.Duration, holder string) {
			t.Helper()
			d.hub.message(d.ch, "1")
			began := time.Now()
			<-w.turn
			require.Equal(t, want, time.Since(began))
			w.Saw(0, holder)
			w.Held(time.Hour, false)
		}
		unlocked(0, "a")
		unlocked(0, "b")
		d.hub.Yield(d.q()) // it has had the lock
		unlocked(step+time.Millisecond, "a")
		unlocked(0, "b")
		unlocked(0, "")

		d.hub.Yield(d.q())
		require.True(t, d.hub.EndingForAll(d.q()))
		unlocked(2*step+time.Millisecond, "a") // its own unlock is no other's turn
		unlocked(step+time.Millisecond, "")
		time.Sleep(lately + time.Nanosecond)
		d.hub.Yield(d.q())
		unlocked(step+time.Millisecond, "a") // b has gone
		unlocked(0, "")
		w.Leave()
		d.obey()
	})
}

// A process that has had its turn lets the others go first, and forgets those that do not come: it waits for them once.
func TestAbsentRivalsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, w := newWriter(t)
		join := func() *Waiter {
			clear(d.hub.yields.of) // long ago
			return d.writer()
		}
		unlocked := func(want time.Duration) {
			t.Helper()
			d.hub.message(d.ch, "1")
			began := time.Now()
			<-w.turn
			require.Equal(t, want, time.Since(began))
		}
		refused := func(by string) {
			w.Saw(0, by)
			w.Held(time.Hour, false)
		}
		comes := func(by string) {
			unlocked(0)
			refused(by)
		}
		comes("a")
		comes("b")
		d.hub.Yield(d.q())
		unlocked(step + time.Millisecond)
		refused("a") // it has come
		d.hub.Yield(d.q())
		unlocked(step + time.Millisecond)
		d.hub.message(d.ch, "1") // one has come, and gone
		w.Held(time.Hour, false)
		<-w.turn
		w.Done(time.Hour)

		d.hub.Ending(d.q())
		w = join()
		d.hub.Yield(d.q())
		unlocked(step + time.Millisecond)
		w.Done(time.Hour) // nobody has come
		d.hub.Ending(d.q())
		w = join()
		d.hub.Yield(d.q())
		unlocked(0)
		w.Leave()
		d.obey()
	})
}

// A release that has told nobody else takes the courtesy from the message that is on its way, which wakes the waiter: once.
func TestAloneWakesOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, w := newWriter(t)
		d.hub.message(d.ch, "1")
		<-w.turn
		w.Saw(0, "a")
		w.Saw(0, "b")
		w.Held(time.Hour, false)

		require.True(t, d.hub.EndingForAll(d.q()))
		d.hub.Alone(d.q())
		require.Empty(t, w.turn)
		d.hub.message(d.ch, "1")
		require.Len(t, w.turn, 1)
		<-w.turn
		w.Held(time.Hour, false)
		require.Empty(t, w.turn)
		w.Leave()
		d.obey()
	})
}
