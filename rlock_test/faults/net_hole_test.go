package faults

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Fault 2 (10 s of black hole), G2, G4, G5: all data of a client vanishes. Holders' ctxs are cancelled before their keys
// expire, and calls return soon after their ctx ends. A waiter gets its lock soon after the hole ends. Holds with longer
// leases continue, and nothing is left.
func TestNetBlackHole(t *testing.T) {
	t.Parallel()
	for name, protocol := range netProtocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newNetFixture(t, rlock.Options{WatchdogTimeout: 3 * time.Second}, protocol)
			ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			told := cancellationOf(ctx)
			long, unlockLong, err := b.lock.Mutex(b.name+":long", rlock.WithLease(time.Minute)).Lock(context.Background())
			require.NoError(t, err)
			parked := &netFixture{direct: b.direct, name: b.name + ":parked"}
			_, unlockParked, err := b.other.Mutex(parked.name, rlock.WithLease(time.Minute)).Lock(context.Background())
			require.NoError(t, err)
			var asked atomic.Int64
			acquire := redistest.Each(netScript("acquire"), redistest.Drop)
			b.proxy.OnReply(func(cmd []string) redistest.Action {
				if acquire(cmd) == redistest.Drop {
					asked.Add(1)
				}
				return redistest.Pass
			})
			waiter := startLock(context.Background(), b.lock.Mutex(parked.name))
			redistest.Eventually(t, netSlack, func() bool { return asked.Load() == 2 }, "must ask again after the subscription")
			_, err = b.lock.Mutex(parked.name).IsLocked(context.Background()) // on the same connection
			require.NoError(t, err)

			b.proxy.BlackHole(true)
			hole := time.After(10 * time.Second)
			expiry := b.expiry(t)
			short, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			err = startLock(short, b.lock.Mutex(b.name+":short")).within(t, time.Second+netSlack).err
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, rlock.ErrUnreachable)
			for name, wait := range map[string]time.Duration{":once": 0, ":try": time.Second} { // an attempt may take a second
				began := time.Now()
				_, _, err = b.lock.Mutex(b.name+name).TryLock(context.Background(), wait)
				require.ErrorIs(t, err, rlock.ErrNotAcquired)
				require.ErrorIs(t, err, rlock.ErrUnreachable)
				require.NotErrorIs(t, err, context.DeadlineExceeded, "no ctx has ended")
				require.Less(t, time.Since(began), time.Second+netSlack)
			}
			told.by(t, expiry.Add(time.Second), tellSlack) // a renewal may have come first
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			require.NoError(t, unlockParked(), "only its message may vanish")
			(&netFixture{other: b.other, name: b.name}).becomesFree(t, 3*time.Second+netSlack)
			<-hole
			waiter.waits(t)
			b.proxy.BlackHole(false)

			got := waiter.within(t, netWakeUp)
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
			require.NoError(t, long.Err())
			require.NoError(t, unlockLong())
			for _, left := range []string{b.name, b.name + ":short", b.name + ":once", b.name + ":try", b.name + ":long", parked.name} {
				(&netFixture{other: b.other, name: left}).becomesFree(t, netWakeUp)
			}
			parked.awaitSubscribers(t, 0)
		})
	}
}
