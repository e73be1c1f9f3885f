package rlock_test

import (
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
)

// Tests of owners, waiting, leases and Close, which use RESP3, the default, otherwise, once with RESP2: there subscriptions have a
// connection of their own, and maps come as arrays.
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
