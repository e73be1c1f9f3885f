// Package rlocktest tests code that uses rlock: real locks, semaphores and latches on an in-memory Redis, without a server or a socket.
//
// It never waits for anything outside, so it works in a testing/synctest bubble, where a 30-second lease expires instantly:
//
//	func TestChargeStopsWhenTheLockIsLost(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			locks := rlocktest.New(t)
//			err := locks.Mutex("order:42").Do(t.Context(), func(ctx context.Context) error {
//				locks.FailRedis() // renewals no longer arrive
//				<-ctx.Done()      // 30 seconds later
//				return ctx.Err()
//			})
//			if !errors.Is(err, rlock.ErrLost) {
//				t.Errorf("got %v, want a loss", err)
//			}
//		})
//	}
//
// [New] returns a [Client], which is an rlock.Client with helpers for the test:
//
//   - [Client.HoldElsewhere] makes another process hold a lock; [Client.Elsewhere] is another process's Client.
//   - [Client.HoldPermitsElsewhere] makes another process take permits of a Semaphore, [Client.HoldExpiringPermitsElsewhere] of a
//     PermitSemaphore.
//   - [Client.CountDownElsewhere] makes another process count down a latch.
//   - [Client.Crash] kills another process with all its holds.
//   - [Client.Lose] ends a hold under its holder, [Client.LosePermit] a permit of a PermitSemaphore.
//   - [Client.FailRedis] disconnects the code under test from Redis.
//   - [Client.AssertHeld] checks that ctx carries a lock.
//   - [Client.LockOrder] reports lock orders that could deadlock, even if none did.
//
// A lock still held or waited for when the test ends is a test error.
//
// In a bubble, synctest.Wait returns once all goroutines are blocked: then each is either past Lock or waiting. The code under test must
// stay inside the bubble: no real servers, no outside channels. Outside a bubble everything works the same in real time; a short
// rlock.Options.WatchdogTimeout then saves time.
//
// Code that takes an rlock.Locker can also be tested with a fake.
package rlocktest
