package rlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// failAfter returns the options of most deadlock tests.
func failAfter(d time.Duration) rlock.Options {
	return rlock.Options{Deadlock: rlock.Deadlock{After: d, Action: rlock.DeadlockFail}}
}

// party is a member of a deadlock: a goroutine that holds the first lock and wants the second.
type party struct{ has, wants rlock.Locker }

// circle starts a goroutine for each party. All take their first lock, and then ask for the second in order: each one begins to
// wait after the one before it. A victim unlocks its first lock. circle returns the errors of the second Locks once all goroutines
// have ended.
func circle(t *testing.T, parties []party, waits func(i int)) []error {
	t.Helper()
	errs := make([]error, len(parties))
	turns := make([]chan struct{}, len(parties))
	var ready, ended sync.WaitGroup
	ready.Add(len(parties))
	for i, p := range parties {
		turns[i] = make(chan struct{})
		ended.Go(func() { // ends when its second Lock succeeds or fails
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
		sleep(time.Millisecond) // else two waits are of the same age
	}
	ended.Wait()
	return errs
}

// waitsOf counts the Locks of a Client that begin to wait.
type waitsOf struct{ begun chan struct{} }

func newWaits() waitsOf { return waitsOf{make(chan struct{}, 1000)} }

func (w waitsOf) trace() *rlock.Trace {
	return &rlock.Trace{Waiting: func(context.Context, rlock.WaitingInfo) { w.begun <- struct{}{} }}
}

// next waits until one more Lock has begun to wait.
func (w waitsOf) next(t *testing.T) {
	t.Helper()
	select {
	case <-w.begun:
	case <-time.After(testTimeout):
		t.Error("no Lock has begun to wait")
	}
}

// victimOf checks that only the last party was a victim, and returns its error.
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

// deadlockKinds are the locks that can be part of a deadlock.
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

// A circle of 2 or 5 sections that wait for each other is found, for every kind of lock, in one process or with a process for each
// section. The Lock that began to wait last fails, and its error describes the circle.
func TestDeadlock(t *testing.T) {
	for kind, lock := range deadlockKinds {
		for _, n := range []int{2, 5} {
			for where, client := range map[string]func(*testing.T, fixture, rlock.Options) *rlock.Client{
				"one process": func(_ *testing.T, b fixture, _ rlock.Options) *rlock.Client { return b.Client },
				"processes":   func(t *testing.T, b fixture, o rlock.Options) *rlock.Client { return elsewhere(t, b.rdb, o) },
			} {
				redistest.RunVirtual(t, fmt.Sprintf("%s/%d/%s", kind, n, where), func(t *testing.T) {
					const after = 300 * time.Millisecond
					w := newWaits()
					o := failAfter(after)
					o.Trace = w.trace()
					b := newFixture(t, o)
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

// elsewhere returns a Client that acts as another process.
func elsewhere(t *testing.T, rdb rueidis.Client, o rlock.Options) *rlock.Client {
	t.Helper()
	return newClient(t, deadlock.Apart{Client: rdb, Graph: deadlock.New()}, o)
}

// A circle may span several Clients and servers, even if each process uses more than one of them.
func TestDeadlockOverServers(t *testing.T) {
	for where, client := range map[string]func(*testing.T, rueidis.Client, rlock.Options) *rlock.Client{
		"one process": func(t *testing.T, rdb rueidis.Client, o rlock.Options) *rlock.Client { return newClient(t, rdb, o) },
		"processes":   elsewhere,
	} {
		redistest.RunVirtual(t, where, func(t *testing.T) {
			w := newWaits()
			o := failAfter(300 * time.Millisecond)
			o.Trace = w.trace()
			b := newBareFixture(t)
			far := redistest.Start(t).Client(t)
			x, y, z := b.name+"/x", b.name+"/y", b.name+"/z"
			one, two := client(t, b.rdb, o), client(t, b.rdb, o)
			var twoFar, three *rlock.Client
			twoFar, three = client(t, far, o), client(t, far, o)
			threeNear := client(t, b.rdb, o)
			if where == "processes" { // two Clients in each process
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

// Clients on a cluster find deadlocks as well, over sharded and over plain channels.
func TestDeadlockOnACluster(t *testing.T) {
	redistest.Parallel(t)
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			redistest.Parallel(t)
			rdb := redistest.StartCluster(t, 3, 0).Client(t)
			w := newWaits()
			o := failAfter(300 * time.Millisecond)
			o.Trace, o.PlainPubSub = w.trace(), plain
			name := redistest.Name(t)
			const n = 3
			parties := make([]party, n)
			for i := range parties {
				c := elsewhere(t, rdb, o)
				parties[i] = party{c.Mutex(fmt.Sprint(name, "/", i)), c.Mutex(fmt.Sprint(name, "/", (i+1)%n))}
			}
			require.Len(t, victimOf(t, circle(t, parties, func(int) { w.next(t) })).Cycle, n)
		})
	}
}

// A waiter in the queue of a fair lock waits for the holder and for the waiters before it. The reported circle leads through the
// holder; a waiter before it that holds another lock is not part of it.
func TestDeadlockInAFairLine(t *testing.T) {
	for where, client := range map[string]func(*testing.T, fixture, rlock.Options) *rlock.Client{
		"one process": func(_ *testing.T, b fixture, _ rlock.Options) *rlock.Client { return b.Client },
		"processes":   func(t *testing.T, b fixture, o rlock.Options) *rlock.Client { return elsewhere(t, b.rdb, o) },
	} {
		redistest.RunVirtual(t, where, func(t *testing.T) {
			w := newWaits()
			o := failAfter(300 * time.Millisecond)
			o.Trace = w.trace()
			b := newFixture(t, o)
			holder, first, second := client(t, b, o), client(t, b, o), client(t, b, o)
			line, x, y := b.name, b.name+"/x", b.name+"/y"
			errs := circle(t, []party{
				{first.Mutex(x), first.FairMutex(line)},
				{holder.FairMutex(line), holder.Mutex(y)},
				{second.Mutex(y), second.FairMutex(line)},
			}, func(int) { w.next(t) })
			e := victimOf(t, errs)
			require.Len(t, e.Cycle, 2)
			require.Equal(t, line, e.Cycle[0].WaitsFor)
			require.Equal(t, []string{y, line}, []string{e.Cycle[0].Holds, e.Cycle[1].Holds})
		})
	}
}

// A circle is found if a writer waits for readers, or a reader for a writer that waits, in one process or in several.
func TestDeadlockWithReaders(t *testing.T) {
	for where, client := range map[string]func(*testing.T, fixture, rlock.Options) *rlock.Client{
		"one process": func(_ *testing.T, b fixture, _ rlock.Options) *rlock.Client { return b.Client },
		"processes":   func(t *testing.T, b fixture, o rlock.Options) *rlock.Client { return elsewhere(t, b.rdb, o) },
	} {
		redistest.RunVirtual(t, "writer/"+where, func(t *testing.T) {
			w := newWaits()
			o := failAfter(300 * time.Millisecond)
			o.Trace = w.trace()
			b := newFixture(t, o)
			one, two, three := client(t, b, o), client(t, b, o), client(t, b, o)
			m := b.name + "/m"
			_, leave, err := two.RWMutex(b.name).Read().Lock(t.Context()) // another reader, which keeps the writer out until the end
			require.NoError(t, err)
			errs := circle(t, []party{
				{one.RWMutex(b.name).Read(), one.Mutex(m)},
				{three.Mutex(m), three.RWMutex(b.name).Write()},
			}, func(int) { w.next(t) })
			require.NoError(t, leave())
			require.Len(t, victimOf(t, errs).Cycle, 2)
		})
		redistest.RunVirtual(t, "behind a writer/"+where, func(t *testing.T) {
			w := newWaits()
			o := failAfter(300 * time.Millisecond)
			o.Trace = w.trace()
			b := newFixture(t, o)
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
				redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "the writer is noted in Redis")
			})
			require.Len(t, victimOf(t, errs).Cycle, 2)
			require.NoError(t, <-wrote)
		})
	}
	redistest.RunVirtual(t, "upgrade", func(t *testing.T) {
		w := newWaits()
		o := failAfter(300 * time.Millisecond)
		o.Trace = w.trace()
		b := newFixture(t, o)
		rw, m := b.RWMutex(b.name), b.Mutex(b.name+"/m")
		reads := make(chan error, 1)
		require.NoError(t, rw.Upgradeable().Do(t.Context(), func(ctx context.Context) error {
			return m.Do(ctx, func(ctx context.Context) error {
				go func() { // ends when it gets m from the victim
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

// A section that waits in All holds all locks of its ctx: a circle may lead through any of them that others want.
func TestDeadlockOfAll(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		w := newWaits()
		o := failAfter(300 * time.Millisecond)
		o.Trace = w.trace()
		b := newFixture(t, o)
		one, two, three := elsewhere(t, b.rdb, o), elsewhere(t, b.rdb, o), elsewhere(t, b.rdb, o)
		name := func(s string) string { return b.name + "/" + s }
		errs := circle(t, []party{
			{rlock.All(one.Mutex(name("a")), one.FairMutex(name("b")), one.RWMutex(name("c")).Read()), rlock.All(one.Mutex(name("free")), one.Mutex(name("x")))},
			{two.Mutex(name("x")), rlock.All(two.Mutex(name("free")), two.FencedMutex(name("y")))},
			{three.FencedMutex(name("y")), rlock.All(three.Mutex(name("free")), three.RWMutex(name("c")).Write())},
		}, func(int) { w.next(t) })
		require.Len(t, victimOf(t, errs).Cycle, 3)
		_, unlock, err := b.Mutex(name("free")).TryLock(t.Context(), 0)
		require.NoError(t, err)
		require.NoError(t, unlock())
	})
}

// Without DeadlockFail, a deadlock is reported to the Logger and to the Trace, once each, and no Lock fails because of it.
func TestDeadlockReport(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		w := newWaits()
		var log lockedBuffer
		told := make(chan rlock.DeadlockInfo, 10)
		trace := w.trace()
		trace.Deadlock = func(_ context.Context, i rlock.DeadlockInfo) { told <- i }
		b := newFixture(t, rlock.Options{
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
			assert.ErrorIs(t, <-ended, context.Canceled) // before y is unlocked
			return err
		})
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.NotErrorIs(t, err, rlock.ErrDeadlock)
		info := <-told
		require.Equal(t, "mutex", info.Kind)
		require.Equal(t, x.Name(), info.Err.Name)
		require.Len(t, info.Err.Cycle, 2)
		require.Empty(t, told, "the Trace gets one report")
		b.Close()
		require.Equal(t, 1, strings.Count(log.String(), "rlock: deadlock"))
		require.Contains(t, log.String(), "holds")
	})
}

// A Lock that waits for a hold of its own ctx, of another kind of lock, is the shortest circle.
func TestDeadlockWithOneself(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, failAfter(50*time.Millisecond))
		err := b.Mutex(b.name).Do(t.Context(), func(ctx context.Context) error {
			return b.RWMutex(b.name).Write().Do(ctx, func(context.Context) error { return nil })
		})
		require.ErrorIs(t, err, rlock.ErrDeadlock)
	})
}

// do runs fn while it holds a lock of any kind.
func do(ctx context.Context, l rlock.Locker, fn func(context.Context) error) error {
	_, err := rlock.DoValue(ctx, l, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
	return err
}
