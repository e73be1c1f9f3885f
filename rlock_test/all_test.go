package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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

// mutexes makes a lock of the client for each name.
func mutexes(c *rlock.Client, names ...string) (all []rlock.Locker) {
	for _, name := range names {
		all = append(all, c.Mutex(name))
	}
	return all
}

// numbered are n names.
func numbered(base string, n int) (names []string) {
	for i := range n {
		names = append(names, base+":"+strconv.Itoa(i))
	}
	return names
}

// A thousand locks are one command each way, and 5,000 are five.
func TestAllCosts(t *testing.T) {
	s := redistest.Start(t)
	rdb, watch := s.Client(t, oneConn), s.Client(t)
	c := newClient(t, rdb)
	m := rlock.All(mutexes(c, numbered("load", 2)...)...)
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil })) // the scripts
	for n, calls := range map[int]int64{2: 1, 1000: 1, 5000: 5} {
		names := numbered("cost"+strconv.Itoa(n), n)
		m := rlock.All(mutexes(c, names...)...)
		before := redistest.Commands(t, watch)
		_, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		locked := redistest.Commands(t, watch)
		require.Equal(t, calls, locked["evalsha"]-before["evalsha"], "Lock of %d", n)
		require.EqualValues(t, n, bench{rdb: watch}.size(t))
		require.NoError(t, unlock())
		after := redistest.Commands(t, watch)
		require.Equal(t, calls, after["evalsha"]-locked["evalsha"], "unlock of %d", n)
		require.Zero(t, bench{rdb: watch}.size(t))
		for name, k := range after {
			if name != "evalsha" && name != "info" && name != "dbsize" && name != "ping" && name != "command" {
				require.LessOrEqual(t, k-before[name], 2*int64(n), name) // by the scripts
			}
		}
	}
}

func (b bench) size(t testing.TB) int64 {
	t.Helper()
	n, err := b.do(t, "DBSIZE").AsInt64()
	require.NoError(t, err)
	return n
}

// A holder of all keeps those out who want one of them, and the other way round. A refusal names the lock and its holder,
// and leaves no key.
func TestAllAndSingleHoldersExcludeEachOther(t *testing.T) {
	b := newBench(t)
	other := newClient(t, b.rdb)
	names := numbered(b.name, 3)
	m := rlock.All(mutexes(b.Client, names...)...)
	ctx, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)
	for _, name := range names {
		n, err := b.Mutex(name).HoldCount(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		_, _, err = other.Mutex(name).TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
	}
	require.NoError(t, unlock())
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)

	for i, name := range names {
		held, unlock, err := other.Mutex(name).Lock(context.Background())
		require.NoError(t, err)
		back, nothing, err := m.TryLock(t.Context(), 0)
		var refused *rlock.NotAcquiredError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, name, refused.Name)
		require.Equal(t, rlock.Owner(held), refused.Holder)
		require.Positive(t, refused.TTL)
		require.Equal(t, t.Context(), back)
		require.ErrorIs(t, nothing(), rlock.ErrNotHeld)
		for k, name := range names {
			require.Equal(t, k == i, b.exists(t, name))
		}
		require.NoError(t, unlock())
	}
}

// G3, G4: while it waits for one lock it holds none of the others and sends nothing. The unlock of that one wakes it.
func TestAllWaitsWithNothingHeld(t *testing.T) {
	redistest.Parallel(t)
	for i := range 3 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			redistest.Parallel(t)
			s := redistest.Start(t)
			b := bench{rdb: s.Client(t)}
			names := numbered("wait", 3)
			c, other := newClient(t, s.Client(t)), newClient(t, b.rdb)
			loadScripts(t, other)
			_, unlock, err := other.Mutex(names[i]).Lock(context.Background())
			require.NoError(t, err)
			p := lockAsync(t, rlock.All(mutexes(c, names...)...))
			b.awaitSubscribers(t, names[i], 1)
			redistest.Eventually(t, atMost, func() bool { return b.exists(t, "rlock_queue:{"+names[i]+"}") }, "it is in line")
			before := scriptCalls(t, b)
			for k, name := range names {
				if k != i {
					require.NoError(t, other.Mutex(name).Do(context.Background(), func(context.Context) error { return nil }))
				}
			}
			pass(200 * time.Millisecond)
			require.Equal(t, before+4, scriptCalls(t, b), "it sends nothing")
			p.stillWaits(t)
			require.NoError(t, unlock())
			got := p.get(t, soon)
			require.NoError(t, got.err)
			require.EqualValues(t, 3, b.size(t))
			require.NoError(t, got.unlock())
			require.Zero(t, b.size(t))
		})
	}
}

// TryLock is bounded by its wait in all, and so is the ctx of a Lock.
func TestAllGivesUpWaiting(t *testing.T) {
	redistest.Parallel(t)
	b := newBench(t)
	other := newClient(t, b.rdb)
	names := numbered(b.name, 3)
	m := rlock.All(mutexes(b.Client, names...)...)
	_, unlock, err := other.Mutex(names[1]).Lock(context.Background())
	require.NoError(t, err)
	began := time.Now()
	_, _, err = m.TryLock(context.Background(), 150*time.Millisecond)
	var refused *rlock.NotAcquiredError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, names[1], refused.Name)
	require.GreaterOrEqual(t, refused.Waited, 150*time.Millisecond)
	require.Less(t, time.Since(began), soon)
	require.ErrorIs(t, m.TryDo(context.Background(), 0, func(context.Context) error { panic("not held") }), rlock.ErrNotAcquired)

	p := lockAsync(t, m)
	b.awaitSubscribers(t, names[1], 1)
	p.cancel()
	got := p.get(t, soon)
	require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
	require.ErrorIs(t, got.err, context.Canceled)
	require.NoError(t, unlock())
	redistest.Eventually(t, atMost, func() bool {
		return !b.exists(t, names[0]) && !b.exists(t, names[1]) && !b.exists(t, "rlock_queue:{"+names[1]+"}")
	}, "nothing is left")
}

// crowd is who wants what: names, and the clients that lock them.
type crowd struct {
	names   []string
	lock    func(client int, names []string) []rlock.Locker // of one of the clients
	clients int
	enough  func() bool // what it is disturbed by; nil: it is not
}

// G1: many goroutines of several clients take some of the locks, in any order, or one alone. Nobody is inside together with another,
// on any name, everybody gets in, and nothing is left. Some give up at a random moment.
func (c crowd) run(t *testing.T, goroutines int, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), atMost)
	defer cancel()
	inside := make([]atomic.Int32, len(c.names))
	var all, alone, gaveUp atomic.Int64
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 1))
			for sections := 0; ctx.Err() == nil && (time.Now().Before(end) || sections < 2 || c.enough != nil && !c.enough()); {
				which := random.Perm(len(c.names))[:1+random.IntN(len(c.names))]
				var names []string
				for _, i := range which {
					names = append(names, c.names[i])
				}
				lockers := c.lock(g%c.clients, names)
				var m interface {
					Do(context.Context, func(context.Context) error) error
				} = rlock.All(lockers...)
				ctx, cancel := context.WithCancel(ctx)
				if random.IntN(4) == 0 {
					time.AfterFunc(time.Duration(random.IntN(3000))*time.Microsecond, cancel)
				}
				entered := false
				err := m.Do(ctx, func(ctx context.Context) error {
					entered = true
					for _, i := range which {
						assert.EqualValues(t, 1, inside[i].Add(1), "alone in %s", c.names[i])
					}
					pass(time.Duration(random.IntN(200)) * time.Microsecond)
					for _, i := range which {
						inside[i].Add(-1)
					}
					return nil
				})
				switch {
				case !entered:
					assert.ErrorIs(t, err, rlock.ErrNotAcquired)
					assert.ErrorIs(t, err, context.Canceled)
					gaveUp.Add(1)
				case len(which) == 1:
					alone.Add(1)
				default:
					all.Add(1)
				}
				if entered {
					assert.NoError(t, err)
					sections++
				}
				cancel()
			}
		})
	}
	wg.Wait()
	t.Logf("%d sections of several, %d of one, %d gave up", all.Load(), alone.Load(), gaveUp.Load())
	require.NoError(t, ctx.Err(), "not everybody got in")
	require.Positive(t, all.Load())
	require.Positive(t, alone.Load())
	require.Positive(t, gaveUp.Load())
}

// clear waits until a server has no key and no subscription.
func (b bench) clear(t *testing.T) {
	t.Helper()
	redistest.Eventually(t, rlock.DefaultWatchdogTimeout/2, func() bool { return b.size(t) == 0 }, "no key is left, and none before its lease ends")
	for _, what := range []string{"CHANNELS", "SHARDCHANNELS"} {
		redistest.Eventually(t, atMost, func() bool {
			channels, err := b.do(t, "PUBSUB", what).AsStrSlice()
			if _, refused := rueidis.IsRedisErr(err); refused { // SHARDCHANNELS, before Redis 7
				return what != "CHANNELS"
			}
			return err == nil && len(channels) == 0
		}, "no channel is left")
	}
}

// G1, G4, G5, on one server: two clients in 24 goroutines.
func TestAllUnderContention(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	clients := []*rlock.Client{newClient(t, s.Client(t)), newClient(t, s.Client(t))}
	crowd{
		names: numbered("crowd", 5), clients: 2,
		lock: func(client int, names []string) []rlock.Locker { return mutexes(clients[client], names...) },
	}.run(t, 24, 3*time.Second)
	bench{rdb: s.Client(t)}.clear(t)
}

// G1, G4 to G6: the same while the connections of both clients are cut all the time. Between two cuts there are many replies, or
// else a slow machine would cut every try of a call.
func TestAllUnderContentionAndCuts(t *testing.T) {
	redistest.Parallel(t)
	const many = 60
	s := redistest.Start(t)
	var clients []*rlock.Client
	var proxies []*redistest.Proxy
	var replies [2]atomic.Int64 // since the last cut
	for i := range replies {
		p := redistest.StartProxy(t, s.Addr())
		p.OnReply(func([]string) redistest.Action {
			replies[i].Add(1)
			return redistest.Pass
		})
		proxies, clients = append(proxies, p), append(clients, newClient(t, redistest.Dial(t, p.Addr())))
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	var cuts atomic.Int64
	go func() { // ends when the crowd has
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				if i := cuts.Load() % 2; replies[i].Load() >= many {
					replies[i].Store(0)
					proxies[i].CutAll()
					cuts.Add(1)
				}
			}
		}
	}()
	crowd{
		names: numbered("crowd", 4), clients: 2, enough: func() bool { return cuts.Load() > 10 },
		lock: func(client int, names []string) []rlock.Locker { return mutexes(clients[client], names...) },
	}.run(t, 12, 3*time.Second)
	close(stop)
	<-stopped
	require.Greater(t, cuts.Load(), int64(10))
	bench{rdb: s.Client(t)}.clear(t)
}

// G1, G4, G5 on a cluster, where two of the names share a slot.
func TestAllUnderContentionOnACluster(t *testing.T) {
	redistest.Parallel(t)
	cl := redistest.StartCluster(t, 3, 0)
	clients := []*rlock.Client{newClient(t, cl.Client(t)), newClient(t, cl.Client(t))}
	crowd{
		names: []string{"a{1}", "b{1}", "c{2}", "d{3}", "e"}, clients: 2,
		lock: func(client int, names []string) []rlock.Locker { return mutexes(clients[client], names...) },
	}.run(t, 16, 3*time.Second)
	for _, node := range cl.Nodes() {
		bench{rdb: node.Client(t, redistest.Single)}.clear(t)
	}
}

// G1, G4, G5 with locks of two servers, which two processes know by clients of their own.
func TestAllUnderContentionOnTwoServers(t *testing.T) {
	redistest.Parallel(t)
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
	var clients [2][2]*rlock.Client
	for i := range clients {
		for k, s := range servers {
			clients[i][k] = newClient(t, s.Client(t))
		}
	}
	names := numbered("crowd", 5)
	crowd{names: names, clients: 2, lock: func(client int, some []string) (all []rlock.Locker) {
		for _, name := range some {
			all = append(all, clients[client][slices.Index(names, name)%2].Mutex(name))
		}
		return all
	}}.run(t, 16, 3*time.Second)
	for _, s := range servers {
		bench{rdb: s.Client(t)}.clear(t)
	}
}

// Locks that are never free together: each of two has goroutines of two processes in line all the time, so it goes from
// one to the next. Whoever wants both gets them all the same.
func TestAllOfLocksThatAreNeverFree(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	names := numbered("busy", 2)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var sections atomic.Int64
	for range 2 {
		c := newClient(t, s.Client(t))
		for _, name := range names {
			for range 3 {
				wg.Go(func() {
					for ctx.Err() == nil {
						_ = c.Mutex(name).Do(ctx, func(context.Context) error {
							pass(2 * time.Millisecond)
							sections.Add(1)
							return nil
						})
					}
				})
			}
		}
	}
	redistest.Eventually(t, atMost, func() bool { return sections.Load() > 20 }, "they are busy")
	m := rlock.All(mutexes(newClient(t, s.Client(t)), names...)...)
	for range 3 {
		p := lockAsync(t, m)
		got := p.get(t, 15*time.Second)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
	}
}

// G2, G8: the loss of one ends the ctx, and the unlock says which one it was. The others are released.
func TestAllLosesOne(t *testing.T) {
	redistest.Parallel(t)
	b := newBench(t, rlock.Options{WatchdogTimeout: shortWatchdog})
	names := numbered(b.name, 3)
	ctx, unlock, err := rlock.All(mutexes(b.Client, names...)...).Lock(context.Background())
	require.NoError(t, err)
	pass(2 * shortWatchdog)
	require.NoError(t, ctx.Err(), "all are renewed")
	b.do(t, "DEL", names[1])
	<-ctx.Done()
	var loss *rlock.LostError
	require.ErrorAs(t, context.Cause(ctx), &loss)
	require.Equal(t, names[1], loss.Name)
	require.Equal(t, rlock.LostGone, loss.Reason)
	_, _, err = b.Mutex(names[1]).Lock(ctx)
	require.ErrorIs(t, err, rlock.ErrLost)
	err = unlock()
	require.ErrorIs(t, err, rlock.ErrLost)
	require.ErrorIs(t, err, rlock.ErrNotHeld)
	require.ErrorContains(t, err, names[1])
	require.NotContains(t, err.Error(), names[0])
	for _, name := range names {
		require.False(t, b.exists(t, name))
	}

	err = rlock.All(b.Mutex(names[0]), b.Mutex(names[2], rlock.WithLease(100*time.Millisecond))).Do(context.Background(),
		func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
	require.ErrorAs(t, err, &loss)
	require.Equal(t, names[2], loss.Name, "each member has the lease of its handle")
	require.False(t, b.exists(t, names[0]))
}

// Handles that are named twice count once; other handles of a lock re-enter it, and so do the locks that the ctx holds. A MultiMutex
// stands for its members.
func TestAllReenters(t *testing.T) {
	b := newBench(t)
	names := numbered(b.name, 4)
	first := b.Mutex(names[0])
	inner := rlock.All(first, b.Mutex(names[1]))
	outer, unlockOuter, err := b.Mutex(names[3]).Lock(context.Background())
	require.NoError(t, err)
	m := rlock.All(first, first, inner, b.FencedMutex(names[1]), b.Mutex(names[2]), b.Mutex(names[3]))
	counts := func(ctx context.Context, want ...int64) {
		t.Helper()
		for i, name := range names {
			var have int64
			for _, n := range b.fields(t, name) {
				have += n
			}
			require.Equal(t, want[i], have, name)
			n, err := b.Mutex(name).HoldCount(ctx)
			require.NoError(t, err)
			require.EqualValues(t, want[i], n, name)
		}
	}
	ctx, unlock, err := m.Lock(outer)
	require.NoError(t, err)
	counts(ctx, 1, 2, 1, 2)
	_, ok := rlock.FencingToken(ctx, names[1])
	require.True(t, ok)
	ctx2, unlock2, err := m.Lock(ctx)
	require.NoError(t, err)
	counts(ctx2, 2, 4, 2, 3)
	_, _, err = m.TryLock(rlock.Detach(ctx), 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.NoError(t, unlock(), "in any order: the locks are held on")
	require.ErrorIs(t, ctx2.Err(), context.Canceled, "as a child of the other ctx")
	counts(context.WithoutCancel(ctx2), 1, 2, 1, 2)
	require.NoError(t, unlock2())
	counts(outer, 0, 0, 0, 1)
	require.NoError(t, unlockOuter())
	b.do(t, "DEL", "redisson_lock_token:{"+names[1]+"}")
}

// Fenced members have tokens, each of its own counter.
func TestAllFenced(t *testing.T) {
	b := newBench(t)
	x, y := b.FencedMutex(b.name+":x"), b.FencedMutex(b.name+":y")
	m := rlock.All(y, b.Mutex(b.name+":plain"), x)
	require.NoError(t, x.Do(context.Background(), func(context.Context) error { return nil }))
	for want := int64(1); want < 4; want++ {
		require.NoError(t, m.Do(context.Background(), func(ctx context.Context) error {
			token, ok := x.FencingToken(ctx)
			require.True(t, ok)
			require.Equal(t, want+1, token)
			token, ok = y.FencingToken(ctx)
			require.True(t, ok)
			require.Equal(t, want, token)
			_, ok = rlock.FencingToken(ctx, b.name+":plain")
			require.False(t, ok)
			return nil
		}))
	}
	b.do(t, "DEL", "redisson_lock_token:{"+x.Name()+"}", "redisson_lock_token:{"+y.Name()+"}")
}

// G4: the one call that releases all wakes the waiters of each: the next of this process has its lock at once, one of another
// process is given it, and one that listens is told.
func TestAllWakesTheWaitersOfEach(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	b := bench{Client: newClient(t, s.Client(t)), rdb: s.Client(t)}
	other, deaf := newClient(t, s.Client(t)), newClient(t, s.Client(t), rlock.Options{HandOff: rlock.HandOff{Most: -1}})
	loadScripts(t, other)
	names := numbered("wake", 5)
	m := rlock.All(append(mutexes(b.Client, names[:4]...), b.FencedMutex(names[4]))...)
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
	_, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)
	before := scriptCalls(t, b)
	local := lockAsync(t, b.Mutex(names[0]))
	remote := lockAsync(t, other.Mutex(names[1]))
	told := lockAsync(t, deaf.Mutex(names[2]))
	fenced := lockAsync(t, b.FencedMutex(names[4]))
	for _, i := range []int{0, 1, 2, 4} {
		b.awaitSubscribers(t, names[i], 1)
	}
	for _, i := range []int{0, 1, 4} {
		redistest.Eventually(t, atMost, func() bool { return b.exists(t, "rlock_queue:{"+names[i]+"}") }, "in line")
	}
	before += 4 * attempts
	redistest.Eventually(t, atMost, func() bool { return scriptCalls(t, b) == before && waiting() == 4 }, "all sleep")
	require.NoError(t, unlock())
	var unlocks []rlock.UnlockFunc
	for _, p := range []pending{local, remote, told, fenced} {
		got := p.get(t, soon)
		require.NoError(t, got.err)
		if p.result == fenced.result {
			token, ok := rlock.FencingToken(got.ctx, names[4])
			require.True(t, ok)
			require.EqualValues(t, 3, token)
		}
		unlocks = append(unlocks, got.unlock)
	}
	require.Equal(t, before+2, scriptCalls(t, b), "the unlock, and the one that was told asks")
	for _, unlock := range unlocks {
		require.NoError(t, unlock())
	}
}

// Members may be of any type, and are locked in the fixed order. What one says is handed on, and
// nothing is kept then.
func TestAllOfOtherLockers(t *testing.T) {
	b := newBench(t)
	f := &fakeLocker{name: b.name + ":b"}
	m := rlock.All(b.Mutex(b.name+":c"), f, b.Mutex(b.name+":a"), f)
	require.Equal(t, "All("+b.name+":a, "+b.name+":b, "+b.name+":c)", m.Name())
	require.NoError(t, m.Do(context.Background(), func(ctx context.Context) error {
		require.NotNil(t, ctx.Value(f), "its ctx is part of the section's")
		return nil
	}))
	require.Equal(t, 1, f.unlocked)
	g := &fakeLocker{name: b.name + ":d"}
	two := rlock.All(valueLocker{f, nil}, valueLocker{g, nil})
	require.NoError(t, two.Do(context.Background(), func(context.Context) error { return nil }), "not comparable")
	require.Equal(t, []int{2, 1}, []int{f.unlocked, g.unlocked})
	f.err = errors.New("out of order")
	require.ErrorIs(t, m.Do(context.Background(), func(context.Context) error { panic("not held") }), f.err)
	require.False(t, b.exists(t, b.name+":a"))
	require.False(t, b.exists(t, b.name+":c"))
}

type valueLocker struct {
	*fakeLocker

	_ []string
}

type fakeLocker struct {
	name     string
	err      error
	unlocked int
}

func (f *fakeLocker) Name() string { return f.name }
func (f *fakeLocker) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return f.TryLock(ctx, 1)
}

func (f *fakeLocker) TryLock(ctx context.Context, _ time.Duration) (context.Context, rlock.UnlockFunc, error) {
	if f.err != nil {
		return ctx, func() error { return rlock.ErrNotHeld }, f.err
	}
	return context.WithValue(ctx, f, f.name), func() error { f.unlocked++; return nil }, nil
}

// refusedAtTheEnd is a lock whose ctx is done in the moment after it was refused.
type refusedAtTheEnd struct {
	*rlock.Mutex

	end context.CancelFunc
}

func (r refusedAtTheEnd) TryLock(ctx context.Context, wait time.Duration) (context.Context, rlock.UnlockFunc, error) {
	defer r.end()
	return r.Mutex.TryLock(ctx, wait)
}

// The error names the end of the ctx, whenever that was.
func TestAllCancelledBetweenTwoAttempts(t *testing.T) {
	b := newBench(t)
	_, unlock, err := b.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	_, _, err = rlock.All(refusedAtTheEnd{newClient(t, b.rdb).Mutex(b.name), cancel}).Lock(ctx)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, unlock())
}

// Each call reports in one line, by its name, a member that cannot be locked.
func TestAllOfNothing(t *testing.T) {
	b := newBench(t)
	good := b.Mutex(b.name)
	rw := b.RWMutex(b.name)
	all := fmt.Sprintf("rlock: %q: ", "All("+b.name+", nil, x)")
	for want, m := range map[string]*rlock.MultiMutex{
		`rlock: "All()": no locks were given`:                      rlock.All(),
		all + "lock 2 of 3 is nil or empty":                        rlock.All(good, nil, b.Mutex("x")),
		all + "lock 1 of 3 is nil or empty":                        rlock.All((*rlock.Mutex)(nil), b.Mutex("x"), good),
		"lock 1 of 2 is nil or empty":                              rlock.All((*rlock.MultiMutex)(nil), good),
		"lock 2 of 4 is nil or empty":                              rlock.All(good, (*rlock.Upgradeable)(nil), nil, nil),
		"lock 2 of 5 is nil or empty":                              rlock.All(good, (*rlock.QuorumMutex)(nil), nil, nil, nil),
		"lock 1 of 4 is nil or empty":                              rlock.All((*fakeLocker)(nil), nil, nil, nil),
		"lock 1 of 3 is nil or empty":                              rlock.All(new(rlock.Mutex), good, good),
		"lock 2 of 6 is nil or empty":                              rlock.All(good, new(rlock.MultiMutex), nil, nil, nil, nil),
		"lock 1 of 5 is nil or empty":                              rlock.All(new(rlock.Upgradeable), nil, nil, nil, nil),
		"lock 1 of 6 is nil or empty":                              rlock.All(new(rlock.QuorumMutex), nil, nil, nil, nil, nil),
		"lock 1 of 1 is nil or empty":                              rlock.All(good, rlock.All(nil)),
		"the name is empty":                                        rlock.All(good, b.Mutex("")),
		`"": the name is empty`:                                    rlock.All(good, b.RWMutex("").Upgradeable()),
		"a quorum of 1":                                            rlock.All(good, rlock.Quorum(good)),
		`"` + b.name + `": WithLease is 0s, want at least 1ms`:     rlock.All(good, b.Mutex(b.name, rlock.WithLease(0))),
		"is given as a read/write lock and as one of another kind": rlock.All(good, rw.Read()),
		`"` + b.name + `" is given as a read/write lock`:           rlock.All(rw.Write(), b.FairMutex(b.name), rw.Read()),
		`"` + b.name + `" is given as a read/write lock and`:       rlock.All(rw.Upgradeable(), b.Mutex(b.name)),
	} {
		for _, err := range []error{
			m.Do(context.Background(), func(context.Context) error { panic("not held") }),
			m.TryDo(context.Background(), 0, func(context.Context) error { panic("not held") }),
		} {
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "\n")
		}
	}
	require.False(t, b.exists(t, b.name))
	require.Panics(t, func() { _ = new(rlock.MultiMutex).Name() })
	require.Panics(t, func() { _, _, _ = rlock.All(good).Lock(nil) }) //nolint:staticcheck // the mistake in question
}

// The order is that of the keys, which is the same in every process. Of one lock the writer is first, and then the reader that may
// upgrade: each lets the next ones in.
func TestAllInOneOrder(t *testing.T) {
	b := bareBench(t)
	a := newClient(t, b.rdb, rlock.Options{Prefix: b.name + ":a:"})
	z := newClient(t, b.rdb, rlock.Options{Prefix: b.name + ":z:"})
	for _, all := range [][]rlock.Locker{{a.Mutex("y"), z.Mutex("x")}, {z.Mutex("x"), a.Mutex("y")}} {
		require.Equal(t, "All(y, x)", rlock.All(all...).Name())
	}
	rw := a.RWMutex("x")
	u := rw.Upgradeable()
	for _, all := range [][]rlock.Locker{
		{rw.Read(), rw.Write()}, {rw.Write(), rw.Read()}, {rw.Read(), u, rw.Write()}, {u, rw.Write(), u}, {rw.Read(), u}, {u, rw.Upgradeable()},
	} {
		require.NoError(t, rlock.All(all...).TryDo(context.Background(), 0, func(ctx context.Context) error {
			held, err := rw.Read().IsHeld(ctx)
			require.NoError(t, err)
			require.True(t, held)
			held, err = rw.Write().IsHeld(ctx)
			require.NoError(t, err)
			require.Equal(t, slices.Contains(all, rlock.Locker(rw.Write())), held)
			if slices.Contains(all, rlock.Locker(u)) {
				_, unlock, err := u.Upgrade(ctx)
				require.NoError(t, err)
				require.NoError(t, unlock())
			}
			return nil
		}))
	}
	require.NoError(t, rw.Read().Do(context.Background(), func(ctx context.Context) error {
		_, _, err := rlock.All(u, a.Mutex("y")).Lock(ctx)
		require.ErrorIs(t, err, rlock.ErrUpgrade, "those that may upgrade could wait for that reader")
		return nil
	}))
}

// A key that holds something else is an error about that lock, and the others are not kept. The same for what users may not touch.
func TestAllWithABadMember(t *testing.T) {
	b := newBench(t)
	names := numbered(b.name, 3)
	m := rlock.All(mutexes(b.Client, names...)...)
	for want, cmd := range map[string][]string{
		"not a lock":        {"HSET", names[1], "customer", "7"},
		"holds another typ": {"SET", names[1], "7"},
	} {
		b.do(t, cmd...)
		err := m.Do(context.Background(), func(context.Context) error { panic("not held") })
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, fmt.Sprintf("rlock: %q: ", names[1]))
		require.False(t, b.exists(t, names[0]))
		require.False(t, b.exists(t, names[2]))
		b.do(t, "DEL", names[1])
	}
}

// newAllLeaver is a leaver whose callers want several locks.
func newAllLeaver(t *testing.T, way func(*rueidis.ClientOption)) (*leaver, []string, *rlock.MultiMutex) {
	t.Helper()
	h := newLeaver(t, way)
	names := append(numbered(h.name, 2), h.name)
	m := rlock.All(mutexes(h.Client, names...)...)
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil })) // the scripts
	return h, names, m
}

// G5, G6: the replies of the one call of a Lock and of its unlock are lost. Nothing counts twice, and nothing is left.
func TestAllRepliesLost(t *testing.T) {
	redistest.Parallel(t)
	bothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		redistest.Parallel(t)
		h, names, m := newAllLeaver(t, way)
		h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Cut))
		_, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		for _, name := range names {
			fields := h.fields(t, name)
			require.Len(t, fields, 1)
			for _, count := range fields {
				require.EqualValues(t, 1, count)
			}
		}
		h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Cut))
		require.NoError(t, unlock())
		require.Zero(t, bench{rdb: h.rdb}.size(t))
	})
}

// The reply of the unlock is lost while waiters of this process and of another stand for its locks: they get them.
func TestAllUnlockLostWithWaiters(t *testing.T) {
	redistest.Parallel(t)
	h, names, m := newAllLeaver(t, func(*rueidis.ClientOption) {})
	_, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)
	local := lockAsync(t, h.Mutex(names[0]))
	remote := lockAsync(t, newClient(t, h.rdb).Mutex(names[1]))
	for _, name := range names[:2] {
		redistest.Eventually(t, atMost, func() bool { return h.exists(t, "rlock_queue:{"+name+"}") }, "in line")
	}
	h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Cut))
	require.NoError(t, unlock())
	for _, p := range []pending{local, remote} {
		got := p.get(t, 5*time.Second)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
	}
	bench{rdb: h.rdb}.clear(t)
}

// G5: the caller leaves while the call is under way, which is answered later, or never. What it got is given back.
func TestAllIsCancelledWhileItAsks(t *testing.T) {
	redistest.Parallel(t)
	for name, answer := range map[string]func(h *leaver){
		"answered": func(h *leaver) { h.proxy.Release() },
		"silence":  func(*leaver) {},
		"cut off":  func(h *leaver) { h.proxy.CutAll() },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			h, names, m := newAllLeaver(t, func(*rueidis.ClientOption) {})
			p := h.asks(t, m)
			pass(200 * time.Millisecond) // time for an answer
			p.cancel()
			got := p.get(t, soon)
			require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
			require.ErrorIs(t, got.err, rlock.ErrUnreachable)
			require.ErrorIs(t, got.err, context.Canceled)
			answer(h)
			redistest.Eventually(t, rlock.DefaultWatchdogTimeout/2, func() bool {
				return !slices.ContainsFunc(names, func(name string) bool { return h.exists(t, name) })
			}, "given back, and not at the end of the lease")
			h.clear(t)
		})
	}
}

// G9: Close while it waits, while it asks a silent Redis, and while it holds.
func TestAllAndClose(t *testing.T) {
	redistest.Parallel(t)
	h, names, m := newAllLeaver(t, func(*rueidis.ClientOption) {})
	other := newClient(t, h.rdb)
	_, unlockOther, err := other.Mutex(names[0]).Lock(context.Background())
	require.NoError(t, err)
	waits := lockAsync(t, m)
	bench{rdb: h.rdb}.awaitSubscribers(t, names[0], 1)
	held, unlock, err := rlock.All(mutexes(h.Client, "x", "y")...).Lock(context.Background())
	require.NoError(t, err)
	silent := numbered("silent", 50)
	hold := redistest.Nth(1, "EVALSHA", redistest.Hold)
	h.proxy.OnReply(func(cmd []string) redistest.Action {
		if !slices.Contains(cmd, silent[0]) { // one of the waiter's, which may ask once more
			return redistest.Pass
		}
		return hold(cmd)
	})
	asks := lockAsync(t, rlock.All(mutexes(h.Client, silent...)...))
	redistest.Eventually(t, 5*time.Second, func() bool { return h.proxy.Held() == 1 }, "not answered")
	closed := async(func() error { h.Close(); return nil })
	require.ErrorIs(t, waits.get(t, soon).err, rlock.ErrClosed)
	require.ErrorIs(t, asks.get(t, soon).err, rlock.ErrClosed)
	<-held.Done()
	require.ErrorIs(t, context.Cause(held), rlock.ErrClosed)
	h.proxy.Release()
	require.NoError(t, within(t, closed, 10*time.Second))
	require.NoError(t, unlock(), "also after Close")
	require.NoError(t, unlockOther())
	_, _, err = m.TryLock(context.Background(), 0)
	require.ErrorIs(t, err, rlock.ErrClosed)
	bench{rdb: h.rdb}.clear(t)
}

// G5: an outage is none of a lock that is held, and takes as long as for one lock.
func TestAllWhenRedisIsDown(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	c := newClient(t, s.Client(t))
	m := rlock.All(mutexes(c, numbered("down", 50)...)...)
	_, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)
	s.Stop()
	began := time.Now()
	require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
	_, _, err = m.TryLock(context.Background(), 0)
	require.ErrorIs(t, err, rlock.ErrUnreachable)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	_, _, err = m.Lock(context.Background())
	require.ErrorIs(t, err, rlock.ErrUnreachable)
	require.NotErrorIs(t, err, rlock.ErrNotAcquired)
	require.Less(t, time.Since(began), 15*time.Second)
	s.Restart()
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
}

// While a slot moves, the keys of some locks are at one node and those of others at the next, and no script may touch them together:
// they are taken one by one.
func TestAllWhileASlotMoves(t *testing.T) {
	redistest.Parallel(t)
	cl := redistest.StartCluster(t, 3, 0)
	b := bench{Client: newClient(t, cl.Client(t)), rdb: cl.Client(t)}
	names := []string{"a{x}", "b{x}", "c{x}"}
	m := rlock.All(mutexes(b.Client, names...)...)
	_, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)

	slot := cl.Slot(t, names[0])
	from, to := cl.Owner(t, slot), cl.Nodes()[0]
	if from == to {
		to = cl.Nodes()[1]
	}
	src, dst := bench{rdb: from.Client(t, redistest.Single)}, bench{rdb: to.Client(t, redistest.Single)}
	id := func(n bench) string {
		v, err := n.do(t, "CLUSTER", "MYID").ToString()
		require.NoError(t, err)
		return v
	}
	number := strconv.Itoa(int(slot))
	require.NoError(t, dst.do(t, "CLUSTER", "SETSLOT", number, "IMPORTING", id(src)).Error())
	require.NoError(t, src.do(t, "CLUSTER", "SETSLOT", number, "MIGRATING", id(dst)).Error())
	require.NoError(t, src.do(t, "MIGRATE", "127.0.0.1", to.Addr()[len("127.0.0.1:"):], names[1], "0", "5000").Error())

	require.NoError(t, unlock())
	began := time.Now()
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
	require.Less(t, time.Since(began), soon)
	cl.MigrateSlot(t, slot, from, to) // goes on from there
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
	for _, name := range names {
		require.False(t, b.exists(t, name))
	}
}

// With Replicas each lock is confirmed by them, by a command of its own.
func TestAllWithReplicas(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t), rlock.Options{Replicas: 1, ReplicaTimeout: 50 * time.Millisecond})
	err := rlock.All(mutexes(c, "a", "b")...).Do(context.Background(), func(context.Context) error { panic("not replicated") })
	require.ErrorIs(t, err, rlock.ErrNotReplicated)
	require.Zero(t, bench{rdb: s.Client(t)}.size(t))
}

// WithMinHold keeps a lock taken after its section, not after a Lock that gave it back to wait for another one.
func TestAllGivesBackWithoutMinHold(t *testing.T) {
	redistest.Parallel(t)
	b := newBench(t)
	other := newClient(t, b.rdb)
	names := numbered(b.name, 2)
	m := rlock.All(b.Mutex(names[0], rlock.WithMinHold(time.Hour)), b.Mutex(names[1]))
	_, unlock0, err := other.Mutex(names[0]).Lock(context.Background())
	require.NoError(t, err)
	p := lockAsync(t, m)
	b.awaitSubscribers(t, names[0], 1)
	_, unlock1, err := other.Mutex(names[1]).Lock(context.Background())
	require.NoError(t, err)
	require.NoError(t, unlock0())
	b.awaitSubscribers(t, names[1], 1) // so it had the first one, and gave it back
	require.NoError(t, other.Mutex(names[0]).TryDo(context.Background(), soon, func(context.Context) error { return nil }))
	require.NoError(t, unlock1())
	got := p.get(t, soon)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
	require.Greater(t, b.pttl(t, names[0]), time.Minute)
	require.False(t, b.exists(t, names[1]))
	b.do(t, "DEL", names[0])
}
