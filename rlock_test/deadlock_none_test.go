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

// A deadlock that ends by itself before the victim looks is none: a TryLock gives up.
func TestDeadlockThatEndsByItself(t *testing.T) {
	redistest.Parallel(t)
	w := newWaits()
	o := failAfter(400 * time.Millisecond)
	o.Trace = w.trace()
	b := newFixture(t, o)
	x, y := b.Mutex(b.name+"/x"), b.Mutex(b.name+"/y")
	inside, tried := make(chan struct{}), make(chan error, 1)
	go func() { // ends when its wait is over
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
}

// The same between processes, and while the Locks of a circle look for it all the time.
func TestDeadlockThatEndsElsewhere(t *testing.T) {
	redistest.Parallel(t)
	b := newBareFixture(t)
	w := newWaits()
	o := failAfter(time.Millisecond)
	o.Trace = w.trace()
	patient := failAfter(time.Hour)
	patient.Trace = w.trace()
	one, two := elsewhere(t, b.rdb, o), elsewhere(t, b.rdb, patient) // which does not see that its own wait is the last of a circle
	x, y := b.name+"/x", b.name+"/y"
	errs := circle(t, []party{
		{one.Mutex(x), one.Mutex(y)},
		{two.Mutex(y), triesFor{two.Mutex(x), 500 * time.Millisecond}},
	}, func(int) { w.next(t) })
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], rlock.ErrNotAcquired)
	require.NotErrorIs(t, errs[1], rlock.ErrDeadlock)
}

// triesFor is a lock whose Lock gives up after that time.
type triesFor struct {
	*rlock.Mutex

	wait time.Duration
}

func (l triesFor) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return l.TryLock(ctx, l.wait)
}

// A circle through a Client without the option is not found, and no call fails.
func TestDeadlockWithoutTheOption(t *testing.T) {
	redistest.Parallel(t)
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
}

// A circle that comes about while processes cannot hear each other is found when they can.
func TestDeadlockAfterAnOutage(t *testing.T) {
	redistest.Parallel(t)
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
		<-time.After(700 * time.Millisecond) // the first probes find nobody
		proxy.Refuse(false)
	})
	require.Len(t, victimOf(t, errs).Cycle, 2)
}

// Nothing of Clients that were closed in a deadlock stays behind.
func TestDeadlockClosed(t *testing.T) {
	redistest.Parallel(t)
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
}

func TestDeadlockOptions(t *testing.T) {
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
}

// Without the option, or if its ctx carries no hold, a waiting Lock sends no probe, however long it waits. Under a hold it sends one after
// After, and its Client listens from then on.
func TestDeadlockCosts(t *testing.T) {
	redistest.Parallel(t)
	const after, watched = 300 * time.Millisecond, 900 * time.Millisecond
	for _, row := range []struct {
		name  string
		o     rlock.Options
		under bool // a hold
		asks  bool
	}{
		{"without the option", rlock.Options{}, true, false},
		{"without a hold", failAfter(after), false, false},
		{"shorter than After", failAfter(time.Hour), true, false},
		{"under a hold", failAfter(after), true, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			redistest.Parallel(t)
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
			go func() { // ends with ctx, or when it has the lock
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
			}, "it waits, and has asked for the last time")
			<-time.After(after / 3)
			before := asks()
			<-time.After(watched)
			if row.asks {
				redistest.Eventually(t, testTimeout, func() bool { return asks() > before }, "it asks")
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
