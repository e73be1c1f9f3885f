package pubsub

import (
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
)

// A subscription is live while both its channels are, and is requested again if either is lost.
func TestHalfASubscription(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	for i, name := range []string{d.ch.Name, grants(d.ch).Name} {
		ws := d.placed("o", 2)
		sub := d.topic().sub
		d.confirmOne("unsubscribe", name)
		require.False(t, sub.live())
		d.turn(ws, -1)
		d.hub.message(d.ch, "0") // arrives all the same, maybe
		d.turn(ws, 0)
		require.False(t, ws[0].Listens())
		ws[0].Held(-1, false)
		if i == 0 {
			d.confirmOne("unsubscribe", grants(d.ch).Name) // the other one follows
		}
		require.Equal(t, subscribing, d.take())
		d.confirmOne("subscribe", d.ch.Name)
		require.False(t, d.finish(nil), "rueidis answers with the first channel")
		require.False(t, sub.live())
		require.Equal(t, noOp, d.take(), "it is under way")
		d.turn(ws, -1)
		d.confirmOne("subscribe", grants(d.ch).Name)
		require.True(t, sub.live())
		require.Equal(t, noOp, d.take())
		d.turn(ws, 0)
		require.True(t, ws[0].Listens())
		ws[0].Leave()
		ws[1].Leave()
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
	require.Zero(t, d.hub.Len())
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
