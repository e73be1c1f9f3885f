package rlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// There is one upgradeable reader at a time, beside other readers. Upgrade keeps new readers out, makes it the writer
// when the others have left, and afterwards it is a reader again.
func TestUpgrade(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		rw, other := b.RWMutex(b.name), newClient(t, b.rdb).RWMutex(b.name)
		u := rw.Upgradeable()
		require.Equal(t, b.name, u.Name())
		_, _, err := u.Upgrade(ctx)
		require.ErrorIs(t, err, rlock.ErrUpgrade)
		section, unlock := enter(t, ctx, u)
		_, _, err = other.Upgradeable().TryLock(ctx, 100*time.Millisecond)
		require.ErrorIs(t, err, rlock.ErrNotAcquired, "one at a time")
		_, leave, err := other.Read().Lock(ctx)
		require.NoError(t, err, "beside others")
		requireLockFails(t, section, rw.Write(), rlock.ErrUpgrade)
		again, unlockAgain := enter(t, section, u)

		short, cancel := context.WithTimeout(again, 200*time.Millisecond)
		defer cancel()
		_, _, err = u.Upgrade(short)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		redistest.Eventually(t, soon, func() bool { return !b.exists(t, "rlock_writers:{"+b.name+"}") }, "the upgrade has given up")

		upgrade := lockAsync(t, upgrading{u, again})
		redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "the upgrade waits")
		late := lockAsync(t, other.Read())
		b.awaitWaiters(t, 2)
		began := time.Now()
		require.NoError(t, leave())
		got := upgrade.gets(t, soon)
		require.Less(t, got.at.Sub(began), 5*time.Second, "the upgrade is notified")
		late.stillWaits(t)
		fields := b.fieldsOf(t)
		require.Equal(t, "write", fields["mode"])
		require.Len(t, fields, 3, "a writer that also reads, in Redisson's format")
		_, unlockWrite := enter(t, got.ctx, rw.Write())
		require.NoError(t, unlockWrite())
		_, twice, err := u.Upgrade(got.ctx)
		require.NoError(t, err)
		require.NoError(t, twice())
		_, inside := enter(t, got.ctx, u)
		require.NoError(t, inside())

		require.NoError(t, got.unlock())
		reader := late.get(t, soon)
		require.NoError(t, reader.err, "it is a reader again")
		require.NoError(t, again.Err())
		require.NoError(t, reader.unlock())
		why := errors.New("why")
		require.ErrorIs(t, u.UpgradeDo(again, func(ctx context.Context) error {
			require.Equal(t, "write", b.fieldsOf(t)["mode"])
			answer(rw.Write().IsHeld(ctx)).is(t, true)
			return why
		}), why)
		require.Equal(t, "read", b.fieldsOf(t)["mode"])
		require.NoError(t, unlockAgain())
		require.NoError(t, unlock())
		require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
		require.ErrorIs(t, u.UpgradeDo(ctx, func(context.Context) error { panic("no reader") }), rlock.ErrUpgrade)
		rwNothing(t, b.rdb, b.name)

		section, unlock = enter(t, ctx, u)
		answer(rw.Read().ForceUnlock(ctx)).ok(t)
		_, _, err = u.Upgrade(section)
		require.ErrorIs(t, err, rlock.ErrLost)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		rwNothing(t, b.rdb, b.name)
	})
}

// Two goroutines of one section that upgrade exclude each other, and neither mistakes the reader's hold for lost.
func TestUpgradeTwice(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		u := b.RWMutex(b.name).Upgradeable()
		section, unlock := enter(t, context.Background(), u)
		_, back, err := u.Upgrade(section)
		require.NoError(t, err)
		second := lockAsync(t, upgrading{u, section})
		redistest.Eventually(t, soon, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "the second upgrade waits")
		second.stillWaits(t)
		require.NoError(t, back())
		got := second.gets(t, soon)
		require.NoError(t, section.Err())
		require.NoError(t, got.unlock())
		require.NoError(t, unlock())
		rwNothing(t, b.rdb, b.name)
	})
}

// G4: an Upgrade whose mark Redis refuses looks every second, because the last other reader only notifies those with a mark.
func TestUpgradeWithoutItsMark(t *testing.T) {
	redistest.Parallel(t)
	c, proxy, past := behindProxy(t, anyWay)
	refuses := func(replicas string) {
		require.NoError(t, past.do(t, "CONFIG", "SET", "min-replicas-to-write", replicas).Error())
	}
	u := c.RWMutex(past.name).Upgradeable()
	section, _ := enter(t, context.Background(), u)
	_, leave := enter(t, context.Background(), past.RWMutex(past.name).Read())
	var asked atomic.Int32
	proxy.OnReply(func(cmd []string) redistest.Action {
		if isScript(cmd) && slices.Contains(cmd, rlock.Owner(section)) && slices.ContainsFunc(cmd, func(arg string) bool { return strings.HasSuffix(arg, ":write") }) {
			asked.Add(1)
		}
		return redistest.Pass
	})
	refuses("1")
	upgrade := lockAsync(t, upgrading{u, section})
	redistest.Eventually(t, testTimeout, func() bool { return asked.Load() >= 2 }, "it was refused before and after it subscribed")
	require.False(t, past.exists(t, "rlock_writers:{"+past.name+"}"))
	refuses("0")
	require.NoError(t, leave())
	require.NoError(t, upgrade.gets(t, soon).unlock())
}

// A reader's unlock releases it. An Upgrade that reaches Redis after that, while the unlock is still unanswered, is
// refused. The unlock does not report a loss: there was none.
func TestUpgradeMeetsTheUnlock(t *testing.T) {
	redistest.OnlyVirtual(t, "only there it is known that the upgrade waits for the unlock to end", func(t *testing.T) {
		b := newBareFixture(t)
		ctx := context.Background()
		_, leave := enter(t, ctx, newClient(t, b.rdb).RWMutex(b.name).Read())
		answer := make(chan struct{})
		late := &lateAnswer{Client: b.rdb, ran: make(chan struct{}), answer: answer}
		c := newClient(t, late)
		release := sync.OnceFunc(func() { close(answer) })
		t.Cleanup(release)
		require.NoError(t, c.RWMutex(b.name).Read().Do(ctx, func(context.Context) error { return nil })) // loads the scripts
		u := c.RWMutex(b.name).Upgradeable()
		section, unlock := enter(t, ctx, u)
		upgrade := lockAsync(t, upgrading{u, section})
		redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "the upgrade waits")
		b.awaitWaiters(t, 1)

		reader := rlock.Owner(section)
		late.to.Store(&reader)
		unlocked := async(unlock)
		<-late.ran
		require.NotContains(t, b.fieldsOf(t), reader)
		require.NoError(t, leave())
		redistest.Settle(t)
		upgrade.stillWaits(t)
		release()
		require.NoError(t, within(t, unlocked, soon))
		got := upgrade.get(t, soon)
		require.ErrorIs(t, got.err, rlock.ErrUpgrade)
		require.ErrorContains(t, got.err, "the reader was unlocked meanwhile")
		rwNothing(t, b.rdb, b.name)
	})
}

// An upgradeable reader's lease, or longest hold, starts when it gets in: Lock waits as long as it must, and the
// section has the whole lease. When the lease ends, the next reader may upgrade, whether or not the first one unlocks.
func TestUpgradeableWithALease(t *testing.T) {
	const d = 1500 * time.Millisecond
	for what, o := range map[string]rlock.Option{"a lease": rlock.WithLease(d), "a longest hold": rlock.WithMaxHold(d)} {
		runVirtual(t, what, func(t *testing.T, b fixture) {
			ctx := context.Background()
			_, unlock := enter(t, ctx, newClient(t, b.rdb).RWMutex(b.name).Write())
			first := lockAsync(t, b.RWMutex(b.name, o).Upgradeable())
			b.awaitWaiters(t, 1)
			sleep(d + d/3)
			first.stillWaits(t)
			require.NoError(t, unlock())
			got := first.gets(t, soon)
			began := time.Now()
			second := lockAsync(t, newClient(t, b.rdb).RWMutex(b.name).Upgradeable())
			awaitEnd(t, got.ctx)
			require.Greater(t, time.Since(began), d/2)
			require.ErrorIs(t, context.Cause(got.ctx), rlock.ErrLost)
			next := second.gets(t, soon)
			requireLockFails(t, got.ctx, b.RWMutex(b.name).Upgradeable(), rlock.ErrLost)
			_, _, err := b.RWMutex(b.name).Upgradeable().Upgrade(got.ctx)
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, got.unlock(), rlock.ErrLost)
			require.NoError(t, next.ctx.Err())
			require.NoError(t, next.unlock())
			rwNothing(t, b.rdb, b.name)
		})
	}
}

// The same if the section's ctx ended before its lease.
func TestUpgradeableWithALeaseAndACtxThatEnded(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const d = 1500 * time.Millisecond
		b := newFixture(t)
		ctx, cancel := context.WithCancel(context.Background())
		section, unlock := enter(t, ctx, b.RWMutex(b.name, rlock.WithLease(d)).Upgradeable())
		cancel()
		require.ErrorIs(t, context.Cause(section), context.Canceled)
		next := lockAsync(t, newClient(t, b.rdb).RWMutex(b.name).Upgradeable()).gets(t, d+soon)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		require.NoError(t, next.unlock())
		rwNothing(t, b.rdb, b.name)
	})
}

// The second lock has the other terms of the reader: after a crash neither lasts for longer.
func TestUpgradeableTermsOfTheSecondLock(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		u := b.RWMutex(b.name, rlock.WithWatchdog(5*time.Second), rlock.WithGrace(time.Second)).Upgradeable()
		require.NoError(t, u.Do(context.Background(), func(context.Context) error {
			for _, key := range []string{b.name, "rlock_upgrade:{" + b.name + "}"} {
				require.InDelta(t, 6*time.Second, b.pttl(t, key), float64(100*time.Millisecond), key)
			}
			return nil
		}))
		rwNothing(t, b.rdb, b.name)
	})
}

// G2: a hold lost while an Upgrade, or a Lock of Upgradeable, waits is reported as lost by its error, and not as a cancellation.
func TestUpgradeableLostWhileItWaits(t *testing.T) {
	ctx := context.Background()
	for what, row := range map[string]struct {
		inside bool // it is the reader inside, and wants to upgrade
		option rlock.Option
		lose   func(t *testing.T, b fixture)
		reason rlock.LossReason
	}{
		"its lease": {inside: true, option: rlock.WithLease(time.Second), reason: rlock.LostExpired},
		"its bound": {inside: true, option: rlock.WithMaxHold(time.Second), reason: rlock.LostMaxHold},
		"the reader": {inside: true, reason: rlock.LostGone, lose: func(t *testing.T, b fixture) {
			t.Helper()
			answer(b.RWMutex(b.name).Read().ForceUnlock(ctx)).ok(t)
		}},
		"the lock beside it": {inside: true, reason: rlock.LostGone, lose: func(t *testing.T, b fixture) {
			t.Helper()
			b.do(t, "DEL", "rlock_upgrade:{"+b.name+"}")
		}},
		"the lock beside it, of one that is to be a reader": {reason: rlock.LostGone, lose: func(t *testing.T, b fixture) {
			t.Helper()
			b.do(t, "DEL", "rlock_upgrade:{"+b.name+"}")
		}},
	} {
		redistest.RunVirtual(t, what, func(t *testing.T) {
			b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
			rw, other := b.RWMutex(b.name), newClient(t, b.rdb).RWMutex(b.name)
			if row.option != nil {
				rw = b.RWMutex(b.name, row.option)
			}
			u := rw.Upgradeable()
			busy := other.Write()
			if row.inside {
				busy = other.Read()
			}
			_, leave := enter(t, ctx, busy)
			unlock := func() error { return rlock.ErrLost }
			var waits pendingLock
			if row.inside {
				var section context.Context
				section, unlock = enter(t, ctx, u)
				waits = lockAsync(t, lockerFunc(func(context.Context) (context.Context, rlock.UnlockFunc, error) { return u.Upgrade(section) }))
			} else {
				waits = lockAsync(t, u)
			}
			b.awaitWaiters(t, 1)
			if row.lose != nil {
				row.lose(t, b)
			}
			got := waits.get(t, shortWatchdog+soon)
			var lost *rlock.LostError
			require.ErrorAs(t, got.err, &lost)
			require.Equal(t, row.reason, lost.Reason)
			require.NotErrorIs(t, got.err, context.Canceled)
			require.NotErrorIs(t, got.err, rlock.ErrNotAcquired)
			require.Contains(t, got.err.Error(), b.name)
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			if what != "the reader" {
				require.NoError(t, leave())
			}
			rwNothing(t, b.rdb, b.name)
		})
	}
}

// lateAnswer holds back the answer to the first script with this argument, and lets others pass.
type lateAnswer struct {
	rueidis.Client

	to          atomic.Pointer[string]
	ran, answer chan struct{}
}

func (l *lateAnswer) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	to := l.to.Load()
	first := to != nil && slices.Contains(cmd.Commands(), *to) && l.to.CompareAndSwap(to, nil)
	result := l.Client.Do(ctx, cmd)
	if first {
		close(l.ran)
		<-l.answer
	}
	return result
}

type lockerFunc func(context.Context) (context.Context, rlock.UnlockFunc, error)

func (f lockerFunc) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return f(ctx)
}

type upgrading struct {
	u   *rlock.Upgradeable
	ctx context.Context
}

func (u upgrading) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return u.u.Upgrade(valuesFrom{ctx, u.ctx})
}

// valuesFrom is a ctx with the values of another ctx.
type valuesFrom struct {
	context.Context
	values context.Context
}

func (v valuesFrom) Value(key any) any { return v.values.Value(key) }
