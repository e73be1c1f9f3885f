package rlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Re-entries and their unlocks happen in memory; a later command updates the count in Redis.

// G6: short re-entries send no command. Those that stay open are counted in Redis, with one command for each lasting change.
func TestCountFollows(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := fixture{rdb: redistest.Start(t).Client(t), name: redistest.Name(t)} // a server of its own, to count commands
		b.Client = newClient(t, b.rdb)
		m := b.Mutex(b.name)
		asked := func() int64 { return redistest.Commands(t, b.rdb)["evalsha"] }
		require.NoError(t, m.Do(t.Context(), func(ctx context.Context) error { return m.Do(ctx, nothing) })) // loads the scripts
		hold := locked(t, m)
		before := asked()
		for range 100 {
			require.NoError(t, m.Do(hold.ctx, func(ctx context.Context) error { return m.Do(ctx, nothing) }))
		}
		n, err := m.HoldCount(hold.ctx)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, before, asked(), "short re-entries run no script")
		var inner [10]rlock.UnlockFunc
		within := hold.ctx
		for i := range inner {
			within, inner[i], err = m.Lock(within)
			require.NoError(t, err)
		}
		b.awaitFields(t, b.name, map[string]int64{rlock.Owner(within): 11})
		require.Equal(t, before+1, asked(), "one command for all re-entries")
		answer(m.HoldCount(within)).is(t, 11)
		for _, unlock := range inner {
			require.NoError(t, unlock())
		}
		b.awaitFields(t, b.name, map[string]int64{rlock.Owner(within): 1})
		require.Equal(t, before+2, asked(), "one command for all unlocks")
		require.NoError(t, hold.unlock())
		require.False(t, b.exists(t, b.name))
	})
}

// G1, G5: a count that is on its way to Redis does not delay the last unlock. If it arrives late it has no effect, even if another
// owner has the lock by then.
func TestCountThatComesLate(t *testing.T) {
	for _, kind := range []string{"plain", "fenced", "fair", "read", "write"} {
		for _, raises := range []bool{true, false} {
			redistest.RunVirtual(t, kind+map[bool]string{true: "/up", false: "/down"}[raises], func(t *testing.T) {
				_, far, b := behindProxy(t, anyWay)         // delays the count
				near := redistest.StartProxy(t, far.Addr()) // cuts the connection, so that later commands use a new one
				c := newClient(t, redistest.Dial(t, near.Addr()))
				m := ofAllKinds(c, b.name)[kind]
				require.NoError(t, m.Do(t.Context(), func(ctx context.Context) error { return m.Do(ctx, nothing) })) // loads the scripts
				hold := locked(t, m)
				owner := rlock.Owner(hold.ctx)
				count := func() string { return b.fieldsOf(t)[owner] }
				inner := locked(t, under{hold.ctx, m})
				if !raises {
					redistest.Eventually(t, testTimeout, func() bool { return count() == "2" }, "the count in Redis follows")
				}
				far.OnRequest(nthScript(1, redistest.Hold))
				if !raises {
					require.NoError(t, inner.unlock())
				}
				redistest.Eventually(t, testTimeout, func() bool { return far.Held() == 1 }, "the count is on its way")
				near.CutAll()
				if raises {
					require.NoError(t, inner.unlock())
				}
				began := time.Now()
				require.NoError(t, hold.unlock())
				requireTookAtMost(t, 30*time.Millisecond, began, time.Now()) // two pauses until it has a connection
				require.False(t, b.exists(t, b.name), "the lock is free")

				next := locked(t, tryFor{ofAllKinds(b.Client, b.name)[kind], 0})
				far.Release()
				sleep(300 * time.Millisecond)
				require.Equal(t, "1", b.fieldsOf(t)[rlock.Owner(next.ctx)])
				require.Empty(t, count())
				require.NoError(t, next.ctx.Err())
				require.NoError(t, next.unlock())
				redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "no key is left")
			})
		}
	}
}

// G2, G6: a re-entry asks Redis only if it needs a longer lease than the hold has left, or a fencing token. Otherwise it returns at
// once.
func TestReentryForMore(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := fixture{rdb: redistest.Start(t).Client(t), name: redistest.Name(t)} // a server of its own, to count commands
		b.Client = newClient(t, b.rdb)
		asked := func() int64 { return redistest.Commands(t, b.rdb)["hincrby"] }
		hold := locked(t, b.Mutex(b.name, rlock.WithLease(time.Minute)))
		before := asked()
		require.NoError(t, b.Mutex(b.name, rlock.WithLease(30*time.Second)).Do(hold.ctx, nothing))
		require.Equal(t, before, asked(), "the hold lasts long enough")
		longer := locked(t, under{hold.ctx, b.Mutex(b.name, rlock.WithLease(time.Hour))})
		require.Equal(t, before+1, asked())
		require.Greater(t, b.pttl(t, b.name), 59*time.Minute)
		_, has := rlock.FencingToken(longer.ctx, b.name)
		require.False(t, has)
		fenced := locked(t, under{longer.ctx, b.FencedMutex(b.name)})
		token, has := rlock.FencingToken(fenced.ctx, b.name)
		require.True(t, has, "the fenced re-entry asks for a token")
		again := locked(t, under{fenced.ctx, b.FencedMutex(b.name)})
		same, _ := rlock.FencingToken(again.ctx, b.name)
		require.Equal(t, token, same, "both levels have the token of the hold")
		for _, level := range []lockResult{again, fenced, longer, hold} {
			require.NoError(t, level.unlock())
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
			hold := locked(t, m)
			inner := locked(t, under{hold.ctx, m})
			sleep(time.Duration(90+i) * time.Millisecond) // around the moment of the count update
			c.Close()
			require.ErrorIs(t, context.Cause(hold.ctx), rlock.ErrClosed)
			require.NoError(t, inner.unlock())
			require.NoError(t, hold.unlock())
			require.False(t, b.exists(t, m.Name()))
		}
	})
}

// G6: a fenced re-entry into a plain hold gets a token of its own, even if the count in Redis is still higher than its level. A
// script that took this for a repeated call would return the token of the previous holder.
func TestTokenOfALevelIsNew(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		fenced, plain := b.FencedMutex(b.name), b.Mutex(b.name)
		var before int64
		require.NoError(t, fenced.Do(t.Context(), func(ctx context.Context) error {
			before, _ = fenced.FencingToken(ctx)
			return nil
		}))
		hold := locked(t, plain)
		require.NoError(t, plain.Do(hold.ctx, func(inner context.Context) error {
			return plain.Do(inner, func(context.Context) error {
				b.awaitFields(t, b.name, map[string]int64{rlock.Owner(inner): 3})
				return nil
			})
		}))
		require.NoError(t, fenced.Do(hold.ctx, func(ctx context.Context) error {
			token, has := fenced.FencingToken(ctx)
			require.True(t, has)
			require.Greater(t, token, before)
			return nil
		}))
		require.NoError(t, hold.unlock())
	})
}

// G1, G2: the last unlock gives up while a re-entry with a longer lease is under way. The re-entry does not join that hold, which
// is no longer renewed, but competes for the lock.
func TestUnlockLeftBeforeAReentryIsAnswered(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: 3 * time.Second, UnlockTimeout: 300 * time.Millisecond})
		hold := locked(t, c.Mutex(past.name))
		owner := rlock.Owner(hold.ctx)
		proxy.OnRequest(nthScript(1, redistest.Hold))
		p := lockAsync(t, under{context.WithoutCancel(hold.ctx), c.Mutex(past.name, rlock.WithLease(4*time.Second))})
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "the re-entry is under way")
		require.ErrorIs(t, hold.unlock(), rlock.ErrUnreachable)
		proxy.Release()
		got := p.gets(t, testTimeout)
		require.NotEqual(t, owner, rlock.Owner(got.ctx))
		require.NoError(t, got.unlock())
		redistest.Eventually(t, testTimeout, func() bool { return !past.exists(t, past.name) }, "the lock is free")
	})
}

// G2: levels that need renewal come and go, concurrently, in a hold with a fixed lease. The hold is renewed while any of them is
// open.
func TestLevelsDecideOnRenewal(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog, lease, holds, turns = 5 * shortWatchdog, 6 * shortWatchdog, 50, 300
		b := newFixture(t, rlock.Options{WatchdogTimeout: watchdog})
		var last [holds]lockResult
		began := time.Now()
		for i, name := range numbered(b.name, holds) {
			hold := locked(t, b.Mutex(name, rlock.WithLease(lease)))
			t.Cleanup(func() { _ = hold.unlock() })
			level := under{hold.ctx, b.Mutex(name)}
			last[i] = locked(t, level)
			for range turns {
				closed := async(last[i].unlock)
				last[i] = locked(t, level)
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
		hold := locked(t, m)
		var asked atomic.Int64
		var well atomic.Bool
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if !isScript(cmd) || well.Load() {
				return redistest.Pass
			}
			asked.Add(1)
			return redistest.Fail("OOM command not allowed")
		})
		inner := locked(t, under{hold.ctx, m})
		redistest.Eventually(t, testTimeout, func() bool { return asked.Load() == 4 }, "the count is sent after 0.1, 0.3, 0.7 and 1.5 s")
		well.Store(true)
		past.awaitFields(t, past.name, map[string]int64{rlock.Owner(hold.ctx): 2})
		require.Less(t, asked.Load(), int64(6))
		require.NoError(t, inner.unlock())
		require.NoError(t, hold.unlock())
	})
}
