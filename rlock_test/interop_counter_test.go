//go:build interop

package rlock_test

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
)

// Helpers shared by the tests of latches, semaphores and permits beside Redisson.

// waitInGo starts a wait. It returns when Redis has refused the first attempt, and the wait needs a message or its
// subscription. Nothing else of the test may wait in Go.
func waitInGo(t testing.TB, wait func(context.Context) error) <-chan event {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel) // ends the goroutine at the latest
	events := make(chan event, 1)
	go func() {
		began := time.Now()
		err := wait(ctx)
		events <- event{began, time.Now(), err}
	}()
	redistest.Eventually(t, 10*time.Second, func() bool { return waiting(t) == 1 }, "it waits")
	return events
}

// waitInJava starts a wait on a new thread, and returns when the thread sleeps until a message comes.
func (j *javaThread) waitInJava(t testing.TB, op, name string, args ...string) <-chan event {
	t.Helper()
	thread := j.of.thread()
	events := thread.startOp(t, op, append([]string{url.QueryEscape(name)}, args...)...)
	redistest.Eventually(t, 10*time.Second, func() bool { return thread.ask(t, "sleeps") == "true" }, "it waits")
	return events
}

// number asks Java about the object with that name, and returns its answer.
func (j *javaThread) number(t testing.TB, op, name string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(j.ask(t, op, url.QueryEscape(name)), 10, 64)
	require.NoError(t, err)
	return n
}

// sum adds up the numbers in the replies of Java threads.
func (r *redisson) sum(t testing.TB, replies []<-chan reply) (sum int64) {
	t.Helper()
	for _, ch := range replies {
		got := r.await(t, ch)
		require.NoError(t, got.err)
		n, err := strconv.ParseInt(got.value, 10, 64)
		require.NoError(t, err)
		sum += n
	}
	return sum
}

// requireQuickWakeUps checks the median of many wake-up times.
func requireQuickWakeUps(t testing.TB, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	median := took[len(took)/2]
	t.Logf("wake-up: median %v, max %v", median, took[len(took)-1])
	require.LessOrEqual(t, median, 20*time.Millisecond, "median")
}
