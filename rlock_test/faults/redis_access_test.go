package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// newACLFixture returns a fixture whose lock client is the user app, with all rights at first.
func newACLFixture(t *testing.T, o rlock.Options) *netFixture {
	t.Helper()
	s := redistest.Start(t)
	admin := s.Client(t)
	require.NoError(t, do(t, admin, "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all").Error())
	return netFixtureOn(t, s, o, func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" })
}

func (b *netFixture) rules(t *testing.T, rules ...string) {
	t.Helper()
	require.NoError(t, do(t, b.direct, append([]string{"ACL", "SETUSER", "app"}, rules...)...).Error())
}

// expiry returns the time at which Redis expires the key. Test and server share a wall clock.
func (b *netFixture) expiry(t testing.TB) time.Time {
	t.Helper()
	ms, err := do(t, b.direct, "PEXPIRETIME", b.name).AsInt64()
	require.NoError(t, err)
	require.Positive(t, ms)
	return time.UnixMilli(ms)
}

// Fault 3 (ACL), G2, G5: the user loses the right to run scripts in mid-hold. The holder's ctx is cancelled
// before the key can expire, and Lock fails at once with the reason.
func TestRedisScriptsForbiddenInMidHold(t *testing.T) {
	t.Parallel()
	b := newACLFixture(t, rlock.Options{WatchdogTimeout: 3 * time.Second})
	ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	told := cancellationOf(ctx)
	b.rules(t, "-evalsha")
	expiry := b.expiry(t)
	got := startLock(context.Background(), b.lock.Mutex(b.name+":new")).within(t, netSlack)
	require.ErrorContains(t, got.err, "NOPERM")
	told.by(t, expiry, tellSlack)
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	require.ErrorIs(t, unlock(), rlock.ErrLost)
	b.becomesFree(t, 2*netSlack)
}

// Fault 3 (ACL), G5: the right is missing at unlock and comes back later. The release then follows, long before
// the lease expires.
func TestRedisUnlockForbiddenForAWhile(t *testing.T) {
	t.Parallel()
	b := newACLFixture(t, rlock.Options{})
	_, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	b.rules(t, "-evalsha")
	require.ErrorContains(t, returned(t, call(unlock), netSlack), "NOPERM")
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
	sleep(time.Second) // a few attempts, all refused
	b.excluded(t)
	b.rules(t, "+evalsha")
	b.becomesFree(t, 5*time.Second)
}

// Fault 3 (ACL), G2: the user loses one key. Redis checks keys before it runs a script, so every renewal with
// that key fails. Its holder's ctx is cancelled in time; holds renewed in the same batch are not lost.
func TestRedisKeyForbiddenInMidHold(t *testing.T) {
	t.Parallel()
	const watchdog = 3 * time.Second
	b := newACLFixture(t, rlock.Options{WatchdogTimeout: watchdog})
	ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	told := cancellationOf(ctx)
	type hold struct {
		ctx    context.Context
		unlock rlock.UnlockFunc
	}
	var others []hold
	for i := range 60 {
		ctx, unlock, err := b.lock.Mutex(fmt.Sprintf("other:%d", i)).Lock(context.Background())
		require.NoError(t, err)
		others = append(others, hold{ctx, unlock})
	}
	b.rules(t, "resetkeys", "~other:*")
	expiry := b.expiry(t) // final
	told.by(t, expiry, tellSlack)
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	sleep(2 * watchdog)
	for _, o := range others {
		require.NoError(t, o.ctx.Err())
		require.NoError(t, o.unlock())
	}
	require.Error(t, unlock())
}

// Fault 3 (ACL), G4, G5: the user loses the channel. Unlock releases the lock, but reports that no waiter was
// notified. A waiter of the same user fails with the reason; another user's waiter gets the lock when the lease
// would have expired, or earlier.
func TestRedisChannelForbiddenInMidHold(t *testing.T) {
	t.Parallel()
	const lease = 4 * time.Second
	b := newACLFixture(t, rlock.Options{})
	_, unlock, err := b.lock.Mutex(b.name, rlock.WithLease(lease)).Lock(context.Background())
	require.NoError(t, err)
	mine := startLock(context.Background(), b.lock.Mutex(b.name))
	b.awaitSubscribers(t, 1)
	theirs := startLock(context.Background(), b.other.Mutex(b.name))
	b.awaitSubscribers(t, 2)
	b.rules(t, "resetchannels")
	require.ErrorContains(t, mine.within(t, netSlack).err, "NOPERM")
	require.Error(t, unlock(), "the message was not published")
	require.True(t, b.free(t), "but released")
	got := theirs.within(t, lease+netSlack)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
}

// Fault 3 (WRONGPASS), G2, G5: the password changes and all connections are closed. The holder's ctx is
// cancelled before the key can expire; a waiter and a new Lock fail at once. When the password is restored, the
// lock works again.
func TestRedisPasswordChangedInMidHold(t *testing.T) {
	t.Parallel()
	const watchdog = 3 * time.Second
	b := newACLFixture(t, rlock.Options{WatchdogTimeout: watchdog})
	ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	_, unlockLater, err := b.lock.Mutex(b.name+":later", rlock.WithLease(time.Minute)).Lock(context.Background())
	require.NoError(t, err)
	told := cancellationOf(ctx)
	waiter := startLock(context.Background(), b.lock.Mutex(b.name))
	b.awaitSubscribers(t, 1)
	b.rules(t, "resetpass", ">changed")
	require.NoError(t, do(t, b.direct, "CLIENT", "KILL", "USER", "app").Error())
	expiry := b.expiry(t)
	require.ErrorContains(t, waiter.within(t, 2*netSlack).err, "WRONGPASS")
	got := startLock(context.Background(), b.lock.Mutex(b.name+":new")).within(t, netSlack)
	require.ErrorContains(t, got.err, "WRONGPASS")
	require.ErrorContains(t, returned(t, call(unlockLater), netSlack), "WRONGPASS")
	told.by(t, expiry, tellSlack)
	require.ErrorIs(t, unlock(), rlock.ErrLost)
	b.rules(t, "resetpass", ">secret")
	redistest.Eventually(t, 5*time.Second, func() bool { return !exists(t, b.direct, b.name+":later") }, "released in the background")
	require.NoError(t, b.lock.Mutex(b.name).Do(context.Background(), func(context.Context) error { return nil }))
}
