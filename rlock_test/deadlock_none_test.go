package rlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A circle that leads through a Client without Options.Deadlock is not found, and no Lock fails because of it.
func TestDeadlockWithoutTheOption(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		w := newWaits()
		one, two := elsewhere(t, b.rdb, w.failAfter(10*time.Millisecond)), elsewhere(t, b.rdb, rlock.Options{Trace: w.trace()})
		x, y := b.name+"/x", b.name+"/y"
		errs := circle(t, []party{
			{two.Mutex(y), tryFor{two.Mutex(x), time.Second}},
			{one.Mutex(x), one.Mutex(y)},
		}, func(int) { w.next(t) })
		require.ErrorIs(t, errs[0], rlock.ErrNotAcquired)
		require.NoError(t, errs[1])
	})
}

// A waiting Lock sends nothing for deadlock detection, however long it waits, without the option or if its ctx carries no hold.
// Under a hold it asks once After has passed, and from then on its Client listens.
func TestDeadlockCosts(t *testing.T) {
	const after, watched = 300 * time.Millisecond, 900 * time.Millisecond
	for _, row := range []struct {
		name  string
		o     rlock.Options
		under bool // the Lock runs under a hold
		asks  bool
	}{
		{"without the option", rlock.Options{}, true, false},
		{"without a hold", failAfter(after), false, false},
		{"shorter than After", failAfter(time.Hour), true, false},
		{"under a hold", failAfter(after), true, true},
	} {
		redistest.RunVirtual(t, row.name, func(t *testing.T) {
			s := redistest.Start(t)
			rdb, name := s.Client(t), redistest.Name(t)
			hold := locked(t, newClient(t, rdb).Mutex(name))
			c := newClient(t, rdb, row.o)
			asks := func() int64 {
				all := redistest.Commands(t, rdb)
				return all["evalsha"] + all["eval"] + all["publish"] + all["subscribe"]
			}
			waiter := locker(c.Mutex(name))
			if row.under {
				outer := locked(t, c.Mutex(name+"/outer"))
				defer func() { require.NoError(t, outer.unlock()) }()
				waiter = under{outer.ctx, waiter}
			}
			waits := lockAsync(t, waiter)
			redistest.Eventually(t, testTimeout, func() bool {
				info, err := c.Mutex(name).Info(t.Context())
				return err == nil && len(info.Queue) == 1
			}, "the waiter is in the queue and sends nothing more")
			<-time.After(after / 3)
			before := asks()
			<-time.After(watched)
			if row.asks {
				redistest.Eventually(t, testTimeout, func() bool { return asks() > before }, "the Lock looks for a deadlock")
			} else {
				require.Equal(t, before, asks())
			}
			listens, err := rdb.Do(t.Context(), rdb.B().PubsubChannels().Pattern("rlock_client:*").Build()).AsStrSlice()
			require.NoError(t, err)
			require.Equal(t, row.asks, len(listens) == 1)
			require.NoError(t, hold.unlock())
			waits.getAndUnlock(t, testTimeout)
		})
	}
}
