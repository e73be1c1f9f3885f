package pubsub

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/require"
)

// lapse lets the linger time pass.
func (d *manualHub) lapse() {
	d.hub.mu.Lock()
	var all []*subscription
	for _, s := range d.hub.subs {
		all = append(all, s)
	}
	d.hub.mu.Unlock()
	for _, s := range all {
		s.lingered()
	}
}

// A queue may come back before its channel is given back.
func TestRejoin(t *testing.T) {
	t.Parallel()
	rejoin := func(d *manualHub) *Waiter {
		w := d.joins(&Waiter{}, true)
		w.Held(-1, false)
		return w
	}
	t.Run("before the command", func(t *testing.T) {
		t.Parallel()
		d := newManualHub(t)
		d.line(1)[0].Leave()
		w := rejoin(d)
		require.Empty(t, w.turn, "the attempt came when the subscription was live")
		require.Equal(t, noOp, d.take())
		require.True(t, d.topic().sub.confirmed)
	})
	t.Run("during the command", func(t *testing.T) {
		t.Parallel()
		d := newManualHub(t)
		d.line(1)[0].Leave()
		require.Equal(t, unsubscribing, d.take())
		w := rejoin(d)
		require.Empty(t, w.turn)
		d.confirm("unsubscribe")
		d.finish(nil)
		require.Equal(t, subscribing, d.take())
		d.confirm("subscribe")
		require.Len(t, w.turn, 1)
	})
	t.Run("the command fails", func(t *testing.T) {
		t.Parallel()
		d := newManualHub(t)
		d.line(1)[0].Leave()
		require.Equal(t, unsubscribing, d.take())
		w := rejoin(d)
		d.finish(serverError(t, "BUSY"))
		require.Equal(t, subscribing, d.take())
		d.confirm("subscribe")
		require.Len(t, w.turn, 1)
	})
	t.Run("leaves while it subscribes", func(t *testing.T) {
		t.Parallel()
		d := newManualHub(t)
		w := rejoin(d)
		require.Equal(t, subscribing, d.take())
		w.Leave()
		d.confirm("subscribe")
		require.Empty(t, w.turn)
		d.finish(nil)
		require.Equal(t, unsubscribing, d.take())
	})
	t.Run("leaves before it subscribes", func(t *testing.T) {
		t.Parallel()
		d := newManualHub(t)
		rejoin(d).Leave()
		require.Equal(t, noOp, d.take())
		require.Zero(t, d.hub.Len())
	})
}

// A waiter that got the lock leaves a lingering subscription. A waiter that gave up does not.
func TestLinger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newManualHub(t)
		join := func() *Waiter {
			w := d.joins(&Waiter{}, true)
			return w
		}
		d.line(1)[0].Done(-1)
		require.Equal(t, noOp, d.take())
		for range 10 { // each time anew
			time.Sleep(linger - time.Millisecond)
			w := join()
			w.Held(-1, false)
			require.Empty(t, w.turn, "the attempt came when the subscription was live")
			d.hub.message(d.ch, "0")
			require.Len(t, w.turn, 1)
			w.Done(-1)
			require.Equal(t, noOp, d.take())
		}
		time.Sleep(linger / 2)
		join().Leave()
		require.Equal(t, noOp, d.take(), "it is there for the one before")
		w := join()
		time.Sleep(linger)
		require.Equal(t, noOp, d.take(), "it is in use")
		w.Leave()
		d.unsubscribes()

		d.line(1)[0].Done(-1)
		time.Sleep(linger)
		synctest.Wait()
		d.unsubscribes("no waiter came")

		d.line(1)[0].Done(-1)
		d.link.down(io.EOF, false)
		require.Equal(t, noOp, d.take(), "no waiter needs the subscription")
		require.Zero(t, d.hub.Len())

		d.line(1)[0].Done(-1)
		d.confirm("unsubscribe")
		require.Equal(t, noOp, d.take(), "the slot has moved")
		require.Zero(t, d.hub.Len())
		d.line(1)[0].Done(-1) // Close stops the timer, or the bubble would not end
	})
}

// A lock without competition costs only its own commands: getting it without waiting does not keep the subscription.
func TestLingersOnlyForThoseWhoWaited(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newManualHub(t)
		d.line(1)[0].Done(-1)
		for range 10 {
			time.Sleep(linger / 4)
			w := d.joins(&Waiter{}, true)
			w.Done(-1)
		}
		synctest.Wait()
		d.unsubscribes()
	})
}

// A grant that was given back leaves nothing behind.
func TestLingersForNobodyWhoFailed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newManualHub(t)
		d.line(1)[0].Done(-1)
		d.hub.Undone(queue(d.ch))
		d.unsubscribes()

		w := d.line(2)
		w[0].Done(-1)
		d.hub.Undone(queue(d.ch))
		require.Equal(t, noOp, d.take(), "somebody needs it")
		require.Len(t, w[1].turn, 1, "and asks at once")
		w[1].Done(-1)
		time.Sleep(linger - time.Millisecond)
		require.Equal(t, noOp, d.take(), "who got it next has its own half second")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		d.unsubscribes()
	})
}
