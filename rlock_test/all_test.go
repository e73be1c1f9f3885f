package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// mutexes returns a Mutex of the client for each name.
func mutexes(c *rlock.Client, names ...string) (all []rlock.Locker) {
	for _, name := range names {
		all = append(all, c.Mutex(name))
	}
	return all
}

// numbered returns n names.
func numbered(base string, n int) (names []string) {
	for i := range n {
		names = append(names, base+":"+strconv.Itoa(i))
	}
	return names
}

// All sends one command to lock and one to unlock up to a thousand locks, and as many again for each further thousand.
func TestAllCosts(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		rdb, watch := s.Client(t, oneConn), s.Client(t)
		c := newClient(t, rdb)
		m := rlock.All(mutexes(c, numbered("load", 2)...)...)
		lockAndUnlock(t, m) // loads the scripts
		for n, calls := range map[int]int64{2: 1, 1000: 1, 2001: 3} {
			names := numbered("cost"+strconv.Itoa(n), n)
			m := rlock.All(mutexes(c, names...)...)
			before := redistest.Commands(t, watch)
			hold := locked(t, m)
			during := redistest.Commands(t, watch)
			require.Equal(t, calls, during["evalsha"]-before["evalsha"], "Lock of %d", n)
			require.EqualValues(t, n, fixture{rdb: watch}.size(t))
			require.NoError(t, hold.unlock())
			after := redistest.Commands(t, watch)
			require.Equal(t, calls, after["evalsha"]-during["evalsha"], "unlock of %d", n)
			require.Zero(t, fixture{rdb: watch}.size(t))
			for name, k := range after {
				if name != "evalsha" && name != "info" && name != "dbsize" && name != "ping" && name != "command" {
					require.LessOrEqual(t, k-before[name], 2*int64(n), name) // from the scripts
				}
			}
		}
	})
}

func (b fixture) size(t testing.TB) int64 {
	t.Helper()
	n := answer(b.do(t, "DBSIZE").AsInt64()).ok(t)
	return n
}

// clear waits until the server has no keys and no subscriptions.
func (b fixture) clear(t *testing.T) {
	t.Helper()
	redistest.Eventually(t, rlock.DefaultWatchdogTimeout/2, func() bool { return b.size(t) == 0 }, "all keys are gone before their lease ends")
	for _, what := range []string{"CHANNELS", "SHARDCHANNELS"} {
		redistest.Eventually(t, testTimeout, func() bool {
			channels, err := b.do(t, "PUBSUB", what).AsStrSlice()
			if _, refused := rueidis.IsRedisErr(err); refused { // SHARDCHANNELS, before Redis 7
				return what != "CHANNELS"
			}
			return err == nil && len(channels) == 0
		}, "no channel has a subscriber")
	}
}

// All keeps out callers that want one of its locks, and the holder of one lock keeps out All. The error names the lock and its
// holder, and a refused call leaves no key.
func TestAllAndSingleHoldersExcludeEachOther(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		other := newClient(t, b.rdb)
		names := numbered(b.name, 3)
		m := rlock.All(mutexes(b.Client, names...)...)
		all := locked(t, m)
		for _, name := range names {
			answer(b.Mutex(name).HoldCount(all.ctx)).is(t, 1)
			require.ErrorIs(t, other.Mutex(name).TryDo(t.Context(), 0, nothing), rlock.ErrNotAcquired)
		}
		require.NoError(t, all.unlock())
		for i, name := range names {
			one := locked(t, other.Mutex(name))
			_, _, err := m.TryLock(t.Context(), 0)
			var refused *rlock.NotAcquiredError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, name, refused.Name)
			require.Equal(t, rlock.Owner(one.ctx), refused.Holder)
			require.Positive(t, refused.TTL)
			for k, name := range names {
				require.Equal(t, k == i, b.exists(t, name))
			}
			require.NoError(t, one.unlock())
		}
	})
}

// G3, G4: while All waits for one lock it holds none of the others and sends no commands. The unlock of that lock wakes it.
func TestAllWaitsWithNothingHeld(t *testing.T) {
	for i := range 3 {
		redistest.RunVirtual(t, strconv.Itoa(i), func(t *testing.T) {
			s := redistest.Start(t)
			b := fixture{rdb: s.Client(t)}
			names := numbered("wait", 3)
			c, other := newClient(t, s.Client(t)), newClient(t, b.rdb)
			loadScripts(t, other)
			hold := locked(t, other.Mutex(names[i]))
			p := lockAsync(t, rlock.All(mutexes(c, names...)...))
			b.awaitSubscribers(t, names[i], 1)
			b.awaitQueued(t, names[i])
			before := scriptCalls(t, b)
			for k, name := range names {
				if k != i {
					lockAndUnlock(t, other.Mutex(name))
				}
			}
			sleep(200 * time.Millisecond)
			require.Equal(t, before+4, scriptCalls(t, b), "All sends no commands while it waits")
			p.stillWaits(t)
			unlocked := time.Now()
			require.NoError(t, hold.unlock())
			got := p.gets(t, testTimeout)
			requireTook(t, 0, unlocked, got.at)
			require.EqualValues(t, 3, b.size(t))
			require.NoError(t, got.unlock())
			require.Zero(t, b.size(t))
		})
	}
}

// G2, G8: the loss of one lock cancels the ctx. unlock returns an error that names this lock, and releases the others.
func TestAllLosesOne(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		names := numbered(b.name, 3)
		hold := locked(t, rlock.All(mutexes(b.Client, names...)...))
		b.do(t, "DEL", names[1])
		awaitEnd(t, hold.ctx)
		var loss *rlock.LostError
		require.ErrorAs(t, context.Cause(hold.ctx), &loss)
		require.Equal(t, names[1], loss.Name)
		require.Equal(t, rlock.LostGone, loss.Reason)
		require.ErrorIs(t, b.Mutex(names[1]).Do(hold.ctx, nothing), rlock.ErrLost)
		err := hold.unlock()
		require.ErrorIs(t, err, rlock.ErrLost)
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
		require.Equal(t, names[2], loss.Name, "each lock has the lease of its handle")
		require.False(t, b.exists(t, names[0]))
	})
}

// A handle that is given twice counts once. Other handles of the same lock re-enter it, as does any lock that the ctx already
// holds. A MultiMutex stands for its members.
func TestAllReenters(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		names := numbered(b.name, 4)
		first := b.Mutex(names[0])
		inner := rlock.All(first, b.Mutex(names[1]))
		outer := locked(t, b.Mutex(names[3]))
		m := rlock.All(first, first, inner, b.FencedMutex(names[1]), b.Mutex(names[2]), b.Mutex(names[3]))
		counts := func(ctx context.Context, want ...int64) {
			t.Helper()
			for i, name := range names {
				redistest.Eventually(t, testTimeout, func() bool {
					var have int64
					for _, n := range b.fields(t, name) {
						have += n
					}
					return have == want[i]
				}, name)
				n := answer(b.Mutex(name).HoldCount(ctx)).ok(t)
				require.EqualValues(t, want[i], n, name)
			}
		}
		one := locked(t, under{outer.ctx, m})
		counts(one.ctx, 1, 2, 1, 2)
		_, ok := rlock.FencingToken(one.ctx, names[1])
		require.True(t, ok)
		two := locked(t, under{one.ctx, m})
		counts(two.ctx, 2, 4, 2, 3)
		require.NoError(t, one.unlock(), "the outer unlock may come first; the inner level still holds the locks")
		require.ErrorIs(t, two.ctx.Err(), context.Canceled, "the inner ctx is a child of the outer one")
		counts(context.WithoutCancel(two.ctx), 1, 2, 1, 2)
		require.NoError(t, two.unlock())
		counts(outer.ctx, 0, 0, 0, 1)
		require.NoError(t, outer.unlock())
		b.do(t, "DEL", "redisson_lock_token:{"+names[1]+"}")
	})
}

// Each fenced lock in an All has a token from its own counter; a plain lock has none.
func TestAllFenced(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		x, y := b.FencedMutex(b.name+":x"), b.FencedMutex(b.name+":y")
		m := rlock.All(y, b.Mutex(b.name+":plain"), x)
		lockAndUnlock(t, x)
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
	})
}

// G4: the single call that releases all locks wakes a waiter of each one. A waiter in this process gets its lock at once, a queued
// waiter of another process is given its lock, and a waiter that only listens is notified.
func TestAllWakesTheWaitersOfEach(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		b := fixture{Client: newClient(t, s.Client(t)), rdb: s.Client(t)}
		other, deaf := newClient(t, s.Client(t)), newClient(t, s.Client(t), rlock.Options{HandOff: rlock.HandOff{Most: -1}})
		loadScripts(t, other)
		names := numbered("wake", 5)
		m := rlock.All(append(mutexes(b.Client, names[:4]...), b.FencedMutex(names[4]))...)
		lockAndUnlock(t, m) // loads the scripts
		hold := locked(t, m)
		before := scriptCalls(t, b)
		local := lockAsync(t, b.Mutex(names[0]))
		remote := lockAsync(t, other.Mutex(names[1]))
		told := lockAsync(t, deaf.Mutex(names[2]))
		fenced := lockAsync(t, b.FencedMutex(names[4]))
		for _, i := range []int{0, 1, 2, 4} {
			b.awaitSubscribers(t, names[i], 1)
		}
		for _, i := range []int{0, 1, 4} {
			b.awaitQueued(t, names[i])
		}
		before += 4 * attempts
		redistest.Eventually(t, testTimeout, func() bool { return scriptCalls(t, b) == before && waiting(t) == 4 }, "all waiters sleep")
		unlocked := time.Now()
		require.NoError(t, hold.unlock())
		var unlocks []rlock.UnlockFunc
		for _, p := range []pendingLock{local, remote, told, fenced} {
			got := p.gets(t, testTimeout)
			requireTook(t, 0, unlocked, got.at)
			if p.result == fenced.result {
				token, ok := rlock.FencingToken(got.ctx, names[4])
				require.True(t, ok)
				require.EqualValues(t, 3, token)
			}
			unlocks = append(unlocks, got.unlock)
		}
		require.Equal(t, before+2, scriptCalls(t, b), "the unlock, and one attempt of the waiter that only listens")
		for _, unlock := range unlocks {
			require.NoError(t, unlock())
		}
	})
}

// Locks are taken in the order of their keys, which is the same in every process. Of a read/write lock the writer is first, then the
// upgradeable reader, then the reader: each lets the next in.
func TestAllInOneOrder(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
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
				answer(rw.Read().IsHeld(ctx)).is(t, true)
				answer(rw.Write().IsHeld(ctx)).is(t, slices.Contains(all, rlock.Locker(rw.Write())))
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
			require.ErrorIs(t, err, rlock.ErrUpgrade, "a reader cannot become upgradeable: an upgrade could wait for that reader")
			return nil
		}))
	})
}

// Clients of one Redis share the lock of a name, so an All cannot hold it through both of them. The call fails instead of trying again and
// again.
func TestAllWaitsForItself(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		other := newClient(t, b.rdb)
		for _, m := range []*rlock.MultiMutex{
			rlock.All(b.Mutex(b.name), other.Mutex(b.name)),
			rlock.All(mutexes(b.Client, numbered(b.name, 2)...)[0], other.FencedMutex(b.name+":0"), b.FairMutex(b.name+":fair")),
		} {
			_, _, err := m.Lock(context.Background())
			require.ErrorContains(t, err, "waits for itself: it is given by two Clients of one Redis")
			require.NotErrorIs(t, err, rlock.ErrNotAcquired)
			require.NotContains(t, err.Error(), "\n")
			require.False(t, b.exists(t, b.name))
			require.False(t, b.exists(t, b.name+":0"))
		}
	})
}

// Members may be of any type, and are locked in the fixed order. A member's error is returned, and then no lock is kept.
func TestAllOfOtherLockers(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
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
		require.NoError(t, two.Do(context.Background(), nothing), "not comparable")
		require.Equal(t, []int{2, 1}, []int{f.unlocked, g.unlocked})
		f.err = errors.New("out of order")
		require.ErrorIs(t, m.Do(context.Background(), func(context.Context) error { panic("not held") }), f.err)
		require.False(t, b.exists(t, b.name+":a"))
		require.False(t, b.exists(t, b.name+":c"))
	})
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

// The error names the cancellation and the lock's holder, whenever ctx ended.
func TestAllCancelledBetweenTwoAttempts(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		hold := locked(t, b.Mutex(b.name))
		ctx, cancel := context.WithCancel(context.Background())
		_, _, err := rlock.All(refusedAtTheEnd{newClient(t, b.rdb).Mutex(b.name), cancel}).Lock(ctx)
		var refused *rlock.NotAcquiredError
		require.ErrorAs(t, err, &refused)
		require.NotEmpty(t, refused.Holder)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, hold.unlock())
	})
}

// Each call returns a one-line error that names the member that cannot be locked.
func TestAllOfNothing(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
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
			err := m.Do(context.Background(), func(context.Context) error { panic("not held") })
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "\n")
			_, _, again := m.TryLock(context.Background(), 0)
			require.EqualError(t, again, err.Error())
		}
		require.False(t, b.exists(t, b.name))
		require.Panics(t, func() { _ = new(rlock.MultiMutex).Name() })
		require.Panics(t, func() { _, _, _ = rlock.All(good).Lock(nil) }) //nolint:staticcheck // the mistake in question
	})
}

// A key with other data is an error that names its lock. The other locks are released.
func TestAllWithABadMember(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
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
	})
}
