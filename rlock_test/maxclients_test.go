package rlock_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G4: a waiter whose process gets no connection for its subscription, because the server has as many as it takes, looks at the lock once a
// second. The Logger hears of it once, until there was a connection.
func TestWaitersAtMaxclients(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	var log lockedBuffer
	// By itself, rueidis spreads commands over several connections, which it dials when they are first used; and on a machine that stood
	// still for a second, it would end an idle one whose answer is late.
	a := newClient(t, s.Client(t, pipelined), rlock.Options{WatchdogTimeout: time.Hour})
	b := newClient(t, s.Client(t, pipelined), rlock.Options{WatchdogTimeout: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for _, c := range []*rlock.Client{a, b} { // connect
		require.NoError(t, c.Mutex("warm").Do(t.Context(), nothing))
	}
	admin := fixture{rdb: s.Client(t)}
	const warning = `level=WARN msg="rlock: Redis answers, but takes no subscription; until it does, nobody is woken, and waiters look once a second`
	page, err := os.ReadFile("../docs/troubleshooting.md")
	require.NoError(t, err)
	require.Contains(t, string(page), warning)
	warnings := func() int { return strings.Count(log.String(), warning) }
	permits := func(c *rlock.Client) *rlock.Semaphore { return c.Semaphore("permits") }
	_, err = permits(a).TrySetPermits(t.Context(), 1)
	require.NoError(t, err)

	handles := func(c *rlock.Client) map[string]rlock.Locker {
		return map[string]rlock.Locker{
			"plain": c.Mutex("plain"), "fenced": c.FencedMutex("fenced"), "fair": c.FairMutex("fair"), "write": c.RWMutex("rw").Write(),
			"read": c.RWMutex("rw2").Read(), "all": rlock.All(c.Mutex("all"), c.FencedMutex("all2")),
		}
	}
	round := func(n int) {
		require.NoError(t, admin.do(t, "CONFIG", "SET", "maxclients", "1").Error())
		unlocks, waits := make(map[string]rlock.UnlockFunc), make(map[string]pendingLock)
		for kind, l := range handles(a) {
			if kind == "read" {
				l = a.RWMutex("rw2").Write()
			}
			_, unlock, err := l.Lock(context.Background())
			require.NoError(t, err, kind)
			unlocks[kind] = unlock
		}
		require.NoError(t, permits(a).Acquire(t.Context(), 1))
		permit := async(func() error { return permits(b).Acquire(context.Background(), 1) })
		for kind, l := range handles(b) {
			waits[kind] = lockAsync(t, l)
		}
		redistest.Eventually(t, testTimeout, func() bool { return warnings() == n }, "it is logged")
		for kind, unlock := range unlocks {
			require.NoError(t, unlock(), kind)
		}
		require.NoError(t, permits(a).Release(t.Context(), 1))
		for kind, wait := range waits {
			got := wait.get(t, testTimeout)
			require.NoError(t, got.err, kind)
			require.NoError(t, got.unlock(), kind)
		}
		require.NoError(t, within(t, permit, testTimeout))
		require.NoError(t, permits(b).Release(t.Context(), 1))
		require.Equal(t, n, warnings())
	}
	round(1)
	require.NoError(t, admin.do(t, "CONFIG", "SET", "maxclients", "10000").Error())
	_, unlock := enter(t, context.Background(), a.Mutex("order:42"))
	wait := lockAsync(t, b.Mutex("order:42"))
	hasOne := func() bool { // for messages
		clients, err := admin.do(t, "CLIENT", "LIST").ToString()
		require.NoError(t, err)
		return strings.Contains(clients, "name=rlock:") // which it gets when it has subscribed
	}
	redistest.Eventually(t, testTimeout, hasOne, "it is subscribed")
	require.NoError(t, unlock())
	wait.getAndUnlock(t, testTimeout)
	redistest.Eventually(t, testTimeout, func() bool { return !hasOne() }, "that connection ends")
	round(2)
}
