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

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// x and {x} are two locks, although Redisson's rule makes them publish their unlocks on one channel.
func TestNamesThatShareAChannel(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		other := newClient(t, b.rdb)
		plain, braced := b.name, "{"+b.name+"}"
		_, unlockPlain, err := other.Mutex(plain).Lock(context.Background())
		require.NoError(t, err)
		first := lockAsync(t, b.Mutex(plain))
		b.awaitSubscribers(t, b.name, 1)

		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		for _, l := range []locker{tryFor{b.Mutex(braced), 0}, b.Mutex(braced)} {
			_, unlock, err := l.Lock(ctx)
			require.NoError(t, err, "the lock is free, and nobody waits for it")
			require.NoError(t, unlock())
			first.stillWaits(t)
		}

		_, unlockBraced, err := other.Mutex(braced).Lock(context.Background())
		require.NoError(t, err)
		second, third := lockAsync(t, b.Mutex(braced)), lockAsync(t, b.Mutex(braced))
		redistest.Eventually(t, 5*time.Second, func() bool { return waiting(t) == 3 }, "all goroutines wait")
		require.NoError(t, unlockBraced())
		serve := func(a, b pendingLock) pendingLock { // the two may come in either order
			t.Helper()
			select {
			case got := <-a.result:
				require.NoError(t, got.err)
				require.NoError(t, got.unlock())
				return b
			case got := <-b.result:
				require.NoError(t, got.err)
				require.NoError(t, got.unlock())
				return a
			case <-time.After(5 * time.Second): // well below the lease
				require.FailNow(t, "no waiter was woken")
				panic("unreachable")
			}
		}
		rest := serve(second, third).get(t, 5*time.Second)
		require.NoError(t, rest.err)
		first.stillWaits(t)

		// The subscription stays while either lock needs it.
		fourth := lockAsync(t, b.Mutex(braced))
		redistest.Eventually(t, 5*time.Second, func() bool { return waiting(t) == 2 }, "the goroutine waits")
		fourth.cancel()
		require.ErrorIs(t, fourth.get(t, 5*time.Second).err, context.Canceled)
		require.NoError(t, rest.unlock())
		b.awaitSubscribers(t, b.name, 1)
		require.NoError(t, unlockPlain())
		first.getAndUnlock(t, 5*time.Second)
		b.awaitSubscribers(t, b.name, 0)
	})
}

// A TryLock whose wait is shorter than a round trip to Redis still gets a free lock. If the lock is held it returns ErrNotAcquired,
// without blaming the caller's ctx.
func TestTinyWaits(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		c := newClient(t, redistest.Dial(t, proxy.Addr()))
		loadScripts(t, c)
		proxy.Delay(20 * time.Millisecond)
		for _, wait := range []time.Duration{1, time.Microsecond, time.Millisecond} {
			_, unlock, err := c.Mutex(b.name).TryLock(context.Background(), wait)
			require.NoError(t, err, wait)
			_, _, err = newClient(t, b.rdb).Mutex(b.name).TryLock(context.Background(), wait)
			require.ErrorIs(t, err, rlock.ErrNotAcquired, wait)
			require.NotErrorIs(t, err, context.DeadlineExceeded, wait)
			require.NoError(t, unlock())
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
			_, unlock, err := c.Mutex(b.name, o...).Lock(context.Background())
			require.NoError(t, err)
			require.Contains(t, *sent.Load(), strconv.FormatInt(want.Milliseconds(), 10))
			require.LessOrEqual(t, b.pttl(t, b.name), want)
			require.NoError(t, unlock())
		}
	})
	redistest.RunVirtual(t, "trusted", func(t *testing.T) {
		b := newFixture(t)
		const lease = 2999 * time.Microsecond
		m := b.Mutex(b.name, rlock.WithLease(lease))
		// Timers never fire early: a holder that trusted all 2.999 ms could never lose its ctx sooner. A single early
		// cancellation is therefore proof, however late timers fire on a loaded machine.
		redistest.Eventually(t, 20*time.Second, func() bool {
			began := time.Now()
			ctx, unlock, err := m.Lock(context.Background())
			if err != nil {
				require.ErrorIs(t, err, rlock.ErrLost, "the reply came too late")
				return false
			}
			<-ctx.Done()
			told := time.Since(began)
			require.GreaterOrEqual(t, told, 2*time.Millisecond)
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			return told < lease
		}, "the ctx ends before the full 2.999 ms")
	})
}

// The largest possible lease, wait and watchdog time work: nothing overflows.
func TestHugeLeasesAndWaits(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: math.MaxInt64})
		m := b.Mutex(b.name, rlock.WithLease(math.MaxInt64))
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		const years = 290 * 365 * 24 * time.Hour
		require.Greater(t, b.pttl(t, b.name), years)
		inner, unlockInner, err := b.Mutex(b.name).Lock(ctx)
		require.NoError(t, err)
		waiter := lockAsync(t, tryFor{m, math.MaxInt64})
		b.awaitSubscribers(t, b.name, 1)
		require.NoError(t, inner.Err())
		require.NoError(t, unlockInner())
		require.Greater(t, b.pttl(t, b.name), years)
		require.NoError(t, ctx.Err())
		require.NoError(t, unlock())
		got := waiter.get(t, 5*time.Second)
		require.NoError(t, got.err)
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
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
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
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		ctx, unlock, err := rlock.All(b.Mutex(b.name+":a"), b.Mutex(b.name+":b"), b.Mutex(b.name+":c")).Lock(context.Background())
		require.NoError(t, err)
		require.Regexp(t, `^context\.Background[.\w]*\.WithLock\("`+b.name+`:a"\)\.WithLock\("`+b.name+`:b"\)\.WithLock\("`+b.name+`:c"\)$`, fmt.Sprint(ctx))
		require.NoError(t, unlock())
	})
}

// A nil option makes every call of the handle fail, and takes no lock.
func TestNilOption(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
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
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		const levels = 1000
		ctx := context.Background()
		unlocks := make([]rlock.UnlockFunc, levels)
		for i := range levels {
			m := b.Mutex(b.name)
			if i%2 == 0 {
				m = b.Mutex(b.name, rlock.WithLease(testTimeout))
			}
			var err error
			ctx, unlocks[i], err = m.Lock(ctx)
			require.NoError(t, err)
		}
		b.awaitFields(t, b.name, map[string]int64{rlock.Owner(ctx): levels})
		require.Nil(t, ctx.Value(fixture{}), "Value passes through all levels")
		_, ok := rlock.FencingToken(ctx, b.name)
		require.False(t, ok)
		last := levels - 1
		for i := range last { // from the outside in
			require.NoError(t, unlocks[i]())
		}
		b.awaitFields(t, b.name, map[string]int64{rlock.Owner(ctx): 1})
		require.NoError(t, unlocks[last]())
		require.False(t, b.exists(t, b.name))
	})
}
