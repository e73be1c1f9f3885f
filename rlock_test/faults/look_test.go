package faults

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// subscribers returns the number of subscribers to a lock's unlock channel at one node, or -1 if the node does
// not answer.
func subscribers(t testing.TB, node rueidis.Client, name string, sharded bool) int {
	t.Helper()
	what := "NUMSUB"
	if sharded {
		what = "SHARDNUMSUB"
	}
	ctx, cancel := context.WithTimeout(context.Background(), promptly)
	defer cancel()
	lock, rw := "redisson_lock__channel:{"+name+"}", "redisson_rwlock:{"+name+"}"
	n, err := node.Do(ctx, node.B().Arbitrary("PUBSUB", what, lock, rw).Build()).AsIntMap()
	if err != nil {
		return -1
	}
	return int(n[lock] + n[rw])
}

func awaitSubscribers(t testing.TB, node rueidis.Client, name string, sharded bool, n int, within time.Duration) {
	t.Helper()
	redistest.Eventually(t, within, func() bool { return subscribers(t, node, name, sharded) == n }, "subscribers")
}

// owners returns the lock's hash.
func owners(t testing.TB, rdb rueidis.Client, name string) map[string]int64 {
	t.Helper()
	m, err := do(t, rdb, "HGETALL", name).AsIntMap()
	require.NoError(t, err)
	return m
}

// remaining is the remaining lease of a lock in Redis.
func remaining(t testing.TB, rdb rueidis.Client, name string) time.Duration {
	t.Helper()
	ms, err := do(t, rdb, "PTTL", name).AsInt64()
	require.NoError(t, err)
	return time.Duration(ms) * time.Millisecond
}

// queueOf is the key of the queue in which processes wait for a lock.
func queueOf(name string) string { return "rlock_queue:{" + name + "}" }

// queued returns the owners in the queue, in order.
func queued(t testing.TB, rdb rueidis.Client, name string) []string {
	t.Helper()
	all, err := do(t, rdb, "ZRANGE", queueOf(name), "0", "-1").AsStrSlice()
	require.NoError(t, err)
	return all
}

// awaitQueued waits until n processes have a place in the queue.
func awaitQueued(t testing.TB, rdb rueidis.Client, name string, n int) {
	t.Helper()
	redistest.Eventually(t, promptly, func() bool { return len(queued(t, rdb, name)) == n }, "places in the queue")
}
