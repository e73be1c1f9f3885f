package rlock_test

import (
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
)

// G5, G9: thousands of calls, most of them in vain, leave nothing, here or in Redis. Beside no other test, since they keep the machine busy.
func TestManyCallsLeaveNothing(t *testing.T) {
	redistest.RunVirtual(t, "locks", cancelledWaitsLeaveNothing)
	for kind, test := range map[string]func(*testing.T){
		"semaphores": semaphoresLeaveNothing, "permits": permitsLeaveNothing, "latches": latchesLeaveNothing,
	} {
		t.Run(kind, func(t *testing.T) {
			redistest.Parallel(t)
			test(t)
		})
	}
}
