package pubsub

import (
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// listens starts an ear and waits until it is live. The channel carries its messages.
func (s site) listens(ch Channel) (*Ear, <-chan string) {
	s.t.Helper()
	heard := make(chan string, 100)
	e := s.hub.Listen(ch, func(text string) { heard <- text })
	s.awaitEar(e, 1)
	return e, heard
}

// awaitEar waits until the ear is live, at least for the nth time.
func (s site) awaitEar(e *Ear, n int) {
	s.t.Helper()
	over := time.After(recovery)
	for st := e.State(); !st.Live || st.Confirmed < n; st = e.State() {
		require.NoError(s.t, st.Refusal)
		select {
		case <-e.News():
		case <-over:
			s.t.Fatal("the ear is not live")
		}
	}
}

// hears waits for a message with the given text.
func (s site) hears(heard <-chan string, text string) {
	s.t.Helper()
	select {
	case got := <-heard:
		require.Equal(s.t, text, got)
	case <-time.After(soon):
		s.t.Fatal("it was not heard")
	}
}

// The ear shares its connection with waiters, outlasts them, and gets no unlock messages.
func TestEarBesideWaiters(t *testing.T) {
	t.Parallel()
	for name, mod := range respVersions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sharedSite(t, mod)
			ear := plain(redistest.Name(t) + ":ear")
			_, heard := s.listens(ear)
			ch := plain(redistest.Name(t))
			ws := s.park(ch, 2)
			require.Equal(t, 1, s.hub.linkCount())
			s.publish(ear, "one")
			s.publish(ch, "0")
			awaitTurn(t, ws[0], soon)
			leave(ws[0], ws[1])
			s.awaitSubscribers(ch, 0)
			s.publish(ear, "two")
			s.hears(heard, "one")
			s.hears(heard, "two")
			s.hub.Drain()
			s.publish(ear, "three")
			s.hears(heard, "three")
			s.hub.Close()
			s.awaitSubscribers(ear, 0)
		})
	}
}

// On a cluster, the ear subscribes at the node that serves its slot, and follows the slot.
func TestEarOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for _, sharded := range []bool{true, false} {
		s := newSite(t, cluster.Client(t), cluster.Client(t))
		ch := Channel{EarChannel("me"), sharded}
		e, heard := s.listens(ch)
		s.publish(ch, "here")
		s.hears(heard, "here")
		if sharded {
			slot := cluster.Slot(t, ch.Name)
			from := cluster.Owner(t, slot)
			to := cluster.Nodes()[0]
			if to.Addr() == from.Addr() {
				to = cluster.Nodes()[1]
			}
			cluster.MigrateSlot(t, slot, from, to)
			s.awaitEar(e, 2)
			redistest.Eventually(t, recovery, func() bool {
				s.publish(ch, "there")
				select {
				case <-heard:
					return true
				case <-time.After(quiet):
					return false
				}
			}, "heard at the other node")
		}
	}
}

func TestSpoken(t *testing.T) {
	for text, want := range map[string]Spoken{
		"0 asked 17":     {"asked", "17"},
		"0 asked ":       {"asked", ""},
		"0 probe a b\nc": {"probe", "a b\nc"},
	} {
		got, ok := ReadSpoken(text)
		require.True(t, ok, text)
		require.Equal(t, want, got)
		require.Equal(t, text, got.String())
	}
	for _, text := range []string{
		"", "0", "0 asked", "1 asked 17", "00 asked 17", "0  17", "0 Asked 17", "0 asked17 x", "0 " + strings.Repeat("a", 17) + " x",
		"0 asked " + strings.Repeat("1", MaxSpoken),
	} {
		_, ok := ReadSpoken(text)
		require.False(t, ok, text)
	}
}

// FuzzSpoken: parsing never panics, and a parsed message encodes to the same content.
func FuzzSpoken(f *testing.F) {
	for _, seed := range []string{"0 asked 11000000000000000001", "0 a ", "1 a b", "0 \xff x", "0 probe \x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if s, ok := ReadSpoken(text); ok {
			require.Equal(t, text, s.String())
			require.True(t, len(text) <= MaxSpoken)
		}
	})
}
