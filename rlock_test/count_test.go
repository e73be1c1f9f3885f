package rlock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Re-entries and their unlocks happen in memory; a later command updates the count in Redis.

// countedKinds returns the locks whose holds are hash fields with a count.
func countedKinds(c *rlock.Client, name string) map[string]*rlock.Mutex {
	rw := c.RWMutex(name + ":rw")
	return map[string]*rlock.Mutex{
		"plain": c.Mutex(name), "fenced": c.FencedMutex(name + ":fenced"), "fair": c.FairMutex(name + ":fair"),
		"read": rw.Read(), "write": rw.Write(),
	}
}

// G6: short re-entries send no command. Re-entries that stay open are reported to Redis with one command for each lasting change.
func TestCountFollows(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		b := fixture{rdb: s.Client(t), name: "x"}
		c := newClient(t, s.Client(t))
		loadScripts(t, c)
		asked := func() int64 { return redistest.Commands(t, b.rdb)["evalsha"] }
		for kind, m := range countedKinds(c, b.name) {
			require.NoError(t, m.Do(t.Context(), nothing), kind) // loads the scripts
			ctx, unlock, err := m.Lock(t.Context())
			require.NoError(t, err, kind)
			count := func() string { return b.fieldsNamed(t, m.Name())[rlock.Owner(ctx)] }
			before := asked()
			for range 100 {
				require.NoError(t, m.Do(ctx, func(ctx context.Context) error { return m.Do(ctx, nothing) }), kind)
			}
			n, err := m.HoldCount(ctx)
			require.NoError(t, err, kind)
			require.Equal(t, 1, n, kind)
			require.Equal(t, before, asked(), "%s: short re-entries run no script", kind)

			var inner [10]rlock.UnlockFunc
			within := ctx
			for i := range inner {
				within, inner[i], err = m.Lock(within)
				require.NoError(t, err, kind)
			}
			redistest.Eventually(t, testTimeout, func() bool { return count() == "11" }, kind+": the count in Redis follows")
			require.Equal(t, before+1, asked(), "%s: one command for all re-entries", kind)
			n, err = m.HoldCount(within)
			require.NoError(t, err, kind)
			require.Equal(t, 11, n, kind)
			for _, unlock := range inner {
				require.NoError(t, unlock(), kind)
			}
			redistest.Eventually(t, testTimeout, func() bool { return count() == "1" }, kind+": the count in Redis follows")
			require.Equal(t, before+2, asked(), "%s: one command for all unlocks", kind)
			require.NoError(t, unlock(), kind)
			require.False(t, b.exists(t, m.Name()), kind)
		}
		left, err := b.do(t, "KEYS", "*").AsStrSlice()
		require.NoError(t, err)
		require.Equal(t, []string{"redisson_lock_token:{x:fenced}"}, left, "no key of a reader's hold is left")
	})
}

// fieldsNamed returns a hash with its values as strings.
func (b fixture) fieldsNamed(t testing.TB, name string) map[string]string {
	t.Helper()
	m, err := b.do(t, "HGETALL", name).AsStrMap()
	require.NoError(t, err)
	return m
}

// G2, G6: re-entries and their unlocks return at once while Redis is silent, until the hold is lost. They do not wait for the count
// in Redis.
func TestLevelsInSilence(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 4 * time.Second
		c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: watchdog})
		m := c.Mutex(past.name)
		ctx, unlock, err := m.Lock(t.Context())
		require.NoError(t, err)
		proxy.BlackHole(true)
		began := time.Now()
		inner, unlockInner, err := m.Lock(ctx)
		require.NoError(t, err)
		second, unlockSecond, err := m.TryLock(inner, 0)
		require.NoError(t, err)
		require.NoError(t, unlockSecond())
		require.Error(t, second.Err())
		require.Less(t, time.Since(began), 500*time.Millisecond)
		<-ctx.Done()
		require.Less(t, time.Since(began), watchdog+soon)
		require.ErrorIs(t, unlockInner(), rlock.ErrLost)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		proxy.BlackHole(false)
		redistest.Eventually(t, testTimeout, func() bool { return !past.exists(t, past.name) }, "no key is left")
	})
}

// G1, G5: a count that is on its way to Redis does not delay the last unlock. If it arrives late it has no effect, even if another
// owner has the lock by then.
func TestCountThatComesLate(t *testing.T) {
	for _, kind := range []string{"plain", "fenced", "fair", "read", "write"} {
		for _, raises := range []bool{true, false} {
			redistest.RunVirtual(t, kind+map[bool]string{true: "/up", false: "/down"}[raises], func(t *testing.T) {
				s := redistest.Start(t)
				far := redistest.StartProxy(t, s.Addr())    // delays the count
				near := redistest.StartProxy(t, far.Addr()) // cuts the connection, so that later commands use a new one
				past := fixture{rdb: s.Client(t), name: redistest.Name(t)}
				past.Client = newClient(t, past.rdb)
				c := newClient(t, redistest.Dial(t, near.Addr()))
				loadScripts(t, c)
				m := countedKinds(c, past.name)[kind]
				require.NoError(t, m.Do(t.Context(), func(ctx context.Context) error { return m.Do(ctx, nothing) }))
				ctx, unlock, err := m.Lock(t.Context())
				require.NoError(t, err)
				owner := rlock.Owner(ctx)
				_, unlockInner, err := m.Lock(ctx)
				require.NoError(t, err)
				if !raises {
					redistest.Eventually(t, testTimeout, func() bool { return past.fieldsNamed(t, m.Name())[owner] == "2" }, "the count in Redis follows")
				}
				var once sync.Once
				far.OnRequest(func(cmd []string) (action redistest.Action) {
					action = redistest.Pass
					if isScript(cmd) {
						once.Do(func() { action = redistest.Hold })
					}
					return action
				})
				if !raises {
					require.NoError(t, unlockInner())
				}
				redistest.Eventually(t, testTimeout, func() bool { return far.Held() == 1 }, "the count is on its way")
				near.CutAll()
				if raises {
					require.NoError(t, unlockInner())
				}
				began := time.Now()
				require.NoError(t, unlock())
				require.Less(t, time.Since(began), soon)
				require.False(t, past.exists(t, m.Name()), "the lock is free")

				next := countedKinds(past.Client, past.name)[kind]
				got, unlockNext, err := next.TryLock(t.Context(), 0)
				require.NoError(t, err)
				far.Release()
				sleep(300 * time.Millisecond)
				fields := past.fieldsNamed(t, m.Name())
				require.Equal(t, "1", fields[rlock.Owner(got)])
				require.NotContains(t, fields, owner)
				require.NoError(t, got.Err())
				require.NoError(t, unlockNext())
				redistest.Eventually(t, testTimeout, func() bool { return !past.exists(t, m.Name()) }, "no key is left")
			})
		}
	}
}

// G2: the command that updates the count finds that the hold is gone, and cancels the ctx of every level before a renewal would. If
// it runs at the same time as the unlock, it reports nothing.
func TestCountFindsTheHoldGone(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		for kind, m := range countedKinds(b.Client, b.name) {
			ctx, unlock, err := m.Lock(t.Context())
			require.NoError(t, err, kind)
			b.loseLock(t, ctx, m)
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost, kind)
			require.ErrorIs(t, unlock(), rlock.ErrLost, kind)
		}
	})
}

// G2, G6: a re-entry asks Redis only if it needs a longer lease than the hold has left, or a fencing token. Otherwise it returns at
// once.
func TestReentryForMore(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := fixture{rdb: redistest.Start(t).Client(t), name: redistest.Name(t)} // a server of its own, to count commands
		b.Client = newClient(t, b.rdb)
		asked := func() int64 { return redistest.Commands(t, b.rdb)["hincrby"] }
		ctx, unlock, err := b.Mutex(b.name, rlock.WithLease(time.Minute)).Lock(t.Context())
		require.NoError(t, err)
		before := asked()
		require.NoError(t, b.Mutex(b.name, rlock.WithLease(30*time.Second)).Do(ctx, nothing))
		require.Equal(t, before, asked(), "the hold lasts long enough")
		longer, unlockLonger, err := b.Mutex(b.name, rlock.WithLease(time.Hour)).Lock(ctx)
		require.NoError(t, err)
		require.Equal(t, before+1, asked())
		require.Greater(t, b.pttl(t, b.name), 59*time.Minute)
		_, has := rlock.FencingToken(longer, b.name)
		require.False(t, has)
		fenced, unlockFenced, err := b.FencedMutex(b.name).Lock(longer)
		require.NoError(t, err)
		token, has := rlock.FencingToken(fenced, b.name)
		require.True(t, has, "the fenced re-entry asks for a token")
		again, unlockAgain, err := b.FencedMutex(b.name).Lock(fenced)
		require.NoError(t, err)
		same, _ := rlock.FencingToken(again, b.name)
		require.Equal(t, token, same, "both levels have the token of the hold")
		for _, u := range []rlock.UnlockFunc{unlockAgain, unlockFenced, unlockLonger, unlock} {
			require.NoError(t, u())
		}
		require.False(t, b.exists(t, b.name))
		require.NoError(t, b.FencedMutex(b.name).Do(t.Context(), func(ctx context.Context) error {
			next, _ := rlock.FencingToken(ctx, b.name)
			require.Equal(t, token+1, next)
			return nil
		}))
	})
}

// G9: Close during re-entries leaves no call, timer or goroutine behind, and an unlock after Close releases the lock.
func TestCountAndClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		for i := range 20 {
			c := newClient(t, b.rdb)
			m := c.Mutex(redistest.Name(t))
			ctx, unlock, err := m.Lock(context.Background())
			require.NoError(t, err)
			_, unlockInner, err := m.Lock(ctx)
			require.NoError(t, err)
			sleep(time.Duration(90+i) * time.Millisecond) // around the moment of the count update
			c.Close()
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
			require.NoError(t, unlockInner())
			require.NoError(t, unlock())
			require.False(t, b.exists(t, m.Name()))
		}
	})
}

// G6: a fenced re-entry into a plain hold gets a token of its own, even if the count in Redis is still higher than its level. A
// script that took this for a repeated call would return the token of the previous holder.
func TestTokenOfALevelIsNew(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		fenced, plain := b.FencedMutex(b.name), b.Mutex(b.name)
		var before int64
		require.NoError(t, fenced.Do(t.Context(), func(ctx context.Context) error {
			before, _ = fenced.FencingToken(ctx)
			return nil
		}))
		ctx, unlock, err := plain.Lock(t.Context())
		require.NoError(t, err)
		require.NoError(t, plain.Do(ctx, func(inner context.Context) error {
			return plain.Do(inner, func(context.Context) error {
				b.awaitFields(t, b.name, map[string]int64{rlock.Owner(ctx): 3})
				return nil
			})
		}))
		require.NoError(t, fenced.Do(ctx, func(ctx context.Context) error {
			token, has := fenced.FencingToken(ctx)
			require.True(t, has)
			require.Greater(t, token, before)
			return nil
		}))
		require.NoError(t, unlock())
	})
}

// G1, G2: the last unlock gives up while a re-entry with a longer lease is under way. The re-entry does not join that hold, which
// is no longer renewed, but competes for the lock.
func TestUnlockLeftBeforeAReentryIsAnswered(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: 3 * time.Second, UnlockTimeout: 300 * time.Millisecond})
		ctx, unlock, err := c.Mutex(past.name).Lock(context.Background())
		require.NoError(t, err)
		owner := rlock.Owner(ctx)
		proxy.OnRequest(nthScript(1, redistest.Hold))
		p := lockAsync(t, under{context.WithoutCancel(ctx), c.Mutex(past.name, rlock.WithLease(4*time.Second))})
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "the re-entry is under way")
		require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
		proxy.Release()
		got := p.get(t, testTimeout)
		require.NoError(t, got.err)
		require.NotEqual(t, owner, rlock.Owner(got.ctx))
		require.NoError(t, got.unlock())
		redistest.Eventually(t, testTimeout, func() bool { return !past.exists(t, past.name) }, "the lock is free")
	})
}

// G2: levels that need renewal come and go, concurrently, in a hold with a fixed lease. The hold is renewed while any of them is
// open.
func TestLevelsDecideOnRenewal(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const lease, holds, turns = 4 * time.Second, 50, 300
		b := newFixture(t, rlock.Options{WatchdogTimeout: time.Second})
		var last [holds]struct {
			ctx    context.Context
			unlock rlock.UnlockFunc
		}
		began := time.Now()
		for i, name := range numbered(b.name, holds) {
			ctx, unlock, err := b.Mutex(name, rlock.WithLease(lease)).Lock(t.Context())
			require.NoError(t, err)
			t.Cleanup(func() { _ = unlock() })
			m := b.Mutex(name)
			one := &last[i]
			one.ctx, one.unlock, err = m.Lock(ctx)
			require.NoError(t, err)
			for range turns {
				closed := async(one.unlock)
				one.ctx, one.unlock, err = m.Lock(ctx)
				require.NoError(t, err)
				require.NoError(t, <-closed)
			}
		}
		sleep(time.Since(began) + lease + time.Second)
		for _, one := range last {
			require.NoError(t, one.ctx.Err(), "%v", context.Cause(one.ctx))
			require.NoError(t, one.unlock())
		}
	})
}

// G5: if Redis refuses the count, the Client repeats it with growing pauses, and the hold stays.
func TestCountThatIsRefused(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, past := behindProxy(t, anyWay)
		m := c.Mutex(past.name)
		ctx, unlock, err := m.Lock(t.Context())
		require.NoError(t, err)
		var asked atomic.Int64
		var well atomic.Bool
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if !isScript(cmd) || well.Load() {
				return redistest.Pass
			}
			asked.Add(1)
			return redistest.Fail("OOM command not allowed")
		})
		_, unlockInner, err := m.Lock(ctx)
		require.NoError(t, err)
		redistest.Eventually(t, testTimeout, func() bool { return asked.Load() == 4 }, "the count is sent after 0.1, 0.3, 0.7 and 1.5 s")
		well.Store(true)
		past.awaitFields(t, past.name, map[string]int64{rlock.Owner(ctx): 2})
		require.Less(t, asked.Load(), int64(6))
		require.NoError(t, unlockInner())
		require.NoError(t, unlock())
	})
}
