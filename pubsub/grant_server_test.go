package pubsub

import (
	"fmt"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// parkPlaced is park with the process's place for the first waiter.
func (s site) parkPlaced(ch Channel, owner string, n int) []*Waiter {
	s.t.Helper()
	ws := s.park(ch, n)
	s.place(ch, ws[0], owner)
	return ws
}

// place makes the first waiter ask again and take the process's place.
func (s site) place(ch Channel, w *Waiter, owner string) {
	s.t.Helper()
	s.publish(ch, "0")
	awaitTurn(s.t, w, soon)
	require.True(s.t, w.Listens())
	require.True(s.t, w.TakePlace(owner))
	w.Held(-1, true)
}

// grant gives the lock to an owner for longer than the test, so waiters behind it will ask only at the end.
func (s site) grant(ch Channel, owner string) {
	s.t.Helper()
	s.publish(grants(ch), fmt.Sprintf("%s %d 0 7", owner, recovery.Milliseconds()))
}

func (s site) awaitGiven(w *Waiter) {
	s.t.Helper()
	awaitTurn(s.t, w, soon)
	require.Equal(s.t, Granted, w.Leave())
	require.Equal(s.t, Grant{Lease: recovery, Token: 7}, said(w))
}

func TestGrantsOnAServer(t *testing.T) {
	t.Parallel()
	for name, mod := range respVersions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			s := newSite(t, server.Client(t, mod), server.Client(t))
			ch := plain("c")
			ws := s.parkPlaced(ch, "o", 3)
			require.EqualValues(t, 1, s.subscribers(ch))
			require.EqualValues(t, 1, s.subscribers(grants(ch)))
			s.publish(ch, "00")
			s.grant(ch, "older")
			noTurn(t, ws...)
			s.grant(ch, "o")
			s.awaitGiven(ws[0])
			noTurn(t, ws[1:]...)

			s.place(ch, ws[1], "p")
			_, err := s.do(s.rdb.B().ClientKill().TypePubsub().Build()).AsInt64()
			require.NoError(t, err)
			s.awaitLive(ws[1]) // a release meanwhile finds that nobody listens
			require.True(t, ws[1].Listens())
			require.True(t, ws[1].TakePlace("p"))
			s.grant(ch, "p")
			noTurn(t, ws[1:]...)
			ws[1].Held(-1, true)
			s.awaitGiven(ws[1])

			s.publish(ch, "0")
			awaitTurn(t, ws[2], soon)
			s.leaveAll(ch, ws[2:])
			s.awaitSubscribers(grants(ch), 0)
		})
	}
}

// A user without the right to the grant channel only gets unlock messages, so it takes no place.
func TestForbiddenGrants(t *testing.T) {
	t.Parallel()
	for name, mod := range respVersions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			setUser(t, server.Client(t), "~*", "+@all", "resetchannels", "&c")
			s := newSite(t, server.Client(t, mod, asTester), server.Client(t))
			ch := plain("c")
			w := s.waits(ch)
			s.awaitLive(w)
			require.False(t, w.Listens())
			require.EqualValues(t, 1, s.subscribers(ch))
			require.EqualValues(t, 0, s.subscribers(grants(ch)))
			w.Held(-1, false)
			s.publish(ch, "0")
			awaitTurn(t, w, soon)
			w.Leave()
			s.awaitSubscribers(ch, 0)
		})
	}
}

// Grants on a cluster work before and after the slot moves. Losing the subscription ends the place.
func TestGrantsOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for name, mod := range respVersions {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, cluster.Client(t, mod), cluster.Client(t))
			ch := Channel{Name: "c:{" + redistest.Name(t) + "}", Sharded: true}
			ws := s.parkPlaced(ch, "o", 3)
			require.EqualValues(t, 1, s.subscribers(grants(ch)))
			s.grant(ch, "o")
			s.awaitGiven(ws[0])
			s.place(ch, ws[1], "p")

			slot := cluster.Slot(t, ch.Name)
			from, to := cluster.Owner(t, slot), cluster.Nodes()[0]
			if from == to {
				to = cluster.Nodes()[1]
			}
			cluster.MigrateSlot(t, slot, from, to)
			s.awaitLive(ws[1])
			require.True(t, ws[1].Listens())
			require.True(t, ws[1].TakePlace("p"))
			ws[1].Held(-1, true)
			require.EqualValues(t, 1, s.subscribers(ch))
			require.EqualValues(t, 1, s.subscribers(grants(ch)))
			s.grant(ch, "p")
			s.awaitGiven(ws[1])
			s.leaveAll(ch, ws[2:])
			s.awaitSubscribers(grants(ch), 0)
		})
	}
	t.Run("another slot", func(t *testing.T) {
		s := newSite(t, cluster.Client(t), cluster.Client(t))
		ch := Channel{Name: redistest.Name(t), Sharded: true}
		ws := s.park(ch, 2)
		s.publish(ch, "0")
		awaitTurn(t, ws[0], soon)
		require.False(t, ws[0].Listens(), "its grants would be at another node")
		s.leaveAll(ch, ws)
	})
}
