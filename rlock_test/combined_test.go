package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A process keeps a lock after its unlock (WithLinger) and does not know yet that its key was deleted. If it then adopts a ticket
// for the same lock, the adopted hold replaces the lost one.
func TestKeptTwice(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		const d = 2 * time.Second
		m := b.Mutex(b.name, rlock.WithLinger(d))
		keep(t, b.Client, m)
		began := time.Now()
		require.NoError(t, b.do(t, "DEL", b.name).Error())
		ticket := takenAlong(t, newClient(t, b.rdb).Mutex(b.name))
		_, unlock, err := b.Adopt(context.Background(), ticket, rlock.WithLinger(long))
		require.NoError(t, err)
		require.NoError(t, unlock())
		redistest.Eventually(t, testTimeout, func() bool { return b.Stats().Idle == 1 }, "the lock is kept")
		sleep(time.Until(began.Add(d + d/4))) // the time of the lost hold is over
		require.True(t, b.exists(t, b.name))
		asked := time.Now()
		lockAndUnlock(t, newClient(t, b.rdb).Mutex(b.name))
		requireTookAtMost(t, time.Second, asked, time.Now())
		require.Zero(t, b.Stats().Idle)
		lockAndUnlock(t, m)
	})
}

// Goroutines that wait while a lock is exported do not know the hold that adopts the ticket. That hold looks for them.
func TestAskedAfterAnAdopt(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		lockAndUnlock(t, b.Mutex(b.name+":ear", rlock.WithAsked()))
		b.earsOf(t, b.Client)
		ticket := takenAlong(t, b.Mutex(b.name))
		waiter := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
		b.awaitSubscribers(t, b.name, 1)
		b.awaitQueued(t, b.name)
		ctx, unlock, err := b.Adopt(context.Background(), ticket, rlock.WithAsked())
		require.NoError(t, err)
		adopted := time.Now()
		awaitAsked(t, ctx)
		requireTookAtMost(t, time.Second, adopted, time.Now())
		require.NoError(t, unlock())
		waiter.getAndUnlock(t, testTimeout)
	})
}

// G8: a process that keeps a lock, and does not know yet that it was forced open, issues no tokens above that of the new owner.
func TestNoTokensOfALostLock(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		m := b.FencedMutex(b.name, rlock.WithLinger(long))
		keep(t, b.Client, m)
		other := newClient(t, b.rdb).FencedMutex(b.name)
		answer(other.ForceUnlock(context.Background())).is(t, true)
		next := locked(t, other)
		owner, _ := other.FencingToken(next.ctx)
		for {
			ctx, unlock, err := m.TryLock(context.Background(), 0)
			if err != nil {
				require.ErrorIs(t, err, rlock.ErrNotAcquired, "the process has noticed the loss")
				break
			}
			token, _ := m.FencingToken(ctx)
			require.Less(t, token, owner)
			_ = unlock() // fails when the loss is noticed
		}
		require.NoError(t, next.unlock())
		require.NoError(t, b.do(t, "DEL", "redisson_lock_token:{"+b.name+"}").Error())
	})
}

// A hold that an All has re-entered can be exported once that All has ended, but not before.
func TestExportAfterAnAll(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		m := b.Mutex(b.name)
		hold := locked(t, m)
		all := locked(t, under{hold.ctx, rlock.All(m, b.Mutex(b.name+":2"))})
		for _, ctx := range []context.Context{hold.ctx, all.ctx} {
			answer(rlock.Export(ctx)).fails(t, rlock.ErrNotExported)
		}
		require.NoError(t, all.unlock())
		ticket := answer(rlock.Export(hold.ctx)).ok(t)
		require.NoError(t, hold.unlock())
		_, unlock, err := b.Adopt(context.Background(), ticket)
		require.NoError(t, err)
		require.NoError(t, unlock())
	})
}

// A lock is not kept after its unlock if its hold was asked for, even by a waiter that cannot ask again: a leader that resigns for
// such a waiter would otherwise keep it out.
func TestNotKeptWhenAsked(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		m := b.Mutex(b.name, rlock.WithAsked(), rlock.WithLinger(long))
		keep(t, b.Client, m)
		hold := locked(t, m)
		listensOutside(t, b.rdb, "redisson_lock__channel:{"+b.name+"}", func() {})
		awaitAsked(t, hold.ctx)
		require.NoError(t, hold.unlock())
		require.False(t, b.exists(t, b.name))
		require.Zero(t, b.Stats().Idle)
	})
}
