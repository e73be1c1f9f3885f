package pubsub

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// resp2 imitates an older server, or a proxy, without push messages.
func resp2(o *rueidis.ClientOption) { o.AlwaysRESP2, o.DisableCache = true, true }

// respVersions are the protocols between client and server.
var respVersions = map[string]func(*rueidis.ClientOption){"resp3": func(*rueidis.ClientOption) {}, "resp2": resp2}

// Channels share a connection, but not messages or waiters.
func manyChannelsShareOneConnection(t *testing.T, mod func(*rueidis.ClientOption)) {
	server := redistest.Start(t)
	s := newSite(t, server.Client(t, mod), server.Client(t))
	prefix := redistest.Name(t)
	const n = 3*subscribeBatch + 7
	ws := make([]*Waiter, n)
	channel := func(i int) Channel { return plain(fmt.Sprint(prefix, i)) }
	for i := range ws {
		ws[i] = &Waiter{}
		require.True(t, s.hub.Join(ws[i], queue(channel(i))))
		ws[i].Held(-1, false)
	}
	for _, w := range ws {
		awaitTurn(t, w, soon)
		w.Held(-1, false)
	}
	require.Equal(t, n, s.hub.Len())
	list, err := s.do(s.rdb.B().ClientList().TypePubsub().Build()).ToString()
	require.NoError(t, err)
	require.Contains(t, list, fmt.Sprintf(" sub=%d ", 2*n))
	require.Equal(t, 1, s.hub.linkCount())
	for i, w := range ws {
		s.publish(channel(i), "0")
		awaitTurn(t, w, soon)
		w.Leave()
	}
	redistest.Eventually(t, recovery, func() bool { return s.hub.isEmpty() }, "no topic is left")
	s.hub.Close()
}

// channels lists the channels with subscribers, over all nodes.
func (s site) channels(sharded bool) []string {
	s.t.Helper()
	var all []string
	for _, node := range s.rdb.Nodes() {
		cmd := node.B().PubsubChannels().Build()
		if sharded {
			cmd = node.B().PubsubShardchannels().Build()
		}
		list, err := node.Do(s.t.Context(), cmd).AsStrSlice()
		require.NoError(s.t, err)
		all = append(all, list...)
	}
	return all
}

// churn lets many goroutines join, wait and give up at random, on private and shared names.
func churn(s site, names int, sharded bool) {
	prefix := redistest.Name(s.t)
	var wg sync.WaitGroup
	const workers = 32
	for worker := range workers {
		wg.Go(func() { // ended by its share of the names
			rnd := rand.New(rand.NewPCG(uint64(worker), 1))
			for i := worker; i < names; i += workers {
				name := i
				if rnd.IntN(3) == 0 {
					name = rnd.IntN(10)
				}
				one(s.hub, rnd, Channel{Name: fmt.Sprintf("%s{%d}", prefix, name), Sharded: sharded})
			}
		})
	}
	wg.Wait()
}

// one joins and is cancelled at a random time.
func one(hub *Hub, rnd *rand.Rand, ch Channel) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.IntN(3000))*time.Microsecond)
	defer cancel()
	w := &Waiter{}
	turn := hub.Join(w, queue(ch))
	for {
		if !turn {
			select {
			case <-w.Turn():
			case <-ctx.Done():
				w.Leave()
				return
			}
		}
		turn = false
		switch rnd.IntN(4) {
		case 0:
			w.Done(time.Duration(rnd.IntN(5)) * time.Millisecond)
			return
		case 1:
			w.Leave()
			return
		default:
			w.Held(time.Duration(rnd.IntN(5)-1)*time.Millisecond, false)
		}
	}
}

func churnLeavesNothing(t *testing.T, mod func(*rueidis.ClientOption)) {
	server := redistest.Start(t)
	s := newSite(t, server.Client(t, mod), server.Client(t))
	before := s.channels(false)
	churn(s, 2000, false)
	redistest.Eventually(t, recovery, func() bool { return s.hub.isEmpty() }, "no topic is left")
	redistest.Eventually(t, recovery, func() bool { return len(s.channels(false)) == len(before) }, "no channel is left")
	require.LessOrEqual(t, s.hub.linkCount(), 1, "one goroutine at most")
	ws := s.park(plain(redistest.Name(t)), 2) // it still works
	s.leaveAll(ws[0].topic.queue.Channel, ws)
	s.hub.Close()
}

// limited creates a user and returns a client that acts as that user.
func limited(t *testing.T, server *redistest.Server, rules ...string) rueidis.Client {
	t.Helper()
	setUser(t, server.Client(t), rules...)
	return server.Client(t, asTester)
}

func asTester(o *rueidis.ClientOption) { o.Username, o.Password = "tester", "secret" }

func setUser(t *testing.T, admin rueidis.Client, rules ...string) {
	t.Helper()
	cmd := admin.B().Arbitrary("ACL", "SETUSER", "tester", "on", ">secret").Args(rules...).Build()
	require.NoError(t, admin.Do(t.Context(), cmd).Error())
}

// awaitRefusal waits for the error of a refused subscription. On a busy machine it may be overdue, and the first waiter asks before.
func awaitRefusal(t *testing.T, w *Waiter, says ...string) {
	t.Helper()
	redistest.Eventually(t, recovery, func() bool {
		redistest.Within(t, soon, w.Turn(), "a signal")
		if refusal(w) != nil {
			return true
		}
		w.Held(-1, false)
		return false
	}, "it is refused")
	for _, text := range says {
		require.ErrorContains(t, refusal(w), text)
	}
}

func TestForbiddenChannel(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := newSite(t, limited(t, server, "~*", "+@all", "resetchannels", "&open*"), server.Client(t))
	shut := plain("shut")
	open := s.park(plain("open"), 1)
	for range 3 {
		a, b, late := &Waiter{}, &Waiter{}, &Waiter{}
		require.True(t, s.hub.Join(a, queue(shut)))
		require.False(t, s.hub.Join(b, queue(shut)))
		a.Held(-1, false)
		awaitRefusal(t, a, `"shut"`, "NOPERM")
		awaitRefusal(t, b, `"shut"`, "NOPERM")
		require.True(t, s.hub.Join(late, queue(shut)))
		leave(a, b, late)
		redistest.Eventually(t, soon, func() bool { return s.hub.Len() == 1 }, "the topic is dropped")
	}
	s.publish(plain("open"), "0") // the connection serves the others as before
	awaitTurn(t, open[0], soon)
	open[0].Held(-1, false)
	setUser(t, s.rdb, "allchannels")
	s.leaveAll(shut, append(s.park(shut, 2), open...))
}

// The password changed, so new connections fail.
func TestForbiddenLogin(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := newSite(t, limited(t, server, "allkeys", "allchannels", "+@all"), server.Client(t))
	setUser(t, s.rdb, "resetpass", ">other")
	w := s.waits(plain("c"))
	awaitRefusal(t, w, `"c"`, "WRONGPASS")
	w.Leave()
	require.True(t, s.hub.isEmpty())
}

// A temporary error is retried. LOADING would not do here, because the client itself repeats such commands.
func TestSubscribesAgainAfterAPassingError(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, redistest.Shared(t))
	proxy.OnRequest(redistest.Nth(1, "SUBSCRIBE", redistest.Fail("MASTERDOWN wait")))
	proxy.OnRequest(redistest.Nth(2, "SUBSCRIBE", redistest.Fail("TRYAGAIN wait")))
	s := newSite(t, redistest.Dial(t, proxy.Addr()), redistest.Dial(t, redistest.Shared(t)))
	ch := plain(redistest.Name(t))
	other := plain(redistest.Name(t))
	w := s.waits(other)
	ws := append(s.park(ch, 1), w)
	awaitTurn(t, w, soon)
	w.Leave()
	s.leaveAll(ch, ws[:1])
	s.awaitGone(other)
}
