package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
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

// deadlockKinds are locks that a circle may lead through.
var deadlockKinds = map[string]func(c *rlock.Client, name string) rlock.Locker{
	"plain":       func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) },
	"fenced":      func(c *rlock.Client, name string) rlock.Locker { return c.FencedMutex(name) },
	"fair":        func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) },
	"writer":      func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Write() },
	"upgradeable": func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Upgradeable() },
	"All": func(c *rlock.Client, name string) rlock.Locker {
		return rlock.All(c.Mutex(name), c.Mutex(name+"/beside"))
	},
	"fixed lease": func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithLease(time.Minute)) },
	"asked":       func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithAsked()) },
}

// Sections that wait for each other in a circle of 2 to 5 are found, whichever locks it leads through, in one process or between as many. The last that
// began to wait fails, and its error tells of the circle.
func TestDeadlock(t *testing.T) {
	for kind, lock := range deadlockKinds {
		for n := 2; n <= 5; n++ {
			for where, client := range map[string]func(*testing.T, bench, rlock.Options) *rlock.Client{
				"one process": func(_ *testing.T, b bench, _ rlock.Options) *rlock.Client { return b.Client },
				"processes":   func(t *testing.T, b bench, o rlock.Options) *rlock.Client { return elsewhere(t, b.rdb, o) },
			} {
				t.Run(fmt.Sprintf("%s/%d/%s", kind, n, where), func(t *testing.T) {
					redistest.Parallel(t)
					const after = 300 * time.Millisecond
					w := newWaits()
					o := failAfter(after)
					o.Trace = w.trace()
					b := newBench(t, o)
					parties := make([]party, n)
					for i := range parties {
						c := client(t, b, o)
						parties[i] = party{lock(c, fmt.Sprint(b.name, "/", i)), lock(c, fmt.Sprint(b.name, "/", (i+1)%n))}
					}
					e := victimOf(t, circle(t, parties, func(int) { w.next(t) }))
					require.Len(t, e.Cycle, n)
					for i, at := range e.Cycle {
						require.False(t, at.Since.After(at.WaitingSince))
						require.Contains(t, at.Owner, at.Client)
						require.Contains(t, e.Cycle[(i+1)%n].Holds, b.name)
						require.Contains(t, at.WaitsFor, b.name)
					}
				})
			}
		}
	}
}

// elsewhere is a Client of another process.
func elsewhere(t *testing.T, rdb rueidis.Client, o rlock.Options) *rlock.Client {
	t.Helper()
	return newClient(t, deadlock.Apart{Client: rdb, Graph: deadlock.New()}, o)
}

// The Clients of a circle, and their servers, may be several, also in each of several processes.
func TestDeadlockOverServers(t *testing.T) {
	for where, client := range map[string]func(*testing.T, rueidis.Client, rlock.Options) *rlock.Client{
		"one process": func(t *testing.T, rdb rueidis.Client, o rlock.Options) *rlock.Client { return newClient(t, rdb, o) },
		"processes":   elsewhere,
	} {
		t.Run(where, func(t *testing.T) {
			redistest.Parallel(t)
			w := newWaits()
			o := failAfter(300 * time.Millisecond)
			o.Trace = w.trace()
			b := bareBench(t)
			far := redistest.Start(t).Client(t)
			x, y, z := b.name+"/x", b.name+"/y", b.name+"/z"
			one, two := client(t, b.rdb, o), client(t, b.rdb, o)
			var twoFar, three *rlock.Client
			twoFar, three = client(t, far, o), client(t, far, o)
			threeNear := client(t, b.rdb, o)
			if where == "processes" { // each of one process
				second, third := deadlock.New(), deadlock.New()
				two = newClient(t, deadlock.Apart{Client: b.rdb, Graph: second}, o)
				twoFar = newClient(t, deadlock.Apart{Client: far, Graph: second}, o)
				three = newClient(t, deadlock.Apart{Client: far, Graph: third}, o)
				threeNear = newClient(t, deadlock.Apart{Client: b.rdb, Graph: third}, o)
			}
			errs := circle(t, []party{
				{one.Mutex(x), one.Mutex(y)},
				{two.Mutex(y), twoFar.Mutex(z)},
				{three.Mutex(z), threeNear.Mutex(x)},
			}, func(int) { w.next(t) })
			require.Len(t, victimOf(t, errs).Cycle, 3)
		})
	}
}

// A writer waits for all readers, and readers for writers that wait, here or in other processes.
func TestDeadlockWithReaders(t *testing.T) {
	for where, client := range map[string]func(*testing.T, bench, rlock.Options) *rlock.Client{
		"one process": func(_ *testing.T, b bench, _ rlock.Options) *rlock.Client { return b.Client },
		"processes":   func(t *testing.T, b bench, o rlock.Options) *rlock.Client { return elsewhere(t, b.rdb, o) },
	} {
		t.Run("writer/"+where, func(t *testing.T) {
			redistest.Parallel(t)
			w := newWaits()
			o := failAfter(300 * time.Millisecond)
			o.Trace = w.trace()
			b := newBench(t, o)
			one, two, three := client(t, b, o), client(t, b, o), client(t, b, o)
			m := b.name + "/m"
			_, leave, err := two.RWMutex(b.name).Read().Lock(t.Context()) // one more, who keeps the writer out until the end
			require.NoError(t, err)
			errs := circle(t, []party{
				{one.RWMutex(b.name).Read(), one.Mutex(m)},
				{three.Mutex(m), three.RWMutex(b.name).Write()},
			}, func(int) { w.next(t) })
			require.NoError(t, leave())
			require.Len(t, victimOf(t, errs).Cycle, 2)
		})
		t.Run("behind a writer/"+where, func(t *testing.T) {
			redistest.Parallel(t)
			w := newWaits()
			o := failAfter(300 * time.Millisecond)
			o.Trace = w.trace()
			b := newBench(t, o)
			one, two, three := client(t, b, o), client(t, b, o), client(t, b, o)
			m := b.name + "/m"
			wrote := make(chan error, 1)
			errs := circle(t, []party{
				{one.RWMutex(b.name).Read(), one.Mutex(m)},
				{two.Mutex(m), two.RWMutex(b.name).Read()},
			}, func(i int) {
				w.next(t)
				if i > 0 {
					return
				}
				go func() { // ends when it has written
					wrote <- three.RWMutex(b.name).Write().Do(t.Context(), func(context.Context) error { return nil })
				}()
				w.next(t)
				redistest.Eventually(t, atMost, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "it has left its mark")
			})
			require.Len(t, victimOf(t, errs).Cycle, 2)
			require.NoError(t, <-wrote)
		})
	}
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
	clients := []*rlock.Client{a.Client, newClient(t, a.rdb, o), elsewhere(t, a.rdb, o)}
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
					c := clients[(g+i)%len(clients)]
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

// The same between processes, and while the Locks of a circle look for it all the time.
func TestDeadlockThatEndsElsewhere(t *testing.T) {
	redistest.Parallel(t)
	b := bareBench(t)
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

// A circle that leads through a Client without the option is not found, and nobody fails.
func TestDeadlockWithoutTheOption(t *testing.T) {
	redistest.Parallel(t)
	b := bareBench(t)
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
	require.False(t, slices.ContainsFunc(deadlock.Of(b.rdb).Waits(), func(w *deadlock.Wait) bool { return w.Client == b.ID() }))
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

// lockers follow what the goroutines of a test hold and wait for.
type lockers struct {
	mu sync.Mutex // guards the following
	of map[int]*lockerState
}

type lockerState struct {
	holds   []string
	waitsOn string
	gave    *lockerState // what it was when it was a victim last: of another deadlock, maybe at the same time
}

func (s *lockerState) isIn(w rlock.DeadlockWait) bool {
	return s.waitsOn == w.WaitsFor && slices.Contains(s.holds, w.Holds) || s.gave != nil && s.gave.isIn(w)
}

func (l *lockers) set(id int, f func(*lockerState)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[id] == nil {
		l.of[id] = new(lockerState)
	}
	f(l.of[id])
}

// notIn names the wait of a cycle that no goroutine is in; "" if there is none.
func (l *lockers) notIn(e *rlock.DeadlockError) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range e.Cycle {
		found := false
		for _, s := range l.of {
			found = found || s.isIn(w)
		}
		if !found {
			return w.String()
		}
	}
	return ""
}

// Goroutines of several processes take locks of all kinds in random orders. They come to an end, for each deadlock has a victim, which gives way. And
// each is one: when its victim is told, which unlocks nothing before that, all others are found where the error has them.
func TestDeadlocksOfRandomOrders(t *testing.T) {
	redistest.Parallel(t)
	b := bareBench(t)
	o := failAfter(20 * time.Millisecond)
	clients := []*rlock.Client{elsewhere(t, b.rdb, o), elsewhere(t, b.rdb, o), elsewhere(t, b.rdb, o)}
	const goroutines, rounds, names = 9, 12, 5
	states := lockers{of: make(map[int]*lockerState)}
	lock := func(c *rlock.Client, name string, n int, random *rand.Rand) rlock.Locker {
		switch n % 3 {
		case 0:
			return c.Mutex(name)
		case 1:
			return c.FairMutex(name)
		}
		if rw := c.RWMutex(name); random.IntN(2) == 0 {
			return rw.Read()
		}
		return c.RWMutex(name).Write()
	}
	var all sync.WaitGroup
	var victims atomic.Int64
	for g := range goroutines {
		all.Go(func() { // ends after its rounds
			random := rand.New(rand.NewPCG(uint64(g), 3))
			for range rounds {
				ctx, unlocks := t.Context(), []rlock.UnlockFunc(nil)
				for _, n := range random.Perm(names)[:3] {
					name := fmt.Sprint(b.name, "/", n)
					states.set(g, func(s *lockerState) { s.waitsOn = name })
					inner, unlock, err := lock(clients[g%len(clients)], name, n, random).Lock(ctx)
					var e *rlock.DeadlockError
					if errors.As(err, &e) {
						victims.Add(1)
						states.set(g, func(s *lockerState) { s.gave = &lockerState{holds: s.holds, waitsOn: s.waitsOn} })
						if wrong := states.notIn(e); wrong != "" {
							t.Errorf("no deadlock: nobody %s\n%v", wrong, err)
						}
					} else if err != nil {
						t.Error(err)
					}
					states.set(g, func(s *lockerState) {
						if s.waitsOn = ""; err == nil {
							s.holds = append(s.holds, name)
						}
					})
					if err != nil {
						break
					}
					ctx, unlocks = inner, append(unlocks, unlock)
				}
				states.set(g, func(s *lockerState) { s.holds = nil })
				for _, unlock := range slices.Backward(unlocks) {
					if err := unlock(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	require.Positive(t, victims.Load())
	t.Log(victims.Load(), "deadlocks")
}

// A Lock that waits asks nobody, however long it does: without the option, or if its ctx carries no hold. Under a hold it asks when After is over, and its
// Client listens from then on.
func TestDeadlockCosts(t *testing.T) {
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
			redistest.Eventually(t, atMost, func() bool {
				info, err := c.Mutex(name).Info(t.Context())
				return err == nil && len(info.Queue) == 1
			}, "it waits, and has asked for the last time")
			<-time.After(after / 3)
			before := asks()
			<-time.After(watched)
			if row.asks {
				redistest.Eventually(t, atMost, func() bool { return asks() > before }, "it asks")
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
