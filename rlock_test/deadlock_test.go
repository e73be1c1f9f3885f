package rlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// failAfter are the terms of most tests of deadlocks.
func failAfter(d time.Duration) rlock.Options {
	return rlock.Options{Deadlock: rlock.Deadlock{After: d, Action: rlock.DeadlockFail}}
}

// party is a goroutine of a deadlock: it has the first lock, and wants the second.
type party struct{ has, wants rlock.Locker }

// circle starts a party for each, which take what they have first, and then want the next in their order: each begins to wait when the one before it does.
// Who is a victim unlocks. It returns what each got from its second Lock, when all have ended.
func circle(t *testing.T, parties []party, waits func(i int)) []error {
	t.Helper()
	errs := make([]error, len(parties))
	turns := make([]chan struct{}, len(parties))
	var ready, ended sync.WaitGroup
	ready.Add(len(parties))
	for i, p := range parties {
		turns[i] = make(chan struct{})
		ended.Go(func() { // ends when its locks are had or refused
			errs[i] = do(t.Context(), p.has, func(ctx context.Context) error {
				ready.Done()
				<-turns[i]
				return do(ctx, p.wants, func(context.Context) error { return nil })
			})
		})
	}
	ready.Wait()
	for i := range parties {
		close(turns[i])
		waits(i)
	}
	ended.Wait()
	return errs
}

// waitsOf has a Client's Locks counted when they begin to wait.
type waitsOf struct{ begun chan struct{} }

func newWaits() waitsOf { return waitsOf{make(chan struct{}, 1000)} }

func (w waitsOf) trace() *rlock.Trace {
	return &rlock.Trace{Waiting: func(context.Context, rlock.WaitingInfo) { w.begun <- struct{}{} }}
}

// next waits until one more has begun.
func (w waitsOf) next(t *testing.T) {
	t.Helper()
	select {
	case <-w.begun:
	case <-time.After(atMost):
		t.Error("nobody waits")
	}
}

// victimOf checks that the last one was the only victim, and returns its error.
func victimOf(t *testing.T, errs []error) *rlock.DeadlockError {
	t.Helper()
	last := len(errs) - 1
	for _, err := range errs[:last] {
		require.NoError(t, err)
	}
	require.ErrorIs(t, errs[last], rlock.ErrDeadlock)
	require.ErrorIs(t, errs[last], rlock.ErrNotAcquired)
	var e *rlock.DeadlockError
	require.ErrorAs(t, errs[last], &e)
	require.NotContains(t, errs[last].Error(), "\n")
	return e
}

// Sections that wait for each other in a circle of 2 to 5 are found, whichever locks it leads through. The last that began to wait fails, and its error
// tells of the circle.
func TestDeadlockInAProcess(t *testing.T) {
	kinds := map[string]func(c *rlock.Client, name string) rlock.Locker{
		"plain":  func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) },
		"fenced": func(c *rlock.Client, name string) rlock.Locker { return c.FencedMutex(name) },
		"fair":   func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) },
		"writer": func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Write() },
		"upgradeable": func(c *rlock.Client, name string) rlock.Locker {
			return c.RWMutex(name).Upgradeable()
		},
		"All": func(c *rlock.Client, name string) rlock.Locker {
			return rlock.All(c.Mutex(name), c.Mutex(name+"/beside"))
		},
		"fixed lease": func(c *rlock.Client, name string) rlock.Locker {
			return c.Mutex(name, rlock.WithLease(time.Minute))
		},
	}
	for kind, lock := range kinds {
		for n := 2; n <= 5; n++ {
			t.Run(fmt.Sprintf("%s/%d", kind, n), func(t *testing.T) {
				redistest.Parallel(t)
				w := newWaits()
				o := failAfter(300 * time.Millisecond)
				o.Trace = w.trace()
				b := newBench(t, o)
				locks := make([]rlock.Locker, n)
				for i := range locks {
					locks[i] = lock(b.Client, fmt.Sprint(b.name, "/", i))
				}
				parties := make([]party, n)
				for i := range parties {
					parties[i] = party{locks[i], locks[(i+1)%n]}
				}
				began := time.Now()
				e := victimOf(t, circle(t, parties, func(int) { w.next(t) }))
				require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
				require.Len(t, e.Cycle, n)
				require.Equal(t, b.ID(), e.Cycle[0].Client)
				for i, at := range e.Cycle {
					require.False(t, at.Since.After(at.WaitingSince))
					require.Contains(t, at.Owner, b.ID())
					require.Equal(t, at.WaitsFor, e.Cycle[(i+1)%n].Holds)
				}
			})
		}
	}
}

// The Clients of a circle, and their servers, may be several.
func TestDeadlockOverClients(t *testing.T) {
	redistest.Parallel(t)
	w := newWaits()
	o := failAfter(300 * time.Millisecond)
	o.Trace = w.trace()
	a := newBench(t, o)
	b := newClient(t, a.rdb, o)
	other := newClient(t, redistest.Start(t).Client(t), o)
	x, y, z := a.name+"/x", a.name+"/y", a.name+"/z"
	errs := circle(t, []party{
		{a.Mutex(x), b.Mutex(y)},
		{a.Mutex(y), other.Mutex(z)},
		{other.Mutex(z), b.Mutex(x)},
	}, func(int) { w.next(t) })
	require.Len(t, victimOf(t, errs).Cycle, 3)
}

// A writer waits for all readers, and readers for writers that wait.
func TestDeadlockWithReaders(t *testing.T) {
	t.Run("writer", func(t *testing.T) {
		redistest.Parallel(t)
		w := newWaits()
		o := failAfter(300 * time.Millisecond)
		o.Trace = w.trace()
		b := newBench(t, o)
		rw, m := b.RWMutex(b.name), b.Mutex(b.name+"/m")
		require.NoError(t, rw.Read().Do(t.Context(), func(context.Context) error { // one more reader, whom nobody waits for in the end
			return nil
		}))
		errs := circle(t, []party{{rw.Read(), m}, {m, rw.Write()}}, func(int) { w.next(t) })
		require.Len(t, victimOf(t, errs).Cycle, 2)
	})
	t.Run("behind a writer", func(t *testing.T) {
		redistest.Parallel(t)
		w := newWaits()
		o := failAfter(300 * time.Millisecond)
		o.Trace = w.trace()
		b := newBench(t, o)
		rw, m := b.RWMutex(b.name), b.Mutex(b.name+"/m")
		wrote := make(chan error, 1)
		errs := circle(t, []party{{rw.Read(), m}, {m, rw.Read()}}, func(i int) {
			w.next(t)
			if i == 0 {
				go func() { // ends when it has written
					wrote <- rw.Write().Do(t.Context(), func(context.Context) error { return nil })
				}()
				w.next(t)
			}
		})
		require.Len(t, victimOf(t, errs).Cycle, 2)
		require.NoError(t, <-wrote)
	})
	t.Run("upgrade", func(t *testing.T) {
		redistest.Parallel(t)
		w := newWaits()
		o := failAfter(300 * time.Millisecond)
		o.Trace = w.trace()
		b := newBench(t, o)
		rw, m := b.RWMutex(b.name), b.Mutex(b.name+"/m")
		reads := make(chan error, 1)
		require.NoError(t, rw.Upgradeable().Do(t.Context(), func(ctx context.Context) error {
			return m.Do(ctx, func(ctx context.Context) error {
				go func() { // ends when it has m, which the victim gives up
					reads <- rw.Read().Do(t.Context(), func(ctx context.Context) error {
						return m.Do(ctx, func(context.Context) error { return nil })
					})
				}()
				w.next(t)
				_, _, err := rw.Upgradeable().Upgrade(ctx)
				require.ErrorIs(t, err, rlock.ErrDeadlock)
				return nil
			})
		}))
		require.NoError(t, <-reads)
	})
}

// A deadlock that is to be reported goes to the Logger and to the Trace, once. Nobody fails by it.
func TestDeadlockReport(t *testing.T) {
	redistest.Parallel(t)
	w := newWaits()
	var log lockedBuffer
	told := make(chan rlock.DeadlockInfo, 10)
	trace := w.trace()
	trace.Deadlock = func(_ context.Context, i rlock.DeadlockInfo) { told <- i }
	b := newBench(t, rlock.Options{
		Deadlock: rlock.Deadlock{After: 50 * time.Millisecond}, Trace: trace, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	x, y := b.Mutex(b.name+"/x"), b.Mutex(b.name+"/y")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	both := make(chan struct{})
	go func() { // ends with ctx
		ended <- x.Do(ctx, func(ctx context.Context) error {
			<-both
			return y.Do(ctx, func(context.Context) error { return nil })
		})
	}()
	err := y.Do(t.Context(), func(inner context.Context) error {
		close(both)
		w.next(t)
		_, _, err := x.TryLock(inner, time.Second)
		cancel()
		return err
	})
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.NotErrorIs(t, err, rlock.ErrDeadlock)
	require.ErrorIs(t, <-ended, context.Canceled)
	info := <-told
	require.Equal(t, "mutex", info.Kind)
	require.Equal(t, x.Name(), info.Err.Name)
	require.Len(t, info.Err.Cycle, 2)
	require.Empty(t, told, "it is told once")
	b.Close()
	require.Equal(t, 1, strings.Count(log.String(), "rlock: deadlock"))
	require.Contains(t, log.String(), "holds")
}

// Sections that take their locks in one order never are in a deadlock, however long they wait.
func TestNoDeadlockInOrder(t *testing.T) {
	redistest.Parallel(t)
	told := make(chan rlock.DeadlockInfo, 10)
	o := failAfter(time.Millisecond)
	o.Trace = &rlock.Trace{Deadlock: func(_ context.Context, i rlock.DeadlockInfo) { told <- i }}
	a := newBench(t, o)
	clients := []*rlock.Client{a.Client, newClient(t, a.rdb, o)}
	const names = 6
	lock := func(c *rlock.Client, i, n int) rlock.Locker {
		name := fmt.Sprint(a.name, "/", i)
		switch i % 3 {
		case 0:
			return c.Mutex(name)
		case 1:
			return c.FairMutex(name)
		}
		rw := c.RWMutex(name)
		if n%3 == 0 {
			return rw.Write()
		}
		return rw.Read()
	}
	var all sync.WaitGroup
	errs := make(chan error, 1000)
	for g := range 12 {
		all.Go(func() { // ends after its rounds
			for n := range 15 {
				ctx, unlock := t.Context(), []rlock.UnlockFunc(nil)
				for i := range names {
					if (g*7+n*5+i*i)%3 == 0 {
						continue
					}
					c := clients[(g+i)%2]
					inner, free, err := lock(c, i, g+n).Lock(ctx)
					if err != nil {
						errs <- err
						break
					}
					ctx, unlock = inner, append(unlock, free)
				}
				<-time.After(3 * time.Millisecond) // the section
				for _, free := range slices.Backward(unlock) {
					if err := free(); err != nil {
						errs <- err
					}
				}
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Empty(t, told)
}

// A deadlock that ends by itself before the victim looks is none: a TryLock gives up.
func TestDeadlockThatEndsByItself(t *testing.T) {
	redistest.Parallel(t)
	w := newWaits()
	o := failAfter(400 * time.Millisecond)
	o.Trace = w.trace()
	b := newBench(t, o)
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

// Nothing of Clients that were closed in a deadlock stays behind.
func TestDeadlockClosed(t *testing.T) {
	redistest.Parallel(t)
	w := newWaits()
	o := rlock.Options{Deadlock: rlock.Deadlock{After: time.Millisecond}, Trace: w.trace()}
	b := newBench(t, o)
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
	require.False(t, slices.ContainsFunc(deadlock.Process().Waits(), func(w *deadlock.Wait) bool { return w.Client == b.ID() }))
}

// A lock that its own ctx holds in another form is the shortest circle.
func TestDeadlockWithOneself(t *testing.T) {
	redistest.Parallel(t)
	b := newBench(t, failAfter(50*time.Millisecond))
	err := b.Mutex(b.name).Do(t.Context(), func(ctx context.Context) error {
		return b.RWMutex(b.name).Write().Do(ctx, func(context.Context) error { return nil })
	})
	require.ErrorIs(t, err, rlock.ErrDeadlock)
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

// do runs fn while it holds a lock of whichever kind.
func do(ctx context.Context, l rlock.Locker, fn func(context.Context) error) error {
	_, err := rlock.DoValue(ctx, l, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
	return err
}
