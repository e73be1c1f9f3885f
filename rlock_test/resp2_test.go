package rlock_test

import (
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
)

// Runs tests of owners, waiting, leases and Close on a real server over RESP2. There subscriptions need a connection of their own, and maps
// arrive as arrays.
func TestBasicsOverRESP2(t *testing.T) {
	redistest.Parallel(t)
	for name, test := range map[string]func(*testing.T){
		"queries":             TestQueries,
		"force unlock":        TestForceUnlock,
		"try":                 TestTryLock,
		"cancelled wait":      TestCancelledWait,
		"wrong type":          TestWrongType,
		"two clients":         TestHoldsOfTwoClients,
		"key deleted":         TestKeyDeletedInTheSection,
		"owner and token":     TestOwnerAndToken,
		"order":               TestLocalWaitersAreServedInOrder,
		"many waiters":        TestManyWaitersManyUnlocks,
		"cancel at wake-up":   TestCancelAtTheMomentOfTheWakeUp,
		"crashed holder":      TestCrashedHolder,
		"shared channel":      TestNamesThatShareAChannel,
		"renewed":             TestHoldOutlivesItsWatchdogTime,
		"close while waiting": TestCloseWhileWaitingAndHolding,
		"close at any moment": TestCloseRaces,
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Real(t)
			test(t)
		})
	}
}
