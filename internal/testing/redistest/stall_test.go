package redistest

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/require"
)

func TestStallsDoNotCount(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s stallLog
		stop := make(chan struct{})
		go s.watch(stop)
		defer close(stop)
		began := time.Now()
		time.Sleep(10 * time.Second)
		s.settle()
		require.Zero(t, s.between(began, time.Now()), "timers in time")
		s.beat(time.Now().Add(-stalled+1), time.Now())
		require.Zero(t, s.between(began, time.Now()), "a busy core")
		s.beat(time.Now().Add(-2*time.Second), time.Now())
		ended := time.Now()
		require.Equal(t, 2*time.Second, s.between(began, ended), "a machine that stood still")
		require.Equal(t, time.Second, s.between(ended.Add(-time.Second), ended), "a part of it")
		require.Equal(t, time.Second, s.between(began, ended.Add(-time.Second)), "a part of it")
		require.Zero(t, s.between(ended, ended.Add(time.Minute)), "after it")
	})
}

// A bound goes on after a stall for as long as it had left.
func TestBoundsOutlastStalls(t *testing.T) {
	t.Parallel()
	began := time.Now()
	stalls.beat(began, began.Add(time.Minute)) // under way
	value := make(chan int, 1)
	time.AfterFunc(stalled+300*time.Millisecond, func() { value <- 7 })
	require.Equal(t, 7, Within(t, stalled, value, "a value after a stall"))
	later := began.Add(2 * stalled)
	Eventually(t, stalled, func() bool { return time.Now().After(later) }, "a condition after a stall")
	require.True(t, Ran(t, began, began.Add(61*time.Second)) <= time.Second, "the machine may stand still, too")
}
