package faults

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// In these tests the server itself refuses; redis_refuse_test.go imitates it.

// livesThrough keeps a holder and a waiter across a period in which the server is not ready, between begin and
// end. An unlock and a Lock are called in it, once the server answers with errors. The period is shorter than the leases and
// than the time for which calls are retried.
func (b *netFixture) livesThrough(t *testing.T, refusal string, begin, answers, end func()) {
	t.Helper()
	ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	_, unlockNow, err := b.lock.Mutex(b.name + ":now").Lock(context.Background())
	require.NoError(t, err)
	waits := startLock(context.Background(), b.lock.Mutex(b.name))
	b.awaitSubscribers(t, 1)

	begin()
	unlocked := call(func() error {
		answers()
		return unlockNow()
	})
	fresh := startWaiter(func() (g granted) {
		answers()
		g.ctx, g.unlock, g.err = b.lock.Mutex(b.name + ":new").Lock(context.Background())
		return g
	})
	end()
	require.NoError(t, returned(t, unlocked, netSlack))
	require.NoError(t, fresh.gets(t, netSlack, "repeated").unlock())
	require.NotEmpty(t, netInfo(t, b.direct, "errorstat_"+refusal), "it was said")

	require.NoError(t, ctx.Err())
	require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t))
	b.excluded(t)
	waits.waits(t)
	require.NoError(t, unlock())
	require.NoError(t, waits.gets(t, netWakeUp, "woken by the unlock").unlock())
	require.True(t, b.free(t))
}

// Fault 3 (-READONLY), G1, G2, G4, G6: for a second the server is a replica of a missing master, and keeps its
// data.
func TestRedisIsAReplicaForAWhile(t *testing.T) {
	t.Parallel()
	b := newNetFixture(t, rlock.Options{WatchdogTimeout: 5 * time.Second})
	nobody, err := net.Listen("tcp4", "127.0.0.1:0") // never answers a connection
	require.NoError(t, err)
	t.Cleanup(func() { _ = nobody.Close() })
	_, port, err := net.SplitHostPort(nobody.Addr().String())
	require.NoError(t, err)
	b.livesThrough(t, "READONLY", func() {
		require.NoError(t, do(t, b.direct, "REPLICAOF", "127.0.0.1", port).Error())
	}, func() {}, func() {
		sleep(time.Second)
		require.NoError(t, do(t, b.direct, "REPLICAOF", "NO", "ONE").Error())
	})
}

// Fault 3 (-LOADING), G1, G2, G4, G6: the server was killed, and needs half a second to load its data.
func TestRedisLoadsForAWhile(t *testing.T) {
	t.Parallel()
	b := netFixtureOn(t, redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", "--key-load-delay", "150"),
		rlock.Options{WatchdogTimeout: 8 * time.Second})
	// The server answers after every thousand keys. Each takes about 0.2 ms, or more if the CPU is busy.
	const fill = "for i = 1, 2100 do redis.call('hset', KEYS[1], i, i) end return 1"
	require.NoError(t, do(t, b.direct, "EVAL", fill, "1", "much").Error())
	ctx, cancel := context.WithTimeout(context.Background(), failover)
	defer cancel()
	b.livesThrough(t, "LOADING", b.server.Kill, func() {
		for ctx.Err() == nil { // the server listens before it loads
			conn, err := net.Dial("tcp4", b.server.Addr())
			if err == nil {
				_ = conn.Close()
				return
			}
			sleep(time.Millisecond)
		}
	}, func() { b.restart(t) })
}
