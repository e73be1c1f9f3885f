package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// Fault 3 (-OOM), G2, G6: the server is out of memory and may evict nothing. Lock, and a re-entry with a longer
// lease, fail at once with that reason. Existing holds are still renewed and unlocked level by level.
func TestRedisOutOfMemory(t *testing.T) {
	t.Parallel()
	const watchdog = 3 * time.Second
	for name, protocol := range netProtocols {
		for kind, o := range map[string][]rlock.Option{"watchdog": nil, "lease": {rlock.WithLease(20 * time.Second)}} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				b := newNetFixture(t, rlock.Options{WatchdogTimeout: watchdog}, protocol)
				m := b.lock.Mutex(b.name, o...)
				ctx, unlock, err := m.Lock(context.Background())
				require.NoError(t, err)
				_, unlockInner, err := m.Lock(ctx)
				require.NoError(t, err)
				b.counts(t, ctx, 2)
				waiter := startLock(context.Background(), b.other.Mutex(b.name))
				awaitQueued(t, b.direct, b.name, 1)
				require.NoError(t, do(t, b.direct, "CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1mb").Error())

				refused := func(ctx context.Context, m *rlock.Mutex) {
					t.Helper()
					got := startLock(ctx, m).within(t, netSlack)
					require.ErrorContains(t, got.err, "OOM command not allowed")
					require.NotErrorIs(t, got.err, rlock.ErrNotAcquired)
					require.ErrorIs(t, got.unlock(), rlock.ErrNotHeld)
				}
				refused(context.Background(), b.lock.Mutex(b.name+":new"))
				refused(context.Background(), b.lock.FencedMutex(b.name+":new"))
				refused(ctx, b.forLonger())
				short := b.lock.Mutex(b.name, rlock.WithLease(time.Second))
				require.NoError(t, short.Do(ctx, func(context.Context) error { return nil }), "re-entry without a command")
				for end := time.Now().Add(2 * watchdog); time.Now().Before(end); sleep(watchdog / 10) {
					require.NoError(t, ctx.Err())
					require.Equal(t, map[string]int64{rlock.Owner(ctx): 2}, b.fields(t))
				}
				require.NoError(t, unlockInner())
				b.counts(t, ctx, 1)
				waiter.waits(t)
				require.NoError(t, unlock())
				got := waiter.gets(t, netSlack, "it had its place before, and a release needs no memory")
				require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, b.fields(t))
				require.NoError(t, got.unlock())
				require.True(t, b.free(t))

				require.NoError(t, do(t, b.direct, "CONFIG", "SET", "maxmemory", "0").Error())
				b.becomesFree(t, 0)
			})
		}
	}
}
