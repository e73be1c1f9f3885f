package pubsub

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// A subscription is live while both its channels are, and is requested again if either is lost.
func TestHalfASubscription(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	for i, name := range []string{d.ch.Name, grants(d.ch).Name} {
		ws := d.placed("o", 2)
		sub := d.topic().sub
		d.confirmOne("unsubscribe", name)
		require.False(t, sub.reach().live)
		d.turn(ws, -1)
		d.hub.conns.message(d.ch, "0") // arrives all the same, maybe
		d.turn(ws, 0)
		require.False(t, ws[0].Listens())
		ws[0].Held(-1, false)
		if i == 0 {
			d.confirmOne("unsubscribe", grants(d.ch).Name) // the other one follows
		}
		require.Equal(t, subscribing, d.take())
		d.confirmOne("subscribe", d.ch.Name)
		require.False(t, d.finish(nil), "rueidis answers with the first channel")
		require.False(t, sub.reach().live)
		require.Equal(t, noOp, d.take(), "it is under way")
		d.turn(ws, -1)
		d.confirmOne("subscribe", grants(d.ch).Name)
		require.True(t, sub.reach().live)
		require.Equal(t, noOp, d.take())
		d.turn(ws, 0)
		require.True(t, ws[0].Listens())
		leave(ws[0], ws[1])
		d.empties()
	}

	ws := d.line(1)
	ws[0].Leave()
	require.Equal(t, unsubscribing, d.take())
	d.confirm("subscribe") // rueidis repeats what it sent on a connection that broke
	require.Equal(t, noOp, d.take(), "it is under way")
	d.confirmOne("unsubscribe", d.ch.Name)
	require.Equal(t, noOp, d.take(), "still")
	d.confirmOne("unsubscribe", grants(d.ch).Name)
	d.finish(nil)
	require.True(t, d.hub.isEmpty())
}

// Without a channel for grants there are no places.
func TestNoGrants(t *testing.T) {
	t.Parallel()
	s := sharedSite(t)
	s.hub = New(redistest.Dial(t, redistest.Shared(t)), "")
	defer s.hub.Close()
	ch := plain(redistest.Name(t))
	ws := s.park(ch, 2)
	require.EqualValues(t, 0, s.subscribers(grants(ch)))
	require.False(t, ws[0].Listens())
	s.publish(ch, "00")
	awaitTurn(t, ws[0], soon)
	s.leaveAll(ch, ws)
}

// lapse lets the linger time pass.
func (d *manualHub) lapse() {
	d.hub.conns.mu.Lock()
	var all []*subscription
	for _, s := range d.hub.conns.subs {
		all = append(all, s)
	}
	d.hub.conns.mu.Unlock()
	for _, s := range all {
		s.lingered()
	}
}

// A waiter that got the lock leaves a lingering subscription. A waiter that gave up does not.
func TestLinger(t *testing.T) {
	inBubble(t, func(t *testing.T) {
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
			d.hub.conns.message(d.ch, "0")
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
		require.True(t, d.hub.isEmpty())

		d.line(1)[0].Done(-1)
		d.confirm("unsubscribe")
		require.Equal(t, noOp, d.take(), "the slot has moved")
		require.True(t, d.hub.isEmpty())
		d.line(1)[0].Done(-1) // Close stops the timer, or the bubble would not end
	})
}

// A lock without competition costs only its own commands: getting it without waiting does not keep the subscription.
func TestLingersOnlyForThoseWhoWaited(t *testing.T) {
	inBubble(t, func(t *testing.T) {
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
	inBubble(t, func(t *testing.T) {
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

// Waiters in the queue when draining begins, or joining later, get an error. A waiter that goes ahead keeps waiting and can be woken.
func TestDrain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newManualHub(t)
		ws := d.line(2)
		d.hub.Drain()
		requireClosed(t, ws...)
		late, ahead := &Waiter{}, &Waiter{Ahead: true}
		require.True(t, d.hub.Join(late, queue(d.ch)))
		late.Held(time.Hour, false)
		requireClosed(t, late)
		require.True(t, d.hub.Join(ahead, queue(d.ch)))
		for _, w := range append(ws, late) {
			w.Leave()
		}
		ahead.Held(time.Hour, false)
		require.Equal(t, noOp, d.take(), "it needs the subscription")
		d.hub.conns.message(d.ch, "0")
		require.Len(t, ahead.turn, 1)
		<-ahead.turn
		require.NoError(t, refusal(ahead))
		ahead.Done(time.Hour)
		d.unsubscribes("it does not linger")
	})
}

// Draining ends a lingering subscription before its time.
func TestDrainEndsWhatLingers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newManualHub(t)
		d.line(1)[0].Done(time.Hour)
		require.Equal(t, noOp, d.take())
		d.hub.Drain()
		d.unsubscribes()
	})
}

// A waiter that goes ahead may be the first subscriber.
func TestDrainLetsSubscribe(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newManualHub(t)
		d.hub.Drain()
		ahead := d.joins(&Waiter{Ahead: true}, true)
		ahead.Held(-1, false)
		require.Equal(t, subscribing, d.take())
		d.confirm("subscribe")
		require.Len(t, ahead.turn, 1)
		d.hub.Stop()
		ahead.Held(-1, false)
		require.ErrorIs(t, refusal(ahead), ErrClosed)
		ahead.Leave()
	})
}
