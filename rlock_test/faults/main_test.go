// Package faults tests the lock's promises under faults of the network, Redis, the process and the clock. It is a separate
// module, so that the lock does not depend on its dependencies. See docs/internals/testing.md for the tests and how to replay a run.
package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// roles are the main functions of the processes that tests start from this test binary. The environment variable roleEnv
// names the role, and the process's arguments are passed to it.
var roles = map[string]func(args []string) int{
	"peer":   peerMain,
	"worker": workRole,
}

const roleEnv = "RLOCK_FAULTS_ROLE"

func TestMain(m *testing.M) { runRoleOrTests(m) }

// newClient returns a lock client that is closed before rdb.
func newClient(t testing.TB, rdb rueidis.Client, o rlock.Options) *rlock.Client {
	t.Helper()
	c, err := rlock.New(rdb, o)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func do(t testing.TB, rdb rueidis.Client, cmd ...string) rueidis.RedisResult {
	t.Helper()
	return rdb.Do(context.Background(), rdb.B().Arbitrary(cmd...).Build())
}

func exists(t testing.TB, rdb rueidis.Client, name string) bool {
	t.Helper()
	n, err := do(t, rdb, "EXISTS", name).AsInt64()
	require.NoError(t, err)
	return n == 1
}

// subscribers returns the number of subscribers to a lock's unlock channel at one node, or -1 if the node does
// not answer.
func subscribers(t testing.TB, node rueidis.Client, name string, sharded bool) int {
	t.Helper()
	what := "NUMSUB"
	if sharded {
		what = "SHARDNUMSUB"
	}
	ctx, cancel := context.WithTimeout(context.Background(), notice)
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
	redistest.Eventually(t, patience, func() bool { return len(queued(t, rdb, name)) == n }, "places in the queue")
}

// granted is the result of a Lock and the time it returned.
type granted struct {
	ctx    context.Context
	unlock rlock.UnlockFunc
	err    error
	at     time.Time
}

// waiter is a Lock running on its own goroutine.
type waiter chan granted

// startLock calls Lock on a goroutine, which ends when Lock returns: at the latest when the client is closed.
func startLock(ctx context.Context, m *rlock.Mutex) waiter {
	return startWaiter(func() (g granted) {
		g.ctx, g.unlock, g.err = m.Lock(ctx)
		return g
	})
}

// startStubbornLock is startLock for a caller that repeats Lock after ErrUnreachable, for example during
// a failover.
func startStubbornLock(m *rlock.Mutex) waiter {
	return startWaiter(func() (g granted) {
		for g.unlock == nil || g.err != nil && !errors.Is(g.err, rlock.ErrClosed) {
			g.ctx, g.unlock, g.err = m.Lock(context.Background())
		}
		return g
	})
}

func startWaiter(lock func() granted) waiter {
	w := make(waiter, 1)
	go func() {
		g := lock()
		g.at = time.Now()
		w <- g
	}()
	return w
}

// within returns the result of Lock, and fails the test if it takes longer than d.
func (w waiter) within(t testing.TB, d time.Duration) granted {
	t.Helper()
	return redistest.Within(t, d, w, "Lock returns")
}

// gets requires that the waiter gets the lock in time.
func (w waiter) gets(t testing.TB, within time.Duration, why string) granted {
	t.Helper()
	g := w.within(t, within)
	require.NoError(t, g.err, why)
	return g
}

// waits requires that Lock is still waiting.
func (w waiter) waits(t testing.TB) {
	t.Helper()
	select {
	case g := <-w:
		require.FailNow(t, "Lock returned", "%v", g.err)
	default:
	}
}

// call runs f on a goroutine, which ends with f, and delivers its error.
func call(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

// returned requires that a call returns in time, and returns its error.
func returned(t testing.TB, c <-chan error, within time.Duration) error {
	t.Helper()
	return redistest.Within(t, within, c, "the call returns")
}

// lostBy requires that a hold is lost by then: if that is its lease's end, this is G2. What counts is when the library let it end, since the
// machine may be late with everything else.
func lostBy(t testing.TB, ctx context.Context, then time.Time) {
	t.Helper()
	redistest.Within(t, time.Until(then)+patience, ctx.Done(), "the hold is lost")
	var loss *rlock.LostError
	require.ErrorAs(t, context.Cause(ctx), &loss)
	require.ErrorIs(t, loss, rlock.ErrLost)
	require.False(t, loss.Since.After(then), "lost %v too late", loss.Since.Sub(then))
}

// ended requires that the ctx of a hold is cancelled in time, because the hold is lost.
func ended(t testing.TB, ctx context.Context, within time.Duration) {
	t.Helper()
	redistest.Within(t, within, ctx.Done(), "the hold is lost")
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
}

// sleep lets time sleep, for tests of time itself.
func sleep(d time.Duration) { <-time.After(d) }
