package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G2: a hold with a bound is renewed until then, and lost at that time, whatever the renewals and its levels ask for. Others get
// in when its unlock is called.
func TestMaxHold(t *testing.T) {
	redistest.Parallel(t)
	const watchdog, most = 600 * time.Millisecond, 2 * time.Second
	for name, options := range map[string][]rlock.Option{
		"renewed":     {rlock.WithMaxHold(most)},
		"fixed lease": {rlock.WithMaxHold(most), rlock.WithLease(atMost)},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			b := newBench(t, rlock.Options{WatchdogTimeout: watchdog})
			m, plain := b.Mutex(b.name, options...), b.Mutex(b.name)
			ctx, unlock, err := m.Lock(context.Background())
			acquired := time.Now()
			require.NoError(t, err)
			_, unlockInner, err := plain.Lock(ctx) // asks for more
			require.NoError(t, err)
			inner, unlockShort, err := b.Mutex(b.name, rlock.WithMaxHold(time.Millisecond)).Lock(ctx)
			require.NoError(t, err)
			waiter := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))

			select {
			case <-ctx.Done():
			case <-time.After(atMost):
				require.FailNow(t, "not told")
			}
			require.InDelta(t, most, time.Since(acquired), float64(most/4))
			require.Error(t, inner.Err())
			var loss *rlock.LostError
			require.ErrorAs(t, context.Cause(ctx), &loss)
			require.Equal(t, rlock.LostMaxHold, loss.Reason)
			require.EqualError(t, loss, `rlock: "`+b.name+`": lost: the longest hold was reached, 2s`)
			_, _, err = m.Lock(ctx)
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, unlockShort(), rlock.ErrLost)
			require.ErrorIs(t, unlockInner(), rlock.ErrLost)
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			got := waiter.get(t, soon)
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
		})
	}
}

// A section that hangs keeps others out for a third of the watchdog time longer at most. A bound shorter than the watchdog time is
// told to Redis, so these get in when it is over.
func TestMaxHoldOfASectionThatHangs(t *testing.T) {
	redistest.Parallel(t)
	for _, most := range []time.Duration{time.Second, 5 * time.Second} {
		t.Run(most.String(), func(t *testing.T) {
			redistest.Parallel(t)
			b := newBench(t, rlock.Options{WatchdogTimeout: shortWatchdog})
			ctx, unlock, err := b.Mutex(b.name, rlock.WithMaxHold(most)).Lock(context.Background())
			acquired := time.Now()
			require.NoError(t, err)
			late := most
			if most > shortWatchdog {
				late += shortWatchdog / 3
			}
			got := lockAsync(t, newClient(t, b.rdb).Mutex(b.name)).get(t, atMost)
			require.NoError(t, got.err)
			require.Error(t, ctx.Err())
			require.Less(t, got.at.Sub(acquired), late+shortWatchdog/6)
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			require.NoError(t, got.ctx.Err())
			require.NoError(t, got.unlock())
		})
	}
}

// An unlock in time is an unlock as any other, and a hold that another process handed over is bounded from when it began.
func TestMaxHoldUnlockedInTime(t *testing.T) {
	redistest.Parallel(t)
	const most = time.Second
	b := newBench(t)
	other := newClient(t, b.rdb)
	m := b.Mutex(b.name, rlock.WithMaxHold(most))
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
	for _, from := range []*rlock.Client{b.Client, other} {
		_, unlock, err := from.Mutex(b.name).Lock(context.Background())
		require.NoError(t, err)
		waiter := lockAsync(t, m)
		b.awaitSubscribers(t, b.name, 1)
		redistest.Eventually(t, atMost, func() bool { return waiting() == 1 }, "it waits")
		require.NoError(t, unlock())
		got := waiter.get(t, soon)
		require.NoError(t, got.err)
		<-got.ctx.Done()
		require.InDelta(t, most, time.Since(got.at), float64(most/4))
		require.ErrorIs(t, context.Cause(got.ctx), rlock.ErrLost)
		require.ErrorIs(t, got.unlock(), rlock.ErrLost)
		redistest.Eventually(t, soon, func() bool { return !b.exists(t, b.name) }, "released, since nobody else is in")
	}
}
