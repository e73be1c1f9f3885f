package rlock_test

import (
	"runtime"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// G5, G9: thousands of calls, most of them in vain, leave nothing, here or in Redis.
func TestManyCallsLeaveNothing(t *testing.T) {
	for kind, test := range map[string]func(*testing.T){
		"locks": cancelledWaitsLeaveNothing, "semaphores": semaphoresLeaveNothing, "permits": permitsLeaveNothing, "latches": latchesLeaveNothing,
	} {
		t.Run(kind, func(t *testing.T) {
			redistest.OnlyVirtual(t, "it counts all goroutines", test)
		})
	}
}

// requireNoGoroutines calls f for each of n names, 64 at a time, and requires that no more goroutines are left than by the first hundred.
func requireNoGoroutines(t *testing.T, rdb rueidis.Client, n int, f func(i int)) {
	t.Helper()
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Ping().Build()).Error()) // a ctx that can be cancelled starts rueidis' goroutines for good
	const first = 100
	settled := func() int {
		sleep(testTimeout)
		redistest.Settle(t)
		return runtime.NumGoroutine()
	}
	inParallel(first, f)
	before := settled()
	inParallel(n-first, func(i int) { f(first + i) })
	require.LessOrEqual(t, settled(), before)
}
