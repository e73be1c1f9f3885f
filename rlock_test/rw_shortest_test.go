package rlock_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G4: a writer, or an upgrade, waits for a renewed reader of Redisson's, which leaves without a message, since another reader is left.
// When the lease of that reader ends, the lock is free without a message, too. The waiter looks then, not when the longest lease would
// have ended.
func TestWriterLooksWhenTheFirstReaderEnds(t *testing.T) {
	const brief = 3 * time.Second
	redistest.Virtual(t, func(t *testing.T) {
		for _, upgrades := range []bool{false, true} {
			b := newFixture(t)
			ctx := context.Background()
			other := newClient(t, b.rdb)
			var end func() error
			waits := func() pendingLock { return lockAsync(t, b.RWMutex(b.name).Write()) }
			if upgrades {
				reader, unlock := enter(t, ctx, b.RWMutex(b.name).Upgradeable())
				end = unlock
				waits = func() pendingLock { return lockAsync(t, upgrading{b.RWMutex(b.name).Upgradeable(), reader}) }
			}
			java := "00000000-0000-0000-0000-000000000000:1"
			holdKey := func(owner string) string { return "{" + b.name + "}:" + owner + ":rwlock_timeout:1" }
			require.NoError(t, b.do(t, "HSET", b.name, "mode", "read", java, "1").Error())
			require.NoError(t, b.do(t, "SET", holdKey(java), "1", "PX", "30000").Error())
			require.NoError(t, b.do(t, "PEXPIRE", b.name, "30000").Error())
			stays, _ := enter(t, ctx, other.RWMutex(b.name, rlock.WithLease(brief)).Read())
			began := time.Now()
			waiter := waits()
			b.awaitWaiters(t, 1)
			redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "it has left its mark")
			require.NoError(t, b.do(t, "HDEL", b.name, java).Error()) // as Redisson's unlock
			require.NoError(t, b.do(t, "DEL", holdKey(java)).Error())
			if !upgrades { // the longest lease is that of the reader who stays
				left, err := b.do(t, "PTTL", holdKey(rlock.Owner(stays))).ToInt64()
				require.NoError(t, err)
				require.NoError(t, b.do(t, "PEXPIRE", b.name, strconv.FormatInt(left, 10)).Error())
			}
			got := waiter.get(t, time.Minute)
			require.NoError(t, got.err)
			require.Less(t, got.at.Sub(began), 2*brief)
			require.NoError(t, got.unlock())
			if end != nil {
				require.NoError(t, end())
			}
		}
	})
}
