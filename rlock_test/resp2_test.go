package rlock_test

import (
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
)

// Runs tests of owners, waiting, leases and Close over RESP2 (they use RESP3, the default, elsewhere). In RESP2
// subscriptions need a connection of their own, and maps arrive as arrays.
func TestBasicsOverRESP2(t *testing.T) {
	redistest.Parallel(t)
	for name, test := range map[string]func(*testing.T){
		"queries":              TestQueries,
		"force unlock":         TestForceUnlock,
		"try":                  TestTryLock,
		"cancelled wait":       TestCancelledWait,
		"names":                TestNames,
		"wrong type":           TestWrongType,
		"fan out before":       TestGoroutinesThatFanOutBeforeLockExcludeEachOther,
		"fan out inside":       TestGoroutinesThatFanOutInsideShareTheHold,
		"detached":             TestDetachedGoroutinesCompete,
		"two handles":          TestEachHoldHasItsOwner,
		"two clients":          TestHoldsOfTwoClients,
		"double unlock":        TestInnerDoubleUnlockLeavesTheOuterHold,
		"escaped":              TestEscapedContextsExcludeEachOther,
		"loss is sticky":       TestLossIsStickyUntilUnlock,
		"key deleted":          TestKeyDeletedInTheSection,
		"re-entry into lost":   TestReentryIntoALostHold,
		"layers":               TestLayersUnlockedInAnyOrder,
		"owner and token":      TestOwnerAndToken,
		"second lock":          TestGoroutinesInsideExcludeEachOtherOnOtherLocks,
		"order":                TestLocalWaitersAreServedInOrder,
		"many waiters":         TestManyWaitersManyUnlocks,
		"cancel at wake-up":    TestCancelAtTheMomentOfTheWakeUp,
		"crashed holder":       TestCrashedHolder,
		"shared channel":       TestNamesThatShareAChannel,
		"renewed":              TestHoldOutlivesItsWatchdogTime,
		"fixed lease":          TestFixedLeaseIsNotRenewed,
		"close while waiting":  TestCloseWhileWaitingAndHolding,
		"close at any moment":  TestCloseRaces,
		"use after close":      TestUseAfterClose,
		"lease of re-entries":  TestLeaseOfReentries,
		"waits under a detach": TestTryLockWaitDoesNotBoundTheSection,
	} {
		t.Run(name, test)
	}
}
