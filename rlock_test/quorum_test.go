package rlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// quorumServers is several independent servers, which processes reach through proxies.
type quorumServers struct {
	servers []*redistest.Server
	proxies []*redistest.Proxy
	watch   []rueidis.Client // past the proxies
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

// quorumProcess is a process: its Clients, one for each server, and a quorum of them.
type quorumProcess struct {
	*rlock.QuorumMutex
	clients []*rlock.Client
	name    string
}

func (e *quorumServers) process(t testing.TB, o rlock.Options, options ...rlock.Option) quorumProcess {
	t.Helper()
	return e.processBy(t, oneConn, o, options...)
}

// processBy returns one whose connections are as mod says.
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

// loadScripts has all servers know the scripts, and none of them be asked for anything any more. That a section is over says less: a share that
// came after the majority may be on its way, and then its release, which a fault would meet in place of the call that it is for.
func (e *quorumServers) loadScripts(t testing.TB) {
	t.Helper()
	v := e.process(t, rlock.Options{})
	_, unlock, err := v.Lock(t.Context())
	require.NoError(t, err)
	e.awaitVotes(t, len(e.servers))
	require.NoError(t, unlock())
	v.close() // waits for all calls (G9)
	require.Zero(t, e.votes(t))
}

// votes returns how many of the servers that are up have the key.
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
	redistest.Eventually(t, 15*time.Second, func() bool { return e.votes(t) == n }, "so many servers have the key")
}

func (e *quorumServers) awaitSubscribers(t testing.TB, n int) {
	t.Helper()
	for _, w := range e.watch {
		fixture{rdb: w}.awaitSubscribers(t, e.name, n)
	}
}

// refuseRenewals has a server answer each renewal that it is not ready, until it is told to go on.
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

// commands counts the calls that all servers got, except for what rueidis sends by itself and the looks of the test.
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

// ways in which servers die, and come back.
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

func TestQuorum(t *testing.T) {
	redistest.Parallel(t)
	e := newQuorumServers(t, 5)
	a, b := e.process(t, rlock.Options{}), e.process(t, rlock.Options{})
	require.Equal(t, e.name, a.Name())
	ctx, unlock, err := a.Lock(t.Context())
	require.NoError(t, err)
	e.awaitVotes(t, 5)
	var refusal *rlock.NotAcquiredError
	failed, none, err := b.TryLock(t.Context(), 0)
	require.ErrorAs(t, err, &refusal)
	require.NotEmpty(t, refusal.Holder)
	require.Greater(t, refusal.TTL, 25*time.Second)
	require.NotErrorIs(t, err, rlock.ErrUnreachable)
	require.Equal(t, t.Context(), failed)
	require.ErrorIs(t, none(), rlock.ErrNotHeld)
	require.ErrorContains(t, a.TryDo(t.Context(), 0, nothing), "held by this client")
	waiter := lockAsync(t, b)
	e.awaitSubscribers(t, 1)
	waiter.stillWaits(t)
	require.NoError(t, ctx.Err())
	require.NoError(t, unlock())
	require.Error(t, ctx.Err())
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
	got := waiter.get(t, soon)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
	require.NoError(t, a.Do(t.Context(), nothing))
	mine := errors.New("mine")
	require.ErrorIs(t, a.TryDo(t.Context(), time.Second, func(context.Context) error { return mine }), mine)
	e.awaitVotes(t, 0)
	e.awaitSubscribers(t, 0)
}

func nothing(context.Context) error { return nil }

// A member may be on a cluster: it learns of it in the first round. Names may differ.
func TestQuorumOfClusterClients(t *testing.T) {
	redistest.Parallel(t)
	cluster := redistest.StartCluster(t, 3, 0)
	b := fixture{rdb: cluster.Client(t), name: redistest.Name(t)}
	names := []string{b.name + "a", b.name + "b", b.name + "c"}
	voter := func() *rlock.QuorumMutex {
		var members []rlock.Locker
		for _, name := range names {
			members = append(members, newClient(t, b.rdb).Mutex(name))
		}
		return rlock.Quorum(members...)
	}
	votes := func(n int) {
		t.Helper()
		redistest.Eventually(t, soon, func() bool {
			have := 0
			for _, name := range names {
				if b.exists(t, name) {
					have++
				}
			}
			return have == n
		}, "so many names are held")
	}
	one, two := voter(), voter()
	_, unlock, err := one.Lock(t.Context())
	require.NoError(t, err)
	require.Equal(t, names[0], one.Name())
	votes(3)
	waiter := lockAsync(t, two)
	redistest.Eventually(t, soon, func() bool { return redistest.Started("quorum.(*election).await(") == 1 }, "it waits")
	sleep(200 * time.Millisecond) // until it is told by messages alone
	waiter.stillWaits(t)
	require.NoError(t, unlock())
	got := waiter.get(t, soon)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
	votes(0)
}

// The methods of a quorum report members that it cannot work with.
func TestQuorumRefusesMembers(t *testing.T) {
	b := newFixture(t)
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
}

// The levels of a section are counted in the process: a re-entry sends nothing.
func TestQuorumReentry(t *testing.T) {
	redistest.Parallel(t)
	e := newQuorumServers(t, 3)
	v := e.process(t, rlock.Options{})
	outer, unlockOuter, err := v.Lock(t.Context())
	require.NoError(t, err)
	e.awaitVotes(t, 3)
	before := e.commands(t)
	slices.Reverse(v.clients)
	inner, unlockInner, err := v.handle().Lock(outer) // another handle, in another order
	require.NoError(t, err)
	again, unlockAgain, err := v.TryLock(inner, 0)
	require.NoError(t, err)
	sleep(300 * time.Millisecond) // the count in Redis of other locks follows in that time
	require.NoError(t, unlockInner())
	require.Error(t, again.Err(), "it is a child")
	sleep(300 * time.Millisecond)
	require.NoError(t, unlockAgain())
	require.Equal(t, before, e.commands(t))
	require.NoError(t, outer.Err())

	_, _, err = v.TryLock(rlock.Detach(outer), 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.Equal(t, before, e.commands(t), "the process has the lock, so nobody is asked")
	escaped := context.WithoutCancel(outer)
	require.NoError(t, unlockOuter())
	e.awaitVotes(t, 0)
	require.NoError(t, v.Do(escaped, func(context.Context) error { // its section is over, so this competes
		require.Positive(t, e.votes(t))
		return nil
	}))
	e.awaitVotes(t, 0)
}

// A section of a quorum is none of a lock of one server, whatever their names: owner and token are of the lock around it. A member that is locked in it
// waits for itself, and says so.
func TestQuorumIsNoLockOfOneServer(t *testing.T) {
	redistest.Parallel(t)
	e := newQuorumServers(t, 3)
	v := e.process(t, rlock.Options{})
	fenced := newFixture(t).FencedMutex(e.name)
	ctx, unlockFenced, err := fenced.Lock(t.Context())
	require.NoError(t, err)
	token, ok := rlock.FencingToken(ctx, e.name)
	require.True(t, ok)
	inner, unlock, err := v.Lock(ctx)
	require.NoError(t, err)
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
}

// Goroutines of one process are let in one after the other, by asking nobody but for their own turn.
func TestQuorumInOneProcess(t *testing.T) {
	redistest.Parallel(t)
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
				inside++ // the race detector is the witness
				return nil
			}))
		})
	}
	wg.Wait()
	require.Equal(t, n, inside)
	e.awaitVotes(t, 0)
	calls := e.commands(t) - before
	require.LessOrEqual(t, calls, int64(n+1)*3*8, "a script with three commands for each Lock and unlock, on each server")
}

// G2, G7: members with a lease are not renewed, unless a level without one is inside.
func TestQuorumWithLease(t *testing.T) {
	redistest.Parallel(t)
	const lease = shortWatchdog
	e := newQuorumServers(t, 3)
	v := e.process(t, rlock.Options{WatchdogTimeout: lease}, rlock.WithLease(lease))
	began := time.Now()
	outer, unlock, err := v.Lock(t.Context())
	require.NoError(t, err)
	e.awaitVotes(t, 3)
	sleep(100 * time.Millisecond) // the last answer has been worked in
	inner, unlockInner, err := v.handle().Lock(outer)
	require.NoError(t, err)
	select {
	case <-outer.Done():
		require.Fail(t, "lost", "%v", context.Cause(outer))
	case <-time.After(lease * 3 / 2):
	}
	require.NoError(t, inner.Err())
	require.NoError(t, unlockInner())
	last := time.Now()
	<-outer.Done()
	require.Less(t, time.Since(last), lease+soon)
	var loss *rlock.LostError
	require.ErrorAs(t, context.Cause(outer), &loss)
	require.Equal(t, rlock.LostExpired, loss.Reason)
	require.EqualError(t, loss, `rlock: "`+e.name+`": lost: its lease of fixed length ended`)
	_, _, err = v.Lock(outer)
	require.ErrorIs(t, err, rlock.ErrLost, "until its unlock")
	require.ErrorIs(t, unlock(), rlock.ErrLost)
	require.Greater(t, time.Since(began), lease*3/2)
	e.awaitVotes(t, 0)
}

// One of five servers dead, two dead: a Lock and its unlock take as long as with five. It does not matter how they died. The two
// take turns, so that both see the same load.
func TestQuorumLatencyBesideTheDead(t *testing.T) {
	// rueidis allocates a megabyte for a connection, also for one that is closed at once: that takes longer than a section.
	small := func(o *rueidis.ClientOption) { o.ReadBufferEachConn, o.WriteBufferEachConn = 4<<10, 4<<10 }
	intact := newQuorumServers(t, 5)
	all := intact.process(t, rlock.Options{})
	for name, death := range deaths {
		t.Run(name, func(t *testing.T) {
			e := newQuorumServers(t, 5)
			some := e.processBy(t, small, rlock.Options{})
			compare := func(dead int) {
				var took [2][]time.Duration
				for range 50 {
					for i, v := range []quorumProcess{all, some} {
						began := time.Now()
						require.NoError(t, v.Do(t.Context(), nothing))
						took[i] = append(took[i], time.Since(began))
					}
				}
				slices.Sort(took[0])
				slices.Sort(took[1])
				five, fewer := took[0][25], took[1][25]
				t.Logf("a section with 5 of 5 servers %v, with %d dead %v", five, dead, fewer)
				require.Less(t, fewer, 5*five+5*time.Millisecond)
			}
			compare(0)
			death.kill(e, 1)
			compare(1)
			death.kill(e, 3)
			compare(2)
			death.back(e, 1)
			death.back(e, 3)
			e.awaitVotes(t, 0)
		})
	}
}

// G2: three of five servers dead: the holder is told before a lease can end, and whoever wants the lock is told that it cannot be
// had.
func TestQuorumLossIsTold(t *testing.T) {
	redistest.Parallel(t)
	for name, death := range deaths {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			const watchdog = shortWatchdog
			e := newQuorumServers(t, 5)
			a, b := e.process(t, rlock.Options{WatchdogTimeout: watchdog}), e.process(t, rlock.Options{WatchdogTimeout: watchdog})
			ctx, unlock, err := a.Lock(t.Context())
			require.NoError(t, err)
			e.awaitVotes(t, 5)
			for i := range 3 {
				death.kill(e, i)
			}
			died := time.Now()
			waiter := lockAsync(t, b)
			<-ctx.Done()
			told := time.Since(died)
			require.Less(t, told, watchdog+soon)
			require.Greater(t, told, watchdog/3)
			var loss *rlock.LostError
			require.ErrorAs(t, context.Cause(ctx), &loss)
			require.Equal(t, rlock.LostExpired, loss.Reason)
			require.EqualError(t, loss, `rlock: "`+e.name+`": lost: fewer than 3 of 5 servers renewed it in time`)
			require.ErrorIs(t, unlock(), rlock.ErrLost)

			began := time.Now()
			_, _, err = a.TryLock(t.Context(), 0)
			require.ErrorIs(t, err, rlock.ErrUnreachable)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.Less(t, time.Since(began), time.Second+soon)
			got := waiter.get(t, 10*time.Second)
			require.ErrorIs(t, got.err, rlock.ErrUnreachable)
			t.Logf("told after %v; the other Lock failed after %v: %v", told, got.at.Sub(died), got.err)
			require.Less(t, got.at.Sub(died), 5*time.Second+soon)
			for i := range 3 {
				death.back(e, i)
			}
			e.awaitVotes(t, 0)
			redistest.Eventually(t, 10*time.Second, func() bool {
				return b.TryDo(t.Context(), time.Second, nothing) == nil
			}, "the lock can be had when the servers are back")
		})
	}
}

// A server that lost its data, or was away, gets its share of the hold back. Meanwhile nobody else gets a majority.
func TestQuorumHeals(t *testing.T) {
	redistest.Parallel(t)
	for name, death := range deaths {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			const watchdog = shortWatchdog
			e := newQuorumServers(t, 3)
			a, b := e.process(t, rlock.Options{WatchdogTimeout: watchdog}), e.process(t, rlock.Options{WatchdogTimeout: watchdog})
			ctx, unlock, err := a.Lock(t.Context())
			require.NoError(t, err)
			e.awaitVotes(t, 3)
			sleep(watchdog / 2) // until all are renewed: if one was slow to answer, it is known then that it has had the hold meanwhile
			w := e.watch[1]
			fields, err := w.Do(t.Context(), w.B().Hkeys().Key(e.name).Build()).AsStrSlice()
			require.NoError(t, err)
			healed := func(what string) {
				t.Helper()
				redistest.Eventually(t, 2*watchdog, func() bool {
					has, err := w.Do(t.Context(), w.B().Hexists().Key(e.name).Field(fields[0]).Build()).AsBool()
					return err == nil && has
				}, what)
				sleep(watchdog / 2) // until the others are renewed: it is known then that they had it while this one had not
				require.NoError(t, ctx.Err(), "%v", context.Cause(ctx))
			}
			stop := make(chan struct{})
			var others sync.WaitGroup
			others.Go(func() {
				for ctx.Err() == nil {
					_, _, err := b.TryLock(t.Context(), 50*time.Millisecond)
					assert.ErrorIs(t, err, rlock.ErrNotAcquired)
					select { // one that asked all the time would have the share that is missing most of the time, on a busy machine
					case <-stop:
						return
					case <-time.After(50 * time.Millisecond):
					}
				}
			})
			require.NoError(t, w.Do(t.Context(), w.B().Flushall().Build()).Error())
			healed("flushed")
			death.kill(e, 1)
			sleep(watchdog + 100*time.Millisecond) // its share expires
			death.back(e, 1)
			healed("back")
			close(stop)
			others.Wait()
			require.NoError(t, unlock())
			e.awaitVotes(t, 0)
		})
	}
}

// G2, G8: when a majority of the servers has forgotten a hold, its holder is told by the next renewal, or by its unlock.
func TestQuorumIsForgotten(t *testing.T) {
	redistest.Parallel(t)
	const watchdog = shortWatchdog
	e := newQuorumServers(t, 3)
	v := e.process(t, rlock.Options{WatchdogTimeout: watchdog})
	forget := func() { // in one moment, as far as the holder can see: otherwise the first might be healed before the second forgets
		defer e.refuseRenewals(0)()
		defer e.refuseRenewals(1)()
		for _, w := range e.watch[:2] {
			require.NoError(t, w.Do(t.Context(), w.B().Del().Key(e.name).Build()).Error())
		}
	}
	ctx, unlock, err := v.Lock(t.Context())
	require.NoError(t, err)
	e.awaitVotes(t, 3)
	forget()
	select {
	case <-ctx.Done():
	case <-time.After(watchdog):
		require.Fail(t, "not told")
	}
	var loss *rlock.LostError
	require.ErrorAs(t, context.Cause(ctx), &loss)
	require.Equal(t, rlock.LostGone, loss.Reason)
	require.ErrorIs(t, unlock(), rlock.ErrLost)
	e.awaitVotes(t, 0)

	_, unlock, err = v.Lock(t.Context())
	require.NoError(t, err)
	e.awaitVotes(t, 3)
	forget()
	err = unlock()
	require.ErrorIs(t, err, rlock.ErrNotHeld)
	require.ErrorIs(t, err, rlock.ErrLost)
	e.awaitVotes(t, 0)
}

// G2: a server that forgot the hold, and was given it again, says nothing of the time before. If another one had forgotten it by then, the
// unlock says so, though a majority had the hold a moment before.
func TestQuorumIsForgottenByOneAfterTheOther(t *testing.T) {
	redistest.Parallel(t)
	const watchdog = 2 * shortWatchdog
	e := newQuorumServers(t, 3)
	v := e.process(t, rlock.Options{WatchdogTimeout: watchdog})
	_, unlock, err := v.Lock(t.Context())
	require.NoError(t, err)
	e.awaitVotes(t, 3)
	sleep(watchdog / 2) // until all are renewed
	e.refuseRenewals(1)
	for _, w := range e.watch[:2] {
		require.NoError(t, w.Do(t.Context(), w.B().Del().Key(e.name).Build()).Error())
	}
	e.awaitVotes(t, 2)
	err = unlock()
	require.ErrorIs(t, err, rlock.ErrNotHeld)
	require.ErrorIs(t, err, rlock.ErrLost)
	e.awaitVotes(t, 0)
}

// Servers that forget the hold in turn, each after all others were found to have it, are no loss: all along a majority had it.
func TestQuorumIsForgottenInTurn(t *testing.T) {
	redistest.Parallel(t)
	const watchdog = shortWatchdog
	e := newQuorumServers(t, 3)
	v := e.process(t, rlock.Options{WatchdogTimeout: watchdog})
	ctx, unlock, err := v.Lock(t.Context())
	require.NoError(t, err)
	for _, w := range e.watch {
		e.awaitVotes(t, 3)
		sleep(2 * watchdog / 3) // until all are renewed
		require.NoError(t, w.Do(t.Context(), w.B().Del().Key(e.name).Build()).Error())
	}
	e.awaitVotes(t, 3)
	sleep(2 * watchdog / 3)
	require.NoError(t, ctx.Err())
	require.NoError(t, unlock())
	e.awaitVotes(t, 0)
}
