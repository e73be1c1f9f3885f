package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// shortWatchdog is for holds whose renewals or losses are waited for. A busy machine may let a process wait for a second or two.
const shortWatchdog = 6 * time.Second

// newACLFixture returns a fixture whose lock client is a user with all rights at first, and a function that changes them.
func newACLFixture(t *testing.T) (b *redisFixture, rules func(...string)) {
	t.Helper()
	s := redistest.Start(t)
	admin := s.Client(t)
	rules = func(rules ...string) {
		t.Helper()
		require.NoError(t, do(t, admin, append([]string{"ACL", "SETUSER", "app"}, rules...)...).Error())
	}
	rules("on", ">secret", "~*", "&*", "+@all")
	return newRedisFixture(t, s, rlock.Options{WatchdogTimeout: shortWatchdog}, func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" }), rules
}

// Fault 3 (ACL), G2, G5: the user loses the right to run scripts. The holder's ctx is cancelled before the key can expire, and Lock and
// unlock fail at once with the reason. When the right is back, the unlock follows, long before the lease expires.
func TestRedisScriptsForbiddenInMidHold(t *testing.T) {
	t.Parallel()
	b, rules := newACLFixture(t)
	ctx, unlock := b.locks(t, b.name)
	_, unlockLong := b.locks(t, b.name+":long", rlock.WithLease(time.Hour))
	rules("-evalsha")
	expiry := b.expiry(t)
	require.ErrorContains(t, startLock(context.Background(), b.lock.Mutex(b.name+":new")).within(t, patience).err, "NOPERM")
	require.ErrorContains(t, returned(t, call(unlockLong), patience), "NOPERM")
	require.ErrorIs(t, unlockLong(), rlock.ErrNotHeld)
	lostBy(t, ctx, expiry)
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	require.ErrorIs(t, unlock(), rlock.ErrLost)
	b.becomesFree(t, b.name)
	require.True(t, exists(t, b.direct, b.name+":long"))
	rules("+evalsha")
	b.becomesFree(t, b.name+":long")
}

// Fault 3 (ACL), G2: the user loses one key. Redis checks keys before it runs a script, so every renewal with that key fails. Its holder's
// ctx is cancelled in time; holds renewed in the same calls are not lost.
func TestRedisKeyForbiddenInMidHold(t *testing.T) {
	t.Parallel()
	b, rules := newACLFixture(t)
	ctx, unlock := b.locks(t, b.name)
	var others []granted
	for i := range 60 {
		ctx, unlock := b.locks(t, fmt.Sprintf("other:%d", i))
		others = append(others, granted{ctx: ctx, unlock: unlock})
	}
	rules("resetkeys", "~other:*")
	lostBy(t, ctx, b.expiry(t))
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	sleep(shortWatchdog)
	for _, o := range others {
		require.NoError(t, o.ctx.Err())
		require.NoError(t, o.unlock())
	}
	require.Error(t, unlock())
}

// Fault 3 (ACL), G4, G5: the user loses the channel. Unlock releases the lock, but reports that no waiter was notified. A waiter of the same
// user fails with the reason; another user's waiter gets the lock when the lease would have expired, or earlier.
func TestRedisChannelForbiddenInMidHold(t *testing.T) {
	t.Parallel()
	b, rules := newACLFixture(t)
	_, unlock := b.locks(t, b.name, rlock.WithLease(patience))
	mine := startLock(context.Background(), b.lock.Mutex(b.name))
	awaitSubscribers(t, b.direct, b.name, false, 1, patience)
	theirs := startLock(context.Background(), b.other.Mutex(b.name))
	awaitSubscribers(t, b.direct, b.name, false, 2, patience)
	rules("resetchannels")
	require.ErrorContains(t, mine.within(t, patience).err, "NOPERM")
	require.Error(t, unlock(), "the message was not published")
	require.NoError(t, theirs.gets(t, 2*patience, "it was released").unlock())
}

// Fault 3 (WRONGPASS), G2, G5: the password changes and all connections are closed. The holder's ctx is cancelled before the key can expire;
// a waiter, a new Lock and an unlock fail at once. When the password is restored, the lock works again.
func TestRedisPasswordChangedInMidHold(t *testing.T) {
	t.Parallel()
	b, rules := newACLFixture(t)
	ctx, unlock := b.locks(t, b.name)
	_, unlockLater := b.locks(t, b.name+":later", rlock.WithLease(time.Hour))
	waiter := startLock(context.Background(), b.lock.Mutex(b.name))
	awaitSubscribers(t, b.direct, b.name, false, 1, patience)
	rules("resetpass", ">changed")
	require.NoError(t, do(t, b.direct, "CLIENT", "KILL", "USER", "app").Error())
	expiry := b.expiry(t)
	require.ErrorContains(t, waiter.within(t, patience).err, "WRONGPASS")
	require.ErrorContains(t, startLock(context.Background(), b.lock.Mutex(b.name+":new")).within(t, patience).err, "WRONGPASS")
	require.ErrorContains(t, returned(t, call(unlockLater), patience), "WRONGPASS")
	lostBy(t, ctx, expiry)
	require.ErrorIs(t, unlock(), rlock.ErrLost)
	rules("resetpass", ">secret")
	b.becomesFree(t, b.name+":later")
	require.NoError(t, b.lock.Mutex(b.name).Do(context.Background(), nothing))
}
