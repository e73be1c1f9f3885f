package pubsub

import (
	"io"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// places returns a queue of n waiters, each with its own place: o0, o1 and so on.
func (d *manualHub) places(n int) []*Waiter {
	d.t.Helper()
	d.each = true
	ws := make([]*Waiter, n)
	for i := range ws {
		ws[i] = &Waiter{}
		require.Equal(d.t, i == 0, d.hub.Join(ws[i], d.q()))
	}
	ws[0].Held(-1, false)
	d.turn(ws, -1) // there is no subscription yet
	d.obey()
	for i := range ws {
		d.turn(ws, i)
		d.takesPlace(ws[i], i)
	}
	d.turn(ws, -1)
	return ws
}

func (d *manualHub) takesPlace(w *Waiter, i int) {
	d.t.Helper()
	require.True(d.t, w.Listens())
	require.True(d.t, w.TakePlace(owner(i)))
	w.Held(-1, true)
}

func owner(i int) string { return "o" + string(rune('0'+i)) }

// Waiters with a place each take it in turn once the subscription is live. From then on they get their own messages.
func TestEachWaiterHasAPlace(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.places(3)

	late := d.joins(&Waiter{}, false)
	ws = append(ws, late)
	d.turn(ws, 3) // at once, since the subscription is live
	d.takesPlace(late, 3)

	d.told("? 0 o2")
	d.turn(ws, 2)
	d.told("? 0 o1") // one attempt at a time
	d.turn(ws, -1)
	ws[2].Held(-1, true)
	d.turn(ws, 1)
	ws[1].Held(-1, true)

	d.told("? 0") // is for a process with one place
	d.told("? 0 o9")
	d.turn(ws, -1)

	d.told("o1 2000 0 -")
	granted, err := ws[1].News()
	require.NoError(t, err)
	require.True(t, granted)
	<-ws[1].turn
	require.Equal(t, Granted, ws[1].Leave())
	d.turn(ws, -1)

	ws[3].Leave() // the others have their own places
	d.turn(ws, -1)
	d.hub.conns.message(d.ch, "00") // of a lock of another kind
	d.turn(ws, 0)
	ws[0].Held(-1, true)

	d.hub.Look(d.q(), "o2")
	d.turn(ws, 2)
	require.True(t, ws[2].TakePlace("o4")) // it has lost the one before
	ws[2].Held(-1, true)
	d.hub.Look(d.q(), "o2")
	d.turn(ws, -1)
	d.told("? 0 o4")
	d.turn(ws, 2)
	leave(ws[2], ws[0])
	d.empties()
}

// After a reconnect, each waiter checks its place.
func TestEachLooksAfterItsPlace(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.places(3)
	d.link.down(io.EOF, false)
	d.hub.Look(d.q(), "o1")
	d.turn(ws, -1)
	d.obey()
	for i := range ws {
		d.turn(ws, i)
		ws[i].Held(-1, true)
	}
	d.turn(ws, -1)
}

// A user that cannot subscribe to grants cannot wait where each waiter has a place.
func TestEachNeedsGrants(t *testing.T) {
	t.Parallel()
	noPerm := serverError(t, "NOPERM no")
	d := newManualHub(t)
	d.each = true
	ws := []*Waiter{{}, {}}
	for i, w := range ws {
		require.Equal(t, i == 0, d.hub.Join(w, d.q()))
	}
	ws[0].Held(-1, false)
	require.Equal(t, subscribing, d.take())
	require.False(t, d.finish(noPerm))
	require.Equal(t, subscribing, d.take())
	d.confirmOne("subscribe", d.ch.Name)
	for _, w := range ws {
		<-w.turn
		_, err := w.News()
		require.ErrorContains(t, err, `subscribe to "c:me": the server refuses it`)
		w.Leave()
	}
}

// Redisson notifies each waiter on its own channel. Waiters that Redisson may notify subscribe to that channel, and look again after the
// confirmation.
func TestChannelOfAWaiter(t *testing.T) {
	redistest.Parallel(t)
	for _, sharded := range []bool{false, true} {
		rdb := redistest.Dial(t, redistest.Shared(t))
		if sharded {
			rdb = redistest.StartCluster(t, 3, 0).Client(t)
		}
		s := newSite(t, rdb, rdb)
		ch := Channel{redistest.Name(t) + "{x}", sharded}
		q := Queue{Channel: ch, Each: true}
		ws := []*Waiter{{}, {}}
		for i, w := range ws {
			require.Equal(t, i == 0, s.hub.Join(w, q))
		}
		ws[0].Held(-1, false)
		for turns := [2]int{}; turns[0] < 2 || turns[1] < 2; { // the second is for the confirmation, which may overtake the other's first
			i := 0
			select {
			case <-ws[0].Turn():
			case <-ws[1].Turn():
				i = 1
			}
			if turns[i]++; turns[i] == 1 {
				require.True(t, ws[i].TakePlace(owner(i)))
			}
			ws[i].Hear() // changes nothing the second time
			ws[i].Held(-1, true)
		}
		own := func(i int) Channel { return Channel{ch.Name + ":" + owner(i), sharded} }
		s.publish(own(1), "0")
		<-ws[1].Turn()
		require.Empty(t, ws[0].Turn())
		ws[1].Leave()
		redistest.Eventually(t, soon, func() bool { return s.subscribers(own(1)) == 0 }, "the channel of a waiter that left is given back")
		require.Equal(t, int64(1), s.subscribers(own(0)))
		s.publish(own(0), "0")
		<-ws[0].Turn()
		require.True(t, ws[0].TakePlace("new"))
		ws[0].Hear()
		ws[0].Held(-1, true)
		<-ws[0].Turn()
		redistest.Eventually(t, soon, func() bool { return s.subscribers(own(0)) == 0 }, "the channel of a lost place is given back")
		ws[0].Leave()
		redistest.Eventually(t, soon, func() bool {
			s.hub.conns.mu.Lock()
			defer s.hub.conns.mu.Unlock()
			return len(s.hub.conns.subs) == 0
		}, "nothing is left")
	}
}

// A waiter does without its own channel if the server refuses it.
func TestChannelOfAWaiterRefused(t *testing.T) {
	t.Parallel()
	noPerm := serverError(t, "NOPERM no")
	d := newManualHub(t)
	ws := d.places(2)
	d.told("? 0 o1")
	d.turn(ws, 1)
	ws[1].Hear()
	ws[1].Held(-1, true)
	require.Equal(t, subscribing, d.take())
	d.finishOf(ws[1].place.own.sub, noPerm)
	require.Nil(t, ws[1].place.own)
	d.turn(ws, -1)
	d.told("o1 2000 0 -")
	require.Equal(t, Granted, ws[1].Leave())
}
