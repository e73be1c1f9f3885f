package rlock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const minHold = 1500 * time.Millisecond

// An early unlock with WithMinHold costs no more than any other and returns at once. The lock stays taken until the time is over.
func TestMinHold(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		b := fixture{rdb: s.Client(t, oneConn), name: redistest.Name(t)}
		b.Client = newClient(t, b.rdb)
		loadScripts(t, b.Client)
		other := newClient(t, s.Client(t))
		m := b.FencedMutex(b.name, rlock.WithMinHold(minHold))
		before := redistest.Commands(t, b.rdb)["evalsha"]
		ctx, unlock, err := m.TryLock(context.Background(), 0)
		require.NoError(t, err)
		acquired := time.Now()
		owner := rlock.Owner(ctx)
		require.NoError(t, unlock())
		require.Equal(t, before+2, redistest.Commands(t, b.rdb)["evalsha"])
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
		require.NotContains(t, b.fields(t, b.name), owner, "an owner field is never used again")

		for _, l := range []*rlock.Mutex{m, b.Mutex(b.name), other.Mutex(b.name)} {
			_, _, err = l.TryLock(context.WithoutCancel(ctx), 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.ErrorContains(t, err, "and kept by its WithMinHold")
			require.NotContains(t, err.Error(), "re-enter")
			var refusal *rlock.NotAcquiredError
			require.ErrorAs(t, err, &refusal)
			require.Positive(t, refusal.TTL)
			require.LessOrEqual(t, refusal.TTL, minHold)
		}
		redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "the lock becomes free")
		requireTook(t, minHold+time.Millisecond, acquired, time.Now()) // a key exists until the end of its last millisecond

		ctx, unlock = enter(t, context.Background(), m)
		token, _ := m.FencingToken(ctx)
		require.EqualValues(t, 2, token, "staying taken does not count as an acquire")
		sleep(minHold + minHold/10)
		require.NoError(t, unlock())
		require.False(t, b.exists(t, b.name), "an unlock after that time frees the lock at once")
	})
}

// The time taken after the unlock does not depend on the lease. The handle that acquired the hold decides, when its last level is
// unlocked. ForceUnlock frees the lock.
func TestMinHoldOfLevels(t *testing.T) {
	for name, lease := range map[string]time.Duration{"shorter lease": minHold / 2, "longer lease": testTimeout, "renewed": 0} {
		runVirtual(t, name, func(t *testing.T, b fixture) {
			options := []rlock.Option{rlock.WithMinHold(minHold)}
			if lease > 0 {
				options = append(options, rlock.WithLease(lease))
			}
			m, plain := b.Mutex(b.name, options...), b.Mutex(b.name)
			for _, last := range []*rlock.Mutex{plain, b.FairMutex(b.name)} {
				ctx, unlock := enter(t, context.Background(), m)
				_, unlockInner := enter(t, ctx, m)
				require.NoError(t, unlockInner())
				_, unlockInner = enter(t, context.WithoutCancel(ctx), last)
				require.NoError(t, unlock())
				require.NoError(t, unlockInner(), "the last level, though through another handle")
				require.Positive(t, b.pttl(t, b.name))
				require.LessOrEqual(t, b.pttl(t, b.name), minHold)
				answer(plain.ForceUnlock(context.Background())).is(t, true)
			}

			ctx, unlock := enter(t, context.Background(), plain)
			_, unlockInner := enter(t, ctx, m)
			require.NoError(t, unlock())
			require.NoError(t, unlockInner())
			require.False(t, b.exists(t, b.name), "the Lock that acquired the hold decides")
		})
	}
}

// G4: waiters learn of the shorter time at the unlock and get the lock when it is over, in the holder's process and in others, with
// and without hand-offs. Before the unlock they expect the 30 s lease.
func TestMinHoldWakesWaiters(t *testing.T) {
	eachMinHold(func(name string, handOff int, which string) {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			minHoldWakes(t, standalone(redistest.Shared(t)), handOff, which)
		})
	})
}

// The same on a cluster, where the waiters of one process alone make no difference.
func TestMinHoldWakesWaitersOnACluster(t *testing.T) {
	cluster := redistest.SharedCluster(t)
	redistest.Parallel(t)
	eachMinHold(func(name string, handOff int, which string) {
		if which != "both" {
			return
		}
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			minHoldWakes(t, deployment{cluster.Addrs(), cluster.Client}, handOff, which)
		})
	})
}

// eachMinHold calls f for waiters of the holder's process, of another and of both, with and without hand-offs.
func eachMinHold(f func(name string, handOff int, which string)) {
	for name, handOff := range map[string]int{"hand-off": 0, "without": -1} {
		for _, which := range []string{"own", "other", "both"} {
			f(which+"/"+name, handOff, which)
		}
	}
}

func minHoldWakes(t *testing.T, d deployment, handOff int, which string) {
	t.Helper()
	const minHold = 2 * minHold // so that all callers wait by then
	o := rlock.Options{HandOff: rlock.HandOff{Most: handOff}}
	holder, other := newClient(t, d.dial(t), o), newClient(t, d.dial(t), o)
	watch, lock := d.dial(t), redistest.Name(t)
	m := holder.Mutex(lock, rlock.WithMinHold(minHold))
	began := time.Now() // the time counts from the grant, which its reply may follow much later
	_, unlock := enter(t, context.Background(), m)
	var waiters []pendingLock
	if which != "other" {
		waiters = append(waiters, lockAsync(t, holder.Mutex(lock)), lockAsync(t, holder.Mutex(lock)))
	}
	if which != "own" {
		waiters = append(waiters, lockAsync(t, other.Mutex(lock)), lockAsync(t, other.Mutex(lock)))
	}
	redistest.Eventually(t, testTimeout, func() bool {
		return waiting(t) == len(waiters) && subscribers(t, watch, lock) == len(waiters)/2
	}, "all wait and are subscribed")
	unlocking := time.Now()
	require.NoError(t, unlock())
	free, most := began.Add(minHold), soon
	if free.Before(unlocking) {
		free = unlocking
	}
	if redistest.IsVirtual(t) {
		most = time.Millisecond // of which Redis shows whole ones
	}
	for range waiters { // in any order, each as soon as the one before has unlocked
		got := first(t, waiters, testTimeout)
		require.NoError(t, got.err)
		require.GreaterOrEqual(t, got.at.Sub(began), minHold-time.Millisecond)
		require.LessOrEqual(t, redistest.Ran(t, free, got.at), most)
		require.NoError(t, got.unlock())
		most += time.Millisecond // first looks for the next one after that
	}
}

// subscribers counts the processes subscribed to the unlock channel of a plain lock.
func subscribers(t *testing.T, rdb rueidis.Client, name string) (n int) {
	t.Helper()
	for _, node := range rdb.Nodes() {
		for _, cmd := range []string{"NUMSUB", "SHARDNUMSUB"} {
			channel := "redisson_lock__channel:{" + name + "}"
			counts, err := node.Do(t.Context(), node.B().Arbitrary("PUBSUB", cmd, channel).Build()).ToArray()
			if _, refused := rueidis.IsRedisErr(err); refused { // SHARDNUMSUB before Redis 7
				continue
			}
			require.NoError(t, err)
			count := answer(counts[1].AsInt64()).ok(t)
			n += int(count)
		}
	}
	return n
}

// first returns the first result of several Locks.
func first(t *testing.T, waiters []pendingLock, within time.Duration) lockResult {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); sleep(time.Millisecond) {
		for _, w := range waiters {
			select {
			case a := <-w.result:
				return a
			default:
			}
		}
	}
	require.FailNow(t, "no waiter got the lock")
	panic("unreachable")
}

// G4: the next waiter gets the lock even if the first gives up after the unlock, and even if the holder's Client is closed.
func TestMinHoldAndAWaiterThatGivesUp(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		other := newClient(t, b.rdb)
		began := time.Now()
		_, unlock := enter(t, context.Background(), b.Mutex(b.name, rlock.WithMinHold(minHold)))
		impatient := lockAsync(t, other.Mutex(b.name))
		b.awaitSubscribers(t, b.name, 1)
		next := lockAsync(t, other.Mutex(b.name))
		redistest.Eventually(t, minHold, func() bool { return waiting(t) == 2 }, "both wait")
		b.Close()
		require.NoError(t, unlock())
		impatient.cancel()
		require.ErrorIs(t, impatient.get(t, soon).err, context.Canceled)
		got := next.gets(t, rlock.DefaultWatchdogTimeout/2)
		require.GreaterOrEqual(t, got.at.Sub(began), minHold-time.Millisecond)
		require.NoError(t, got.unlock())
	})
}

// G6, G7: the lock stays taken for that time and no longer if the unlock or its reply is lost, or if a renewal arrives late.
func TestMinHoldAndLostCalls(t *testing.T) {
	for name, lose := range map[string]func(*redistest.Proxy){
		"reply":   func(p *redistest.Proxy) { p.OnReply(nthScript(1, redistest.Cut)) },
		"request": func(p *redistest.Proxy) { p.OnRequest(nthScript(1, redistest.Cut)) },
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			c, proxy, past := behindProxy(t, anyWay)
			began := time.Now()
			_, unlock := enter(t, context.Background(), c.Mutex(past.name, rlock.WithMinHold(minHold)))
			lose(proxy)
			require.NoError(t, unlock())
			require.True(t, past.exists(t, past.name))
			require.LessOrEqual(t, past.pttl(t, past.name), minHold)
			got := lockAsync(t, past.Mutex(past.name)).gets(t, rlock.DefaultWatchdogTimeout/2)
			require.GreaterOrEqual(t, got.at.Sub(began), minHold-time.Millisecond)
			require.NoError(t, got.unlock())
		})
	}
	redistest.RunVirtual(t, "renewal", func(t *testing.T) {
		c, proxy, past := behindProxy(t, func(o *rueidis.ClientOption) { o.PipelineMultiplex = 2 }, rlock.Options{WatchdogTimeout: shortWatchdog})
		_, unlock := enter(t, context.Background(), c.Mutex(past.name, rlock.WithMinHold(testTimeout)))
		proxy.OnRequest(nthScript(1, redistest.Hold))
		redistest.Eventually(t, shortWatchdog, func() bool { return proxy.Held() == 1 }, "a renewal is under way")
		past.do(t, "PEXPIRE", past.name, "2500")
		unlocked := async(unlock)
		redistest.Eventually(t, shortWatchdog, func() bool { return past.pttl(t, past.name) > shortWatchdog }, "the lock stays taken")
		past.do(t, "PEXPIRE", past.name, "1000") // so that a renewal would show
		proxy.Release()
		require.NoError(t, within(t, unlocked, soon))
		redistest.Eventually(t, soon, func() bool { return !past.exists(t, past.name) }, "the late renewal has no effect")
	})
}

// An unlock that Redis did not answer is repeated in the background, and leaves the lock taken then.
func TestMinHoldAndASilentRedis(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const least = 20 * time.Second
		c, proxy, past := behindProxy(t, anyWay)
		_, unlock := enter(t, context.Background(), c.Mutex(past.name, rlock.WithMinHold(least)))
		owner := past.fields(t, past.name)
		proxy.BlackHole(true)
		require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
		require.Equal(t, owner, past.fields(t, past.name))
		proxy.BlackHole(false)
		redistest.Eventually(t, testTimeout, func() bool {
			fields := past.fields(t, past.name)
			return len(fields) == 1 && fields[past.kept(t)] == 1
		}, "the owner is gone and the lock is not free")
		require.LessOrEqual(t, past.pttl(t, past.name), least)
		past.do(t, "DEL", past.name)
	})
}

// kept returns the placeholder field of a lock that stays taken, or "".
func (b fixture) kept(t testing.TB) string {
	t.Helper()
	for field := range b.fields(t, b.name) {
		if strings.HasSuffix(field, ":00") {
			return field
		}
	}
	return ""
}

// A Lock that failed leaves nothing taken.
func TestMinHoldOfAFailedLock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, past := behindProxy(t, anyWay)
		m := c.Mutex(past.name, rlock.WithMinHold(testTimeout))
		proxy.OnReply(nthScript(1, redistest.Hold))
		p := lockAsync(t, m)
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "granted, but not answered")
		p.cancel()
		require.ErrorIs(t, p.get(t, soon).err, rlock.ErrNotAcquired)
		proxy.Release()
		redistest.Eventually(t, soon, func() bool { return !past.exists(t, past.name) }, "the grant is released")
	})
}

// WithMinHold does not apply to a lost hold: another owner may have had the lock since, so the end of the lease or the unlock frees
// it at once.
func TestMinHoldOfALostHold(t *testing.T) {
	for name, unlocks := range map[string]func(c *rlock.Client, name string) (context.Context, rlock.UnlockFunc, error){
		"one": func(c *rlock.Client, name string) (context.Context, rlock.UnlockFunc, error) {
			return c.Mutex(name, rlock.WithMinHold(testTimeout)).Lock(context.Background())
		},
		"fenced": func(c *rlock.Client, name string) (context.Context, rlock.UnlockFunc, error) {
			return c.FencedMutex(name, rlock.WithMinHold(testTimeout)).Lock(context.Background())
		},
		"of several": func(c *rlock.Client, name string) (context.Context, rlock.UnlockFunc, error) {
			return rlock.All(c.Mutex(name, rlock.WithMinHold(testTimeout)), c.Mutex(name+":2", rlock.WithMinHold(testTimeout))).Lock(context.Background())
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: time.Second})
			ctx, unlock, err := unlocks(c, past.name)
			require.NoError(t, err)
			past.do(t, "PEXPIRE", past.name, "100000") // so that the loss is no expiry in Redis
			proxy.OnRequest(func(cmd []string) redistest.Action {
				if ctx.Err() == nil && strings.HasPrefix(cmd[0], "EVAL") {
					return redistest.Hold
				}
				return redistest.Pass
			})
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
			require.True(t, past.exists(t, past.name))
			proxy.CutAll() // including the renewals held back
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			redistest.Eventually(t, 5*time.Second, func() bool { return !past.exists(t, past.name) }, "the lock is free")
		})
	}
}

// A hold of a Redisson thread is never mistaken for a lock that stays taken, whatever the thread's number.
func TestMinHoldIsToldApartFromAThreadOfRedissons(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		for _, thread := range []string{"0", "-1", "1"} {
			owner := "285475da-9152-4c83-822a-67ee2f116a79:" + thread // lockAsync(0)
			b.do(t, "HSET", b.name, owner, "1")
			b.do(t, "PEXPIRE", b.name, "30000")
			_, _, err := b.Mutex(b.name).TryLock(context.Background(), 0)
			require.ErrorContains(t, err, "held by "+owner)
			require.NotContains(t, err.Error(), "WithMinHold")
			b.do(t, "DEL", b.name)
		}
	})
}
