package rlock_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// locker is a Mutex, or a Mutex locked by TryLock with a fixed wait.
type locker interface {
	Lock(context.Context) (context.Context, rlock.UnlockFunc, error)
}

type tryFor struct {
	*rlock.Mutex
	wait time.Duration
}

func (t tryFor) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return t.TryLock(ctx, t.wait)
}

// lockResult is the result of a Lock, and the time at which it returned.
type lockResult struct {
	ctx    context.Context
	unlock rlock.UnlockFunc
	err    error
	at     time.Time
}

// pendingLock is a Lock running on its own goroutine, which ends with the Lock.
type pendingLock struct {
	result chan lockResult
	cancel context.CancelFunc
}

// lockAsync starts a Lock on its own goroutine.
func lockAsync(t testing.TB, l locker) pendingLock {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	p := pendingLock{make(chan lockResult, 1), cancel}
	go func() {
		var a lockResult
		a.ctx, a.unlock, a.err = l.Lock(ctx)
		a.at = time.Now()
		p.result <- a
	}()
	return p
}

func (p pendingLock) get(t testing.TB, within time.Duration) lockResult {
	t.Helper()
	return redistest.Within(t, within, p.result, "Lock returns")
}

// gets requires that the Lock gets the lock in time.
func (p pendingLock) gets(t testing.TB, within time.Duration) lockResult {
	t.Helper()
	a := p.get(t, within)
	require.NoError(t, a.err)
	return a
}

// getAndUnlock requires that the Lock gets the lock in time, and unlocks it.
func (p pendingLock) getAndUnlock(t testing.TB, within time.Duration) {
	t.Helper()
	require.NoError(t, p.gets(t, within).unlock())
}

func (p pendingLock) stillWaits(t testing.TB) {
	t.Helper()
	select {
	case a := <-p.result:
		require.FailNow(t, "Lock returned", "%v", a.err)
	default:
	}
}

// enter locks under ctx.
func enter(t testing.TB, ctx context.Context, l locker) (section context.Context, unlock rlock.UnlockFunc) {
	t.Helper()
	section, unlock, err := l.Lock(ctx)
	require.NoError(t, err)
	return section, unlock
}

func requireLockFails(t testing.TB, ctx context.Context, l locker, why error) {
	t.Helper()
	_, _, err := l.Lock(ctx)
	require.ErrorIs(t, err, why)
}

// async runs f on a goroutine, which ends with f, and delivers its error.
func async(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

// within requires that an async call returns in time, and returns its error.
func within(t testing.TB, result <-chan error, d time.Duration) error {
	t.Helper()
	return redistest.Within(t, d, result, "the call returns")
}

// awaitSubscribers waits until the unlock channel of a name has n subscribers.
func (b fixture) awaitSubscribers(t testing.TB, name string, n int) {
	t.Helper()
	channel := "redisson_lock__channel:{" + name + "}"
	redistest.Eventually(t, 10*time.Second, func() bool {
		got, err := b.do(t, "PUBSUB", "NUMSUB", channel).ToArray()
		if err != nil || len(got) != 2 {
			return false
		}
		count, err := got[1].AsInt64()
		return err == nil && count == int64(n)
	}, strconv.Itoa(n)+" subscribers of "+channel)
}

func protocol(resp2 bool) func(*rueidis.ClientOption) {
	return func(o *rueidis.ClientOption) {
		if resp2 {
			o.AlwaysRESP2, o.DisableCache = true, true
		}
	}
}

// requireTook requires an exact time in the virtual world. On a machine it may be later, by less than the watchdog time.
func requireTook(t testing.TB, want time.Duration, began, ended time.Time) {
	t.Helper()
	if redistest.IsVirtual(t) {
		require.Equal(t, want, ended.Sub(began))
	} else {
		require.Less(t, ended.Sub(began), want+rlock.DefaultWatchdogTimeout)
	}
}

// requireTookAtMost requires a time of at most most: exactly in the virtual world, see requireTook.
func requireTookAtMost(t testing.TB, most time.Duration, began, ended time.Time) {
	t.Helper()
	if !redistest.IsVirtual(t) {
		most += rlock.DefaultWatchdogTimeout
	}
	require.LessOrEqual(t, ended.Sub(began), most)
}

// sleep waits for a fixed time. It is for tests about time.
func sleep(d time.Duration) { <-time.After(d) }
