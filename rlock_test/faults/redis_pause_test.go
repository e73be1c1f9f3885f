package faults

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// Fault 3 (SIGSTOP), G1, G2, G4: Redis stands still for less than the leases. No hold is lost; an unlock during
// the pause takes as long as the pause, and then the waiter gets the lock.
func TestRedisPausedForLessThanTheLease(t *testing.T) {
	t.Parallel()
	const watchdog, pause = 4 * time.Second, 1200 * time.Millisecond
	b := newNetFixture(t, rlock.Options{WatchdogTimeout: watchdog})
	ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	fixed, unlockFixed, err := b.lock.Mutex(b.name+":fixed", rlock.WithLease(time.Minute)).Lock(context.Background())
	require.NoError(t, err)
	waiter := startLock(context.Background(), b.other.Mutex(b.name))
	b.awaitSubscribers(t, 1)
	for range 3 {
		b.server.Pause()
		sleep(pause)
		b.server.Resume()
		sleep(watchdog / 3)
		require.NoError(t, ctx.Err())
		require.NoError(t, fixed.Err())
		require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t))
		waiter.waits(t)
	}
	b.server.Pause()
	unlocked := call(unlock)
	sleep(pause)
	require.Empty(t, unlocked, "not before Redis has answered")
	waiter.waits(t)
	b.server.Resume()
	require.NoError(t, returned(t, unlocked, netSlack))
	got := waiter.within(t, netSlack)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
	require.NoError(t, unlockFixed())
}

// Fault 3 (SIGSTOP), G1, G2, G8: Redis stands still for longer than the leases. Every holder's ctx, with a
// watchdog or a fixed lease, is cancelled during the pause, before its key can expire. Their unlocks change
// nothing. The waiter gets the lock soon afterwards and keeps it.
func TestRedisPausedForLongerThanTheLease(t *testing.T) {
	t.Parallel()
	const lease = 1500 * time.Millisecond // shorter than the 3 s for which the waiter retries
	for kind, o := range map[string][]rlock.Option{"watchdog": nil, "lease": {rlock.WithLease(lease)}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newNetFixture(t, rlock.Options{WatchdogTimeout: lease})
			ctx, unlock, err := b.lock.Mutex(b.name, o...).Lock(context.Background())
			require.NoError(t, err)
			told := cancellationOf(ctx)
			// The waiter's own lease outlasts the pause, since its request may be sent during it.
			waiter := startLock(context.Background(), newClient(t, b.direct, rlock.Options{}).Mutex(b.name))
			b.awaitSubscribers(t, 1)
			expiry := b.expiry(t)
			b.server.Pause()
			told.by(t, expiry.Add(lease/3), tellSlack) // a renewal may have extended it since
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
			err = returned(t, call(unlock), netSlack/2)
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			sleep(lease)
			waiter.waits(t)
			b.server.Resume()
			got := waiter.within(t, lease+netSlack)
			require.NoError(t, got.err)
			for end := time.Now().Add(2 * lease); time.Now().Before(end); sleep(lease / 20) {
				require.NoError(t, got.ctx.Err())
				require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, b.fields(t), "late commands of the old holder change nothing")
			}
			require.NoError(t, got.unlock())
			require.True(t, b.free(t))
		})
	}
}

// Fault 3 (SIGSTOP), G5: Redis stands still during Lock and unlock calls, for longer than the lease or their
// ctx. The calls return in time, and once Redis continues nothing is held.
func TestRedisPausedDuringCalls(t *testing.T) {
	t.Parallel()
	const lease = 1500 * time.Millisecond
	for kind, newCtx := range netContexts {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			// A single, established connection: a call that waits for another to dial does not return in time
			// (docs/guarantees.md).
			b := newNetFixture(t, rlock.Options{WatchdogTimeout: lease}, func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
			_, unlock, err := b.lock.Mutex(b.name).Lock(newCtx(t))
			require.NoError(t, err)
			locked := time.Now()
			b.server.Pause()
			unlocked := call(unlock)
			ctx, cancel := context.WithTimeout(newCtx(t), lease/2)
			defer cancel()
			short := startLock(ctx, b.lock.Mutex(b.name+":short"))
			long := startLock(newCtx(t), b.lock.Mutex(b.name+":long"))
			require.ErrorIs(t, short.within(t, lease/2+netSlack).err, context.DeadlineExceeded)
			require.Error(t, returned(t, unlocked, time.Until(locked.Add(lease+netSlack))))
			// If the unlock was the first on the connection, its end has closed that: long has asked again, and there is time to
			// unlock in the middle of the lease that counts from then. Otherwise long's first call is answered, too late.
			sleep(lease / 2)
			b.server.Resume()
			if got := long.within(t, netSlack); got.err == nil {
				require.NoError(t, got.unlock())
			} else {
				require.ErrorIs(t, got.err, rlock.ErrLost)
			}
			for _, name := range []string{b.name, b.name + ":short", b.name + ":long"} {
				(&netFixture{other: b.other, name: name}).becomesFree(t, lease+netSlack)
			}
		})
	}
}
