// Package rlocktest is for tests of code that uses rlock: real locks, semaphores and latches, on a Redis in memory that needs no server
// and no socket.
//
// Nothing in it waits for the outside, so it works inside a bubble of testing/synctest, where a lease of 30 seconds ends in no time:
//
//	func TestChargeStopsWhenTheLockIsLost(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			locks := rlocktest.New(t)
//			err := locks.Mutex("order:42").Do(t.Context(), func(ctx context.Context) error {
//				locks.FailRedis() // no renewal arrives any more
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
//   - [Client.HoldElsewhere] has another process hold a lock, and [Client.Elsewhere] is a Client of another process.
//   - [Client.HoldPermitsElsewhere] has another process take permits of a Semaphore, [Client.HoldExpiringPermitsElsewhere] of a PermitSemaphore.
//   - [Client.CountDownElsewhere] has another process count a latch down.
//   - [Client.Crash] has another process die, with all that it holds.
//   - [Client.Lose] ends a hold under its holder, [Client.LosePermit] a permit of a PermitSemaphore.
//   - [Client.FailRedis] cuts the code under test off from Redis.
//   - [Client.AssertHeld] checks that a ctx carries a lock.
//   - [Client.LockOrder] reports orders of locks that could deadlock, even if none did.
//
// When the test ends, whatever is still held or waited for is an error of the test.
//
// In a bubble, synctest.Wait returns when all goroutines are blocked, so those that have to wait for a lock are waiting. The code
// under test may not reach out of the bubble: no real servers, no channels from outside. Outside of a bubble all is the same, on
// the clock of the machine; then a short rlock.Options.WatchdogTimeout saves time.
//
// Code that is only given an rlock.Locker can also be tested with a fake.
package rlocktest
