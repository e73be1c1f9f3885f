package rlock_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// x and {x} are two locks, although Redisson's rule makes them publish their unlocks on one channel.
func TestNamesThatShareAChannel(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		other := newClient(t, b.rdb)
		plain, braced := b.name, "{"+b.name+"}"
		holdsPlain := locked(t, other.Mutex(plain))
		first := lockAsync(t, b.Mutex(plain))
		b.awaitSubscribers(t, b.name, 1)
		for _, l := range []rlock.Locker{tryFor{b.Mutex(braced), 0}, b.Mutex(braced)} {
			lockAndUnlock(t, l) // it is free, and nobody waits for it
			first.stillWaits(t)
		}

		holdsBraced := locked(t, other.Mutex(braced))
		waits := func(n int) pendingLock {
			t.Helper()
			p := lockAsync(t, b.Mutex(braced))
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == n }, "the goroutine waits")
			return p
		}
		second, third := waits(2), waits(3)
		require.NoError(t, holdsBraced.unlock())
		second.getAndUnlock(t, testTimeout)
		rest := third.gets(t, testTimeout)
		first.stillWaits(t)

		// The subscription stays while either lock needs it.
		fourth := waits(2)
		fourth.cancel()
		require.ErrorIs(t, fourth.get(t, testTimeout).err, context.Canceled)
		require.NoError(t, rest.unlock())
		b.awaitSubscribers(t, b.name, 1)
		require.NoError(t, holdsPlain.unlock())
		first.getAndUnlock(t, testTimeout)
		b.awaitSubscribers(t, b.name, 0)
	})
}

// A TryLock whose wait is shorter than a round trip to Redis still gets a free lock. If the lock is held it returns ErrNotAcquired,
// without blaming the caller's ctx.
func TestTinyWaits(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		proxy.Delay(20 * time.Millisecond)
		for _, wait := range []time.Duration{1, time.Microsecond, time.Millisecond} {
			hold := locked(t, tryFor{c.Mutex(b.name), wait})
			_, _, err := b.Mutex(b.name).TryLock(context.Background(), wait)
			require.ErrorIs(t, err, rlock.ErrNotAcquired, wait)
			require.NotErrorIs(t, err, context.DeadlineExceeded, wait)
			require.NoError(t, hold.unlock())
		}
	})
}

// A lease is sent to Redis in whole milliseconds, so the holder trusts only these (G2).
func TestLeaseInWholeMilliseconds(t *testing.T) {
	redistest.RunVirtual(t, "sent", func(t *testing.T) {
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		var sent atomic.Pointer[[]string]
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if cmd[0] == "EVALSHA" {
				sent.Store(&cmd)
			}
			return redistest.Pass
		})
		b := newBareFixture(t)
		const part = 999 * time.Microsecond
		c := newClient(t, redistest.Dial(t, proxy.Addr()), rlock.Options{WatchdogTimeout: 20*time.Second + part})
		for want, o := range map[time.Duration][]rlock.Option{
			20 * time.Second: nil,
			50 * time.Second: {rlock.WithLease(50*time.Second + part)},
			2 * time.Second:  {rlock.WithLease(2*time.Second + part)},
		} {
			hold := locked(t, c.Mutex(b.name, o...))
			require.Contains(t, *sent.Load(), strconv.FormatInt(want.Milliseconds(), 10))
			require.LessOrEqual(t, b.pttl(t, b.name), want)
			require.NoError(t, hold.unlock())
		}
	})
}

// The same for how long a hold is trusted.
func TestTrustedInWholeMilliseconds(t *testing.T) {
	redistest.OnlyVirtual(t, "a reply may take longer than the lease", func(t *testing.T) {
		b := newFixture(t)
		loadScripts(t, b.Client)
		began := time.Now()
		hold := locked(t, b.Mutex(b.name, rlock.WithLease(2999*time.Microsecond)))
		awaitEnd(t, hold.ctx)
		requireTook(t, 2*time.Millisecond, began, time.Now())
		require.ErrorIs(t, context.Cause(hold.ctx), rlock.ErrLost)
		require.ErrorIs(t, hold.unlock(), rlock.ErrLost)
	})
}

// The largest possible lease, wait and watchdog time work: nothing overflows.
func TestHugeLeasesAndWaits(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: math.MaxInt64})
		m := b.Mutex(b.name, rlock.WithLease(math.MaxInt64))
		hold := locked(t, m)
		const years = 290 * 365 * 24 * time.Hour
		require.Greater(t, b.pttl(t, b.name), years)
		level := locked(t, under{hold.ctx, b.Mutex(b.name)})
		waiter := lockAsync(t, tryFor{m, math.MaxInt64})
		b.awaitSubscribers(t, b.name, 1)
		require.NoError(t, level.ctx.Err())
		require.NoError(t, level.unlock())
		require.Greater(t, b.pttl(t, b.name), years)
		require.NoError(t, hold.ctx.Err())
		require.NoError(t, hold.unlock())
		got := waiter.gets(t, testTimeout)
		require.NoError(t, got.ctx.Err())
		require.NoError(t, got.unlock())
		require.False(t, b.exists(t, b.name))
	})
}

// G3: a waiter does not poll even if the remaining time of a hold exceeds the range of time.Duration.
func TestHugeRemainingTimeIsNotPolled(t *testing.T) {
	redistest.Parallel(t) // in memory such a key expires at once
	s := redistest.Start(t)
	b := fixture{Client: newClient(t, s.Client(t)), rdb: s.Client(t)}
	loadScripts(t, b.Client)
	const most = math.MaxInt64 / int64(time.Millisecond)
	const wraps = 18_446_744_073_710 + 150 // in nanoseconds, 150 ms more than 64 bits hold
	for _, ttl := range []int64{most - 1, most, most + 1, most + 1000, wraps, 100_000_000_000_000} {
		name := redistest.Name(t)
		require.NoError(t, b.do(t, "HSET", name, foreignOwner, "1").Error())
		require.NoError(t, b.do(t, "PEXPIRE", name, strconv.FormatInt(ttl, 10)).Error())
		before := redistest.Commands(t, b.rdb)["evalsha"]
		asked := func() int64 { return redistest.Commands(t, b.rdb)["evalsha"] - before }
		waiter := lockAsync(t, b.Mutex(name))
		redistest.Eventually(t, testTimeout, func() bool { return asked() == 2 }, "one attempt at the start and one after subscribing")
		sleep(200 * time.Millisecond)
		require.EqualValues(t, 2, asked(), ttl)
		require.NoError(t, b.do(t, "DEL", name).Error())
		require.NoError(t, b.do(t, "PUBLISH", "redisson_lock__channel:{"+name+"}", "0").Error())
		waiter.getAndUnlock(t, 5*time.Second)
	}
}

// Printing a ctx with fmt does not read its fields, which change with every re-entry; the race detector would report that.
func TestPrintingAContextThatIsInUse(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		m := b.Mutex(b.name)
		ctx, unlock := enter(t, context.Background(), m)
		stop := make(chan struct{})
		printed := async(func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
					_ = fmt.Sprintf("%v %+v %s", ctx, context.WithValue(ctx, fixture{}, 1), ctx)
				}
			}
		})
		for range 50 {
			require.NoError(t, m.Do(ctx, func(context.Context) error { return nil }))
		}
		close(stop)
		require.NoError(t, within(t, printed, 5*time.Second))
		require.Equal(t, `context.Background.WithCancel.WithLock("`+b.name+`")`, fmt.Sprint(ctx))
		require.NoError(t, unlock())
	})
}

// The ctx of an All prints the names of its locks, from the outside in.
func TestContextOfSeveralIsPrintable(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx, unlock := enter(t, context.Background(), rlock.All(b.Mutex(b.name+":a"), b.Mutex(b.name+":b"), b.Mutex(b.name+":c")))
		require.Regexp(t, `^context\.Background[.\w]*\.WithLock\("`+b.name+`:a"\)\.WithLock\("`+b.name+`:b"\)\.WithLock\("`+b.name+`:c"\)$`, fmt.Sprint(ctx))
		require.NoError(t, unlock())
	})
}

// A nil option makes every call of the handle fail, and takes no lock.
func TestNilOption(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		for _, m := range []*rlock.Mutex{
			b.Mutex(b.name, nil), b.FencedMutex(b.name, rlock.WithLease(time.Second), nil),
		} {
			_, noop, err := m.Lock(context.Background())
			require.ErrorContains(t, err, "an option is nil")
			require.ErrorIs(t, noop(), rlock.ErrNotHeld)
			_, err = m.IsLocked(context.Background())
			require.ErrorContains(t, err, "an option is nil")
		}
		require.False(t, b.exists(t, b.name))
	})
}

// A lock can be re-entered a thousand times, and the unlocks may come in any order.
func TestManyNestedLevels(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		const levels = 1000
		ctx := context.Background()
		var all []lockResult
		for i := range levels {
			m := b.Mutex(b.name)
			if i%2 == 0 {
				m = b.Mutex(b.name, rlock.WithLease(testTimeout))
			}
			all = append(all, locked(t, under{ctx, m}))
			ctx = all[i].ctx
		}
		b.awaitFields(t, b.name, map[string]int64{rlock.Owner(ctx): levels})
		require.Nil(t, ctx.Value(fixture{}), "Value passes through all levels")
		_, ok := rlock.FencingToken(ctx, b.name)
		require.False(t, ok)
		for _, outer := range all[:levels-1] {
			require.NoError(t, outer.unlock())
		}
		b.awaitFields(t, b.name, map[string]int64{rlock.Owner(ctx): 1})
		require.NoError(t, all[levels-1].unlock())
		require.False(t, b.exists(t, b.name))
	})
}
