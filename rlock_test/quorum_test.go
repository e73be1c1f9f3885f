package rlock_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A refusal names the holder, also in the holder's process, where nothing is sent.
func TestQuorumRefuses(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 5)
		a, b := e.process(t, rlock.Options{}), e.process(t, rlock.Options{})
		_, unlock := enter(t, t.Context(), a)
		e.awaitVotes(t, 5)
		var refusal *rlock.NotAcquiredError
		require.ErrorAs(t, b.TryDo(t.Context(), 0, nothing), &refusal)
		require.NotEmpty(t, refusal.Holder)
		require.Greater(t, refusal.TTL, 25*time.Second)
		require.ErrorContains(t, a.TryDo(t.Context(), 0, nothing), "held by this client")
		require.NoError(t, unlock())
		e.awaitVotes(t, 0)
	})
}

func nothing(context.Context) error { return nil }

// Members on one server refuse each other for ever. The error says so, also of two of five, if these cost the majority.
func TestQuorumOfOneServer(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		other := redistest.Start(t).Client(t)
		var three, five []rlock.Locker
		for _, rdb := range []rueidis.Client{b.rdb, b.rdb, b.rdb, other, other} {
			five = append(five, newClient(t, rdb).Mutex(b.name))
		}
		three = five[:3]
		for _, q := range []*rlock.QuorumMutex{rlock.Quorum(three...), rlock.Quorum(five...)} {
			for _, err := range []error{
				q.Do(ctx, nothing), q.TryDo(ctx, 0, nothing), q.TryDo(ctx, time.Second, nothing),
			} {
				require.ErrorContains(t, err, "are on one Redis server (give each a server of its own)")
				require.NotErrorIs(t, err, rlock.ErrNotAcquired)
				require.NotErrorIs(t, err, rlock.ErrUnreachable)
			}
		}
		redistest.Eventually(t, testTimeout, func() bool { return !exists(t, b.rdb, b.name) && !exists(t, other, b.name) }, "nothing is left")
	})
}

// The options of the first member's Client are the quorum's, in each process: the ids of Clients are random.
func TestQuorumHasTheOptionsOfTheFirst(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for range 5 { // one order of ids in six
			var servers []*redistest.Server
			var members []rlock.Locker
			for i := range 3 {
				s := redistest.Start(t)
				servers = append(servers, s)
				members = append(members, newClient(t, s.Client(t), rlock.Options{UnlockTimeout: time.Duration(i+1) * time.Second / 2}).Mutex("x"))
			}
			for first := range members {
				members := slices.Concat(members[first:], members[:first])
				_, unlock := enter(t, t.Context(), rlock.Quorum(members...))
				for _, s := range servers {
					s.Pause()
				}
				began := time.Now()
				require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
				requireTook(t, time.Duration(first+1)*time.Second/2, began, time.Now())
				for _, s := range servers {
					s.Resume()
				}
			}
		}
	})
}

// The methods of a quorum report members that it cannot use.
func TestQuorumRefusesMembers(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		other := func() *rlock.Client { return newClient(t, b.rdb) }
		two := []rlock.Locker{other().Mutex("x"), other().Mutex("x")}
		for says, members := range map[string][]rlock.Locker{
			"a quorum of 0 outlives no":    nil,
			"a quorum of 2 outlives no":    two,
			"a quorum of 4 outlives no":    {two[0], two[1], other().Mutex("x"), other().Mutex("x")},
			"is of the same Client":        {two[0], two[1], two[1]},
			"is a <nil>":                   {two[0], nil, two[1]},
			"is a *rlock.QuorumMutex":      {two[0], two[1], rlock.Quorum(two...)},
			"is no plain Mutex":            {two[0], two[1], other().FencedMutex("x")},
			"another lease than the first": {two[0], two[1], other().Mutex("x", rlock.WithLease(time.Second))},
			"the name is empty":            {two[0], two[1], other().Mutex("")},
			"is a *rlock.Mutex":            {(*rlock.Mutex)(nil), two[0], two[1]},
		} {
			q := rlock.Quorum(members...)
			_, unlock, err := q.Lock(t.Context())
			require.ErrorContains(t, err, says)
			require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
			_, _, err = q.TryLock(t.Context(), time.Second)
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, q.Do(t.Context(), nothing), says)
			require.ErrorContains(t, q.TryDo(t.Context(), 0, nothing), says)
		}
		require.PanicsWithValue(t, "rlock: a QuorumMutex that was not made by Quorum", func() {
			_, _, _ = new(rlock.QuorumMutex).Lock(t.Context())
		})
		require.PanicsWithValue(t, "rlock: the ctx is nil", func() {
			_, _, _ = rlock.Quorum(two...).Lock(nil) //nolint:staticcheck // that is the point
		})
	})
}

// The levels of a section are counted in the process: a re-entry sends nothing.
func TestQuorumReentry(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 3)
		v := e.process(t, rlock.Options{})
		outer, unlockOuter := enter(t, t.Context(), v)
		e.awaitVotes(t, 3)
		before := e.commands(t)
		slices.Reverse(v.clients)
		inner, unlockInner, err := v.handle().Lock(outer) // another handle, in another order
		require.NoError(t, err)
		again, unlockAgain, err := v.TryLock(inner, 0)
		require.NoError(t, err)
		sleep(300 * time.Millisecond) // other kinds of locks send their count to Redis within that time
		require.NoError(t, unlockInner())
		require.Error(t, again.Err(), "the parent ctx is cancelled")
		sleep(300 * time.Millisecond)
		require.NoError(t, unlockAgain())
		require.Equal(t, before, e.commands(t))
		require.NoError(t, outer.Err())

		_, _, err = v.TryLock(rlock.Detach(outer), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.Equal(t, before, e.commands(t), "the process has the lock, so TryLock sends nothing")
		escaped := context.WithoutCancel(outer)
		require.NoError(t, unlockOuter())
		e.awaitVotes(t, 0)
		require.NoError(t, v.Do(escaped, func(context.Context) error { // the section is over, so this competes
			require.Positive(t, e.votes(t))
			return nil
		}))
		e.awaitVotes(t, 0)
	})
}

// A quorum's section is not a section of a lock on one server, whatever the names: owner and token are those of the lock around
// it. A member locked inside waits for its own quorum, and the error says so.
func TestQuorumIsNoLockOfOneServer(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 3)
		v := e.process(t, rlock.Options{})
		fenced := newFixture(t).FencedMutex(e.name)
		ctx, unlockFenced := enter(t, t.Context(), fenced)
		token, ok := rlock.FencingToken(ctx, e.name)
		require.True(t, ok)
		inner, unlock := enter(t, ctx, v)
		e.awaitVotes(t, 3)
		require.NotEmpty(t, rlock.Owner(ctx))
		require.Equal(t, rlock.Owner(ctx), rlock.Owner(inner))
		same, ok := rlock.FencingToken(inner, e.name)
		require.True(t, ok)
		require.Equal(t, token, same)
		for _, c := range v.clients {
			m := c.Mutex(e.name)
			held, err := m.IsHeld(inner)
			require.NoError(t, err)
			require.False(t, held)
			_, _, err = m.TryLock(inner, 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.ErrorContains(t, err, "held under this ctx as "+c.ID())
		}
		require.NoError(t, unlock())
		require.NoError(t, unlockFenced())
		e.awaitVotes(t, 0)
	})
}

// Waiters of one process get in one after the other, and each sends only the calls of its own turn.
func TestQuorumInOneProcess(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 3)
		e.loadScripts(t)
		v := e.process(t, rlock.Options{})
		before := e.commands(t)
		const n = 20
		var wg sync.WaitGroup
		inside := 0
		for range n {
			wg.Go(func() {
				assert.NoError(t, v.handle().Do(t.Context(), func(context.Context) error {
					inside++ // the race detector checks the exclusion
					return nil
				}))
			})
		}
		wg.Wait()
		require.Equal(t, n, inside)
		e.awaitVotes(t, 0)
		calls := e.commands(t) - before
		require.LessOrEqual(t, calls, int64(n+1)*3*8, "one script with three commands for each Lock and unlock, on each server")
	})
}

// G2, G7: members with a fixed lease are renewed only while a level without one is open.
func TestQuorumWithLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const lease = shortWatchdog
		e := newQuorumServers(t, 3)
		v := e.process(t, rlock.Options{WatchdogTimeout: lease}, rlock.WithLease(lease))
		began := time.Now()
		outer, unlock := enter(t, t.Context(), v)
		e.awaitVotes(t, 3)
		sleep(100 * time.Millisecond) // until the last answer is processed
		inner, unlockInner := enter(t, outer, v.handle())
		sleep(lease * 3 / 2)
		require.NoError(t, outer.Err())
		require.NoError(t, inner.Err())
		require.NoError(t, unlockInner())
		last := time.Now()
		<-outer.Done()
		requireTookAtMost(t, lease, last, time.Now())
		var loss *rlock.LostError
		require.ErrorAs(t, context.Cause(outer), &loss)
		require.Equal(t, rlock.LostExpired, loss.Reason)
		require.EqualError(t, loss, `rlock: "`+e.name+`": lost: its lease of fixed length ended`)
		_, _, err := v.Lock(outer)
		require.ErrorIs(t, err, rlock.ErrLost, "the loss is sticky until unlock")
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		require.Greater(t, time.Since(began), lease*3/2)
		e.awaitVotes(t, 0)
	})
}

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
			one := answer(w.Do(context.Background(), w.B().Exists().Key(e.name).Build()).AsInt64()).ok(t)
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
