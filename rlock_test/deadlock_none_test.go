package rlock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A circle that a TryLock ends by its timeout, before the victim checks, is not reported as a deadlock.
func TestDeadlockThatEndsByItself(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		w := newWaits()
		o := failAfter(400 * time.Millisecond)
		o.Trace = w.trace()
		b := newFixture(t, o)
		x, y := b.Mutex(b.name+"/x"), b.Mutex(b.name+"/y")
		inside, tried := make(chan struct{}), make(chan error, 1)
		go func() { // ends after the timeout of its TryLock
			tried <- x.Do(t.Context(), func(ctx context.Context) error {
				close(inside)
				w.next(t)
				_, _, err := y.TryLock(ctx, 100*time.Millisecond)
				return err
			})
		}()
		require.NoError(t, y.Do(t.Context(), func(ctx context.Context) error {
			<-inside
			return x.Do(ctx, func(context.Context) error { return nil })
		}))
		err := <-tried
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.NotErrorIs(t, err, rlock.ErrDeadlock)
	})
}

// The same holds between processes, even if a Lock of the circle looks for deadlocks all the time.
func TestDeadlockThatEndsElsewhere(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		w := newWaits()
		o := failAfter(time.Millisecond)
		o.Trace = w.trace()
		patient := failAfter(time.Hour)
		patient.Trace = w.trace()
		one, two := elsewhere(t, b.rdb, o), elsewhere(t, b.rdb, patient) // two never checks whether its wait completes a circle
		x, y := b.name+"/x", b.name+"/y"
		errs := circle(t, []party{
			{one.Mutex(x), one.Mutex(y)},
			{two.Mutex(y), triesFor{two.Mutex(x), 500 * time.Millisecond}},
		}, func(int) { w.next(t) })
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], rlock.ErrNotAcquired)
		require.NotErrorIs(t, errs[1], rlock.ErrDeadlock)
	})
}

// triesFor is a lock whose Lock gives up after a fixed time.
type triesFor struct {
	*rlock.Mutex

	wait time.Duration
}

func (l triesFor) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return l.TryLock(ctx, l.wait)
}

// A circle that leads through a Client without Options.Deadlock is not found, and no Lock fails because of it.
func TestDeadlockWithoutTheOption(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		w := newWaits()
		o := failAfter(10 * time.Millisecond)
		o.Trace = w.trace()
		one, two := elsewhere(t, b.rdb, o), elsewhere(t, b.rdb, rlock.Options{Trace: w.trace()})
		x, y := b.name+"/x", b.name+"/y"
		errs := circle(t, []party{
			{two.Mutex(y), triesFor{two.Mutex(x), time.Second}},
			{one.Mutex(x), one.Mutex(y)},
		}, func(int) { w.next(t) })
		require.ErrorIs(t, errs[0], rlock.ErrNotAcquired)
		require.NoError(t, errs[1])
	})
}

// A circle that forms while processes cannot reach each other is found once they can.
func TestDeadlockAfterAnOutage(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		server := redistest.Start(t)
		rdb := server.Client(t)
		w := newWaits()
		o := failAfter(200 * time.Millisecond)
		o.Trace = w.trace()
		proxy := redistest.StartProxy(t, server.Addr())
		one, two := elsewhere(t, redistest.Dial(t, proxy.Addr()), o), elsewhere(t, rdb, o)
		name := redistest.Name(t)
		x, y := name+"/x", name+"/y"
		errs := circle(t, []party{{one.Mutex(x), one.Mutex(y)}, {two.Mutex(y), two.Mutex(x)}}, func(i int) {
			w.next(t)
			if i == 0 {
				return
			}
			proxy.Refuse(true)
			proxy.CutAll()
			<-time.After(700 * time.Millisecond) // the first probes reach nobody
			proxy.Refuse(false)
		})
		require.Len(t, victimOf(t, errs).Cycle, 2)
	})
}

// Clients that are closed during a deadlock leave nothing behind.
func TestDeadlockClosed(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		w := newWaits()
		o := rlock.Options{Deadlock: rlock.Deadlock{After: time.Millisecond}, Trace: w.trace()}
		b := newFixture(t, o)
		x, y := b.Mutex(b.name+"/x"), b.Mutex(b.name+"/y")
		errs := circle(t, []party{{x, y}, {y, x}}, func(i int) {
			w.next(t)
			if i == 1 {
				b.Close()
			}
		})
		for _, err := range errs {
			require.ErrorIs(t, err, rlock.ErrClosed)
		}
		require.False(t, slices.ContainsFunc(deadlock.Of(b.rdb).Waits(), func(w *deadlock.Wait) bool { return w.Client == b.ID() }))
	})
}

// New refuses an invalid Options.Deadlock.
func TestDeadlockOptions(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		rdb := redistest.Dial(t, redistest.Shared(t))
		for text, d := range map[string]rlock.Deadlock{
			"Options.Deadlock.After is -1s":   {After: -time.Second},
			"Options.Deadlock.After is 1µs":   {After: time.Microsecond},
			"Options.Deadlock.Action is 7":    {After: time.Second, Action: 7},
			"has an Action and no After: set": {Action: rlock.DeadlockFail},
		} {
			_, err := rlock.New(rdb, rlock.Options{Deadlock: d})
			require.ErrorContains(t, err, text)
		}
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
			holder := newClient(t, rdb)
			_, unlock, err := holder.Mutex(name).Lock(t.Context())
			require.NoError(t, err)
			c := newClient(t, rdb, row.o)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			asks := func() int64 {
				all := redistest.Commands(t, rdb)
				return all["evalsha"] + all["eval"] + all["publish"] + all["subscribe"]
			}
			ended := make(chan struct{})
			go func() { // ends with ctx, or after it got the lock
				defer close(ended)
				outer, free := ctx, func() error { return nil }
				if row.under {
					outer, free, _ = c.Mutex(name + "/outer").Lock(ctx)
				}
				if _, unlock, err := c.Mutex(name).Lock(outer); err == nil {
					_ = unlock()
				}
				_ = free()
			}()
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
			require.NoError(t, unlock())
			<-ended
		})
	}
}
