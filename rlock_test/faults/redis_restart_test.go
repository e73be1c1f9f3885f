package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// crash kills the server and restarts it.
func (b *netFixture) crash(t *testing.T) {
	t.Helper()
	b.server.Kill()
	b.restart(t)
}

func (b *netFixture) restart(t *testing.T) {
	t.Helper()
	b.server.Restart()
	redistest.Eventually(t, netSlack, func() bool { return do(t, b.direct, "PING").Error() == nil }, "connected again")
}

// Fault 3 (kill -9 and restart with AOF, appendfsync always), G1, G2, G4: Redis keeps its data. Holds with a
// watchdog or a fixed lease survive several crashes and stay exclusive; the waiter gets the lock right after the
// unlock.
func TestRedisKilledWithAOF(t *testing.T) {
	t.Parallel()
	const watchdog = 5 * time.Second
	b := netFixtureOn(t, redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always"),
		rlock.Options{WatchdogTimeout: watchdog})
	m := b.lock.Mutex(b.name)
	ctx, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)
	fixed, unlockFixed, err := b.lock.Mutex(b.name+":fixed", rlock.WithLease(time.Minute)).Lock(context.Background())
	require.NoError(t, err)
	waiter := startLock(context.Background(), b.other.Mutex(b.name))
	b.awaitSubscribers(t, 1)
	for range 3 {
		b.crash(t)
		require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t))
		b.excluded(t)
		sleep(watchdog / 3)
		require.NoError(t, ctx.Err())
		require.NoError(t, fixed.Err())
		waiter.waits(t)
	}
	b.awaitSubscribers(t, 1)
	inner, unlockInner, err := m.Lock(ctx)
	require.NoError(t, err)
	b.counts(t, inner, 2)
	b.crash(t)
	require.Equal(t, map[string]int64{rlock.Owner(inner): 2}, b.fields(t))
	require.NoError(t, unlockInner())
	require.NoError(t, unlock())
	got := waiter.within(t, netSlack)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
	require.NoError(t, unlockFixed())
	require.True(t, b.free(t))
}

// Fault 3 (kill -9 with AOF), G2: Redis is down for longer than the lease. The holder's ctx is cancelled
// meanwhile, no later than the key expires.
func TestRedisDownForLongerThanTheLease(t *testing.T) {
	t.Parallel()
	const watchdog = 1500 * time.Millisecond // shorter than the 3 s for which the waiter retries
	b := netFixtureOn(t, redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always"),
		rlock.Options{WatchdogTimeout: watchdog})
	ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	told := cancellationOf(ctx)
	waiter := startLock(context.Background(), b.other.Mutex(b.name))
	b.awaitSubscribers(t, 1)
	expiry := b.expiry(t)
	b.server.Kill()
	told.by(t, expiry.Add(watchdog/3), tellSlack) // a renewal may have extended it since
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	require.ErrorIs(t, unlock(), rlock.ErrLost)
	b.server.Restart()
	got := waiter.within(t, watchdog+netSlack)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
}

// Fault 3 (kill -9 and restart empty), G2, G4, G8: Redis loses its data, so exclusion breaks.
// docs/guarantees.md, "Where it ends": the holder's ctx is cancelled when its next renewal finds the key gone,
// after about a third of the watchdog time. A hold with a fixed lease ends with that lease, or at its next call.
// The waiter does not wait for the lost lease.
func TestRedisKilledAndEmpty(t *testing.T) {
	t.Parallel()
	const watchdog, lease = 12 * time.Second, 8 * time.Second
	b := newNetFixture(t, rlock.Options{WatchdogTimeout: watchdog})
	ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	told := cancellationOf(ctx)
	fixed, unlockFixed, err := b.lock.Mutex(b.name+":fixed", rlock.WithLease(lease)).Lock(context.Background())
	require.NoError(t, err)
	fixedUntil := time.Now().Add(lease)
	fixedTold := cancellationOf(fixed)
	called, unlockCalled, err := b.lock.Mutex(b.name+":called", rlock.WithLease(lease)).Lock(context.Background())
	require.NoError(t, err)
	waiter := startLock(context.Background(), b.other.Mutex(b.name))
	b.awaitSubscribers(t, 1)

	b.crash(t)
	back := time.Now()
	_, _, err = b.lock.Mutex(b.name + ":called").Lock(called)
	require.ErrorIs(t, err, rlock.ErrLost, "the next call tells it")
	require.ErrorIs(t, context.Cause(called), rlock.ErrLost)
	require.ErrorIs(t, unlockCalled(), rlock.ErrLost)

	got := waiter.within(t, netSlack)
	require.NoError(t, got.err, "woken by its new subscription")
	told.by(t, back.Add(watchdog/3), netSlack) // its expiry is at least another third away
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	err = unlock()
	require.ErrorIs(t, err, rlock.ErrLost)
	require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, b.fields(t), "G8")
	require.NoError(t, got.unlock())
	fixedTold.by(t, fixedUntil, tellSlack)
	require.ErrorIs(t, unlockFixed(), rlock.ErrLost)
}
