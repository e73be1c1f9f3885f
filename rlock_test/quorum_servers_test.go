package rlock_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// quorumServers has several independent servers, and the proxies through which processes reach them.
type quorumServers struct {
	servers []*redistest.Server
	proxies []*redistest.Proxy
	watch   []rueidis.Client // bypass the proxies
	name    string
}

func newQuorumServers(t testing.TB, n int) *quorumServers {
	t.Helper()
	e := &quorumServers{name: redistest.Name(t)}
	for range n {
		s := redistest.Start(t)
		e.servers = append(e.servers, s)
		e.proxies = append(e.proxies, redistest.StartProxy(t, s.Addr()))
		e.watch = append(e.watch, s.Client(t))
	}
	return e
}

// quorumProcess is a process: a Client for each server, and a quorum of them.
type quorumProcess struct {
	*rlock.QuorumMutex
	clients []*rlock.Client
	name    string
}

func (e *quorumServers) process(t testing.TB, o rlock.Options, options ...rlock.Option) quorumProcess {
	t.Helper()
	return e.processBy(t, oneConn, o, options...)
}

// processBy returns a process whose connections have the options of mod.
func (e *quorumServers) processBy(t testing.TB, mod func(*rueidis.ClientOption), o rlock.Options, options ...rlock.Option) quorumProcess {
	t.Helper()
	v := quorumProcess{name: e.name}
	for _, p := range e.proxies {
		v.clients = append(v.clients, newClient(t, redistest.Dial(t, p.Addr(), oneConn, mod), o))
	}
	v.QuorumMutex = v.handle(options...)
	return v
}

// handle returns another handle on the same lock.
func (v quorumProcess) handle(options ...rlock.Option) *rlock.QuorumMutex {
	var members []rlock.Locker
	for _, c := range v.clients {
		members = append(members, c.Mutex(v.name, options...))
	}
	return rlock.Quorum(members...)
}

// loadScripts loads the scripts on all servers, and returns when no call is under way. The end of a section is not enough: a share beyond
// the majority and its release may still be under way, and would meet a fault meant for another call.
func (e *quorumServers) loadScripts(t testing.TB) {
	t.Helper()
	v := e.process(t, rlock.Options{})
	_, unlock := enter(t, t.Context(), v)
	e.awaitVotes(t, len(e.servers))
	require.NoError(t, unlock())
	v.close() // waits for all calls (G9)
	require.Zero(t, e.votes(t))
}

// votes returns how many of the running servers have the key.
func (e *quorumServers) votes(t testing.TB) (n int) {
	t.Helper()
	for i, w := range e.watch {
		if e.servers[i].Pid() != 0 {
			one, err := w.Do(context.Background(), w.B().Exists().Key(e.name).Build()).AsInt64()
			require.NoError(t, err)
			n += int(one)
		}
	}
	return n
}

func (e *quorumServers) awaitVotes(t testing.TB, n int) {
	t.Helper()
	redistest.Eventually(t, 15*time.Second, func() bool { return e.votes(t) == n }, "the expected number of servers have the key")
}

func (e *quorumServers) awaitSubscribers(t testing.TB, n int) {
	t.Helper()
	for _, w := range e.watch {
		fixture{rdb: w}.awaitSubscribers(t, e.name, n)
	}
}

// refuseRenewals makes a server answer each renewal with LOADING, until goOn is called.
func (e *quorumServers) refuseRenewals(i int) (goOn func()) {
	var over atomic.Bool
	e.proxies[i].OnRequest(func(cmd []string) redistest.Action {
		if !over.Load() && strings.HasPrefix(strings.ToUpper(cmd[0]), "EVAL") && len(cmd) == 6 { // script, 1, key, lease, owner
			return redistest.Fail("LOADING Redis is loading the dataset in memory")
		}
		return redistest.Pass
	})
	return func() { over.Store(true) }
}

// commands counts the calls to all servers, without those of rueidis itself and of the test's own checks.
func (e *quorumServers) commands(t testing.TB) (n int64) {
	t.Helper()
	for _, w := range e.watch {
		for name, calls := range redistest.Commands(t, w) {
			if !slices.Contains([]string{"ping", "info", "exists", "pubsub|numsub", "hello", "client|setinfo"}, name) {
				n += calls
			}
		}
	}
	return n
}

// deaths has the ways in which servers die and come back.
var deaths = map[string]struct{ kill, back func(*quorumServers, int) }{
	"killed": {
		func(e *quorumServers, i int) { e.servers[i].Kill() },
		func(e *quorumServers, i int) { e.servers[i].Restart() },
	},
	"stopped": {
		func(e *quorumServers, i int) { e.servers[i].Pause() },
		func(e *quorumServers, i int) { e.servers[i].Resume() },
	},
	"cut off": {
		func(e *quorumServers, i int) { e.proxies[i].BlackHole(true) },
		func(e *quorumServers, i int) { e.proxies[i].BlackHole(false) },
	},
	"port closed": {
		func(e *quorumServers, i int) { e.proxies[i].Refuse(true); e.proxies[i].CutAll() },
		func(e *quorumServers, i int) { e.proxies[i].Refuse(false) },
	},
}

func (v quorumProcess) close() {
	for _, c := range v.clients {
		c.Close()
	}
}
