package pubsub

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// afterOutage checks that every queue that waited through an outage retries, and then waits and wakes as before.
func (s site) afterOutage(queues map[Channel][]*Waiter) {
	s.t.Helper()
	for _, ws := range queues {
		awaitTurn(s.t, ws[0], recovery)
		ws[0].Held(-1, false)
	}
	for ch, ws := range queues {
		s.awaitSubscribers(ch, 1)
		// It may have tried more than once: a message arrives when the one before did.
		redistest.Eventually(s.t, recovery, func() bool {
			select {
			case <-ws[0].Turn():
				require.NoError(s.t, refusal(ws[0]))
				ws[0].Held(-1, false)
				return false
			case <-time.After(quiet):
				return true
			}
		}, "no more turns")
		s.publish(ch, "0")
		awaitTurn(s.t, ws[0], soon)
		ws[0].Leave()
		awaitTurn(s.t, ws[1], soon)
		ws[1].Leave()
	}
	redistest.Eventually(s.t, recovery, func() bool { return s.hub.isEmpty() }, "no topic is left")
	for ch := range queues {
		s.awaitSubscribers(ch, 0)
	}
}

func (s site) parkQueues(n int, sharded bool) map[Channel][]*Waiter {
	s.t.Helper()
	queues := make(map[Channel][]*Waiter)
	prefix := redistest.Name(s.t)
	for i := range n {
		ch := Channel{Name: fmt.Sprintf("%s{%d}", prefix, i), Sharded: sharded}
		queues[ch] = s.park(ch, 2)
	}
	return queues
}

func TestReconnects(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]func(s site, server *redistest.Server, proxy *redistest.Proxy, queues map[Channel][]*Waiter){
		"client kill": func(s site, _ *redistest.Server, _ *redistest.Proxy, _ map[Channel][]*Waiter) {
			killed, err := s.do(s.rdb.B().ClientKill().TypePubsub().Build()).AsInt64()
			require.NoError(s.t, err)
			require.EqualValues(s.t, 1, killed)
		},
		"server restart": func(_ site, server *redistest.Server, _ *redistest.Proxy, _ map[Channel][]*Waiter) {
			server.Kill()
			server.Restart()
		},
		"refused for a while": func(s site, _ *redistest.Server, proxy *redistest.Proxy, queues map[Channel][]*Waiter) {
			proxy.Refuse(true)
			proxy.CutAll()
			for ch, ws := range queues {
				s.awaitSubscribers(ch, 0)
				noTurn(s.t, ws...)
			}
			proxy.Refuse(false)
		},
		"black hole": func(s site, _ *redistest.Server, proxy *redistest.Proxy, queues map[Channel][]*Waiter) {
			conns := proxy.Conns()
			proxy.BlackHole(true)
			for ch := range queues {
				s.publish(ch, "0") // lost
			}
			redistest.Eventually(s.t, recovery, func() bool { return proxy.Conns() != conns }, "the silence is noticed")
			proxy.BlackHole(false)
		},
	} {
		for resp, mod := range respVersions {
			t.Run(name+"/"+resp, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				proxy := redistest.StartProxy(t, server.Addr())
				s := newSite(t, redistest.Dial(t, proxy.Addr(), mod), server.Client(t))
				queues := s.parkQueues(5, false)
				outage(s, server, proxy, queues)
				s.afterOutage(queues)
			})
		}
	}
}

// The connection breaks while commands are under way.
func TestCutDuringSubscribe(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, redistest.Shared(t))
	for n := 1; n <= 3; n++ {
		proxy.OnRequest(redistest.Nth(n, "SUBSCRIBE", redistest.Cut))
		proxy.OnReply(redistest.Nth(n, "UNSUBSCRIBE", redistest.Cut))
	}
	s := newSite(t, redistest.Dial(t, proxy.Addr()), redistest.Dial(t, redistest.Shared(t)))
	ch := plain(redistest.Name(t))
	for range 3 {
		s.leaveAll(ch, s.park(ch, 2))
	}
}

func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*redistest.Server){
		"killed": (*redistest.Server).Kill,
		// Connections to the old master stay open: only the sentinels know of the new master.
		"paused": (*redistest.Server).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := redistest.StartWatchfulSentinel(t)
			s := newSite(t, set.Client(t), set.Client(t))
			queues := s.parkQueues(3, false)
			old := set.Master(t)
			end(old)
			redistest.Eventually(t, recovery, func() bool { return set.Master(t) != old }, "a replica is promoted")
			// The test's own client follows by itself.
			redistest.Eventually(t, recovery, func() bool {
				_, there := s.rdb.Nodes()[old.Addr()]
				return !there
			}, "the client follows")
			s.afterOutage(queues)
		})
	}
}
