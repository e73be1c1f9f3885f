package faults

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// netRefusals are the errors of a server that is not ready, but may be soon.
var netRefusals = []string{
	"LOADING Redis is loading the dataset in memory",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"READONLY You can't write against a read only replica.",
}

// Fault 3 (-LOADING, -BUSY, -READONLY), G2, G4, G6: the server refuses the first three attempts of each script
// and subscription. Still every call succeeds, the holder keeps the lock, and the waiter gets it.
func TestRedisNotReadyForAMoment(t *testing.T) {
	t.Parallel()
	const watchdog = 3 * time.Second
	for name, protocol := range netProtocols {
		for _, line := range netRefusals {
			t.Run(name+"/"+strings.Fields(line)[0], func(t *testing.T) {
				t.Parallel()
				b := newNetFixture(t, rlock.Options{WatchdogTimeout: watchdog}, protocol)
				seen := make(map[string]int)
				b.proxy.OnRequest(func(cmd []string) redistest.Action {
					if cmd[0] != "EVALSHA" && cmd[0] != "SUBSCRIBE" {
						return redistest.Pass
					}
					call := cmd[0] + cmd[1] + strconv.Itoa(len(cmd))
					if seen[call]++; seen[call] > 3 {
						return redistest.Pass
					}
					return redistest.Fail(line)
				})
				m := b.lock.Mutex(b.name)
				ctx, unlock, err := m.Lock(context.Background())
				require.NoError(t, err)
				sleep(2 * watchdog)
				require.NoError(t, ctx.Err())
				require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t))
				waiter := startLock(context.Background(), m)
				b.awaitSubscribers(t, 1)
				require.NoError(t, unlock())
				got := waiter.within(t, netSlack)
				require.NoError(t, got.err)
				require.NoError(t, got.unlock())
				require.True(t, b.free(t))
			})
		}
	}
}

// Fault 3 (-LOADING, -BUSY, -READONLY), G2, G5: the server keeps refusing. Lock and unlock fail with the reason
// after some seconds, and the holder's ctx is cancelled when its lease expires. Once the server is ready, the
// failed unlock is completed.
func TestRedisNotReadyForLong(t *testing.T) {
	t.Parallel()
	const patience = 3 * time.Second // docs/guarantees.md
	for _, line := range netRefusals {
		word := strings.Fields(line)[0]
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			b := newNetFixture(t, rlock.Options{WatchdogTimeout: 2 * time.Second})
			var refusing atomic.Bool
			b.proxy.OnRequest(func(cmd []string) redistest.Action {
				if refusing.Load() && cmd[0] == "EVALSHA" {
					return redistest.Fail(line)
				}
				return redistest.Pass
			})
			ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			_, unlockLong, err := b.lock.Mutex(b.name+":long", rlock.WithLease(time.Minute)).Lock(context.Background())
			require.NoError(t, err)
			told := cancellationOf(ctx)
			refusing.Store(true)
			expiry := b.expiry(t)
			long := call(unlockLong)
			fresh := startLock(context.Background(), b.lock.Mutex(b.name+":new"))
			told.by(t, expiry, tellSlack)
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			for _, err := range []error{returned(t, long, patience+netSlack), fresh.within(t, patience+netSlack).err} {
				require.ErrorIs(t, err, rlock.ErrUnreachable)
				require.ErrorContains(t, err, word)
				require.NotErrorIs(t, err, rlock.ErrNotAcquired)
			}
			require.True(t, exists(t, b.direct, b.name+":long"))
			refusing.Store(false)
			redistest.Eventually(t, 5*time.Second, func() bool { return !exists(t, b.direct, b.name+":long") }, "released in the background")
			b.becomesFree(t, 0)
		})
	}
}

// Fault 3 (-BUSY), G1, G2, G4: a foreign script blocks the server for less than the lease. All calls made
// meanwhile complete afterwards, and no ctx is cancelled.
func TestRedisBusyWithAScript(t *testing.T) {
	t.Parallel()
	const watchdog = 8 * time.Second
	s := redistest.Start(t, "--lua-time-limit", "50", "--enable-debug-command", "yes")
	for name, block := range map[string][]string{
		"script":      {"EVAL", "local t = redis.call('time') repeat local n = redis.call('time') until n[1] - t[1] > 1 return 1", "0"},
		"debug sleep": {"DEBUG", "SLEEP", "1.5"},
	} {
		t.Run(name, func(t *testing.T) {
			b := netFixtureOn(t, s, rlock.Options{WatchdogTimeout: watchdog})
			m := b.lock.Mutex(b.name)
			ctx, unlock, err := m.Lock(context.Background())
			require.NoError(t, err)
			_, unlockInner, err := m.Lock(ctx)
			require.NoError(t, err)
			blocker := s.Client(t)
			for range 2 {
				blocked := call(func() error { return do(t, blocker, block...).Error() })
				awaitSilence(t, s)
				inner := call(unlockInner)
				waiter, cancel := context.WithCancel(context.Background())
				waits := startLock(waiter, b.other.Mutex(b.name))
				require.NoError(t, returned(t, inner, watchdog))
				require.NoError(t, returned(t, blocked, watchdog))
				require.NoError(t, ctx.Err())
				require.Contains(t, b.fields(t), rlock.Owner(ctx), "its count may not have been taken")
				waits.waits(t)
				b.awaitSubscribers(t, 1)
				cancel()
				require.ErrorIs(t, waits.within(t, netSlack).err, context.Canceled)
				b.awaitSubscribers(t, 0) // otherwise this server's BUSY may answer an UNSUBSCRIBE: pubsub/send.go
				_, unlockInner, err = m.Lock(ctx)
				require.NoError(t, err)
			}
			waits := startLock(context.Background(), m)
			require.NoError(t, unlockInner())
			b.awaitSubscribers(t, 1)
			blocked := call(func() error { return do(t, blocker, block...).Error() })
			awaitSilence(t, s)
			require.NoError(t, returned(t, call(unlock), watchdog))
			got := waits.within(t, netSlack)
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
			require.NoError(t, returned(t, blocked, watchdog))
			require.True(t, b.free(t))
		})
	}
}

// awaitSilence returns once the server has stopped answering.
func awaitSilence(t *testing.T, s *redistest.Server) {
	t.Helper()
	redistest.Eventually(t, netSlack, func() bool { return !s.Answers() }, "the server is busy")
}
