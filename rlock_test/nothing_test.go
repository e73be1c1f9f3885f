package rlock_test

import (
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
)

// G5, G9: thousands of calls, most of them in vain, leave nothing, here or in Redis. Beside no other test, since they keep the machine busy.
func TestManyLocksLeaveNothing(t *testing.T) { redistest.Virtual(t, cancelledWaitsLeaveNothing) }

func TestManyCallsLeaveNothing(t *testing.T) {
	redistest.Parallel(t)
	for kind, test := range map[string]func(*testing.T){
		"semaphores": semaphoresLeaveNothing, "permits": permitsLeaveNothing, "latches": latchesLeaveNothing,
	} {
		t.Run(kind, func(t *testing.T) {
			redistest.Parallel(t)
			test(t)
		})
	}
}
