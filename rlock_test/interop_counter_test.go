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

// What the tests of latches, semaphores and permits beside Redisson have in common.

// waitInGo begins to wait, and returns when that was refused, and waits for a message or its subscription. Nothing else of the test may wait in Go.
func waitInGo(t testing.TB, wait func(context.Context) error) <-chan event {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel) // ends the goroutine, if nothing did before
	events := make(chan event, 1)
	go func() {
		began := time.Now()
		err := wait(ctx)
		events <- event{began, time.Now(), err}
	}()
	redistest.Eventually(t, 10*time.Second, func() bool { return waiting(t) == 1 }, "it waits")
	return events
}

// waitInJava begins to wait on a thread of its own, and returns when that only waits for a message.
func (j *javaThread) waitInJava(t testing.TB, op, name string, args ...string) <-chan event {
	t.Helper()
	thread := j.of.thread()
	events := thread.startOp(t, op, append([]string{url.QueryEscape(name)}, args...)...)
	redistest.Eventually(t, 10*time.Second, func() bool { return thread.ask(t, "sleeps") == "true" }, "it waits")
	return events
}

// number is what Java answers to a question about the object with that name.
func (j *javaThread) number(t testing.TB, op, name string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(j.ask(t, op, url.QueryEscape(name)), 10, 64)
	require.NoError(t, err)
	return n
}

// sum waits for the numbers that Java's threads answer.
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

// requireQuickWakeUps checks how long a wake-up took, in the median of many.
func requireQuickWakeUps(t testing.TB, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	median := took[len(took)/2]
	t.Logf("wake-up: median %v, max %v", median, took[len(took)-1])
	require.LessOrEqual(t, median, 20*time.Millisecond, "median")
}
