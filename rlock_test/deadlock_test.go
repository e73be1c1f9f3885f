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
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// failAfter returns the options of most deadlock tests.
func failAfter(d time.Duration) rlock.Options {
	return rlock.Options{Deadlock: rlock.Deadlock{After: d, Action: rlock.DeadlockFail}}
}

// apart is a setting of deadlock tests: one Client, or a process for each party.
type apart bool

// inBothSettings runs a test with one Client, and in several processes.
func inBothSettings(t *testing.T, name string, test func(t *testing.T, where apart)) {
	t.Helper()
	redistest.RunVirtual(t, name+"/one process", func(t *testing.T) { test(t, false) })
	redistest.RunVirtual(t, name+"/processes", func(t *testing.T) { test(t, true) })
}

// clients returns a Client for each of n parties.
func (where apart) clients(t *testing.T, rdb rueidis.Client, o rlock.Options, n int) (all []*rlock.Client) {
	t.Helper()
	for i := range n {
		switch {
		case bool(where):
			all = append(all, elsewhere(t, rdb, o))
		case i == 0:
			all = append(all, newClient(t, rdb, o))
		default:
			all = append(all, all[0])
		}
	}
	return all
}

// elsewhere returns a Client that acts as another process.
func elsewhere(t *testing.T, rdb rueidis.Client, o rlock.Options) *rlock.Client {
	t.Helper()
	return newClient(t, deadlock.Apart{Client: rdb, Graph: deadlock.New()}, o)
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
				return do(ctx, p.wants, nothing)
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

// failAfter returns options of a Client whose waits are counted.
func (w waitsOf) failAfter(d time.Duration) rlock.Options {
	o := failAfter(d)
	o.Trace = w.trace()
	return o
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
			inBothSettings(t, fmt.Sprint(kind, "/", n), func(t *testing.T, where apart) {
				w := newWaits()
				b := newBareFixture(t)
				parties := make([]party, n)
				for i, c := range where.clients(t, b.rdb, w.failAfter(300*time.Millisecond), n) {
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

// A circle may span several servers, and a process may have a Client for each of them.
func TestDeadlockOverServers(t *testing.T) {
	inBothSettings(t, "", func(t *testing.T, where apart) {
		w := newWaits()
		o := w.failAfter(300 * time.Millisecond)
		b := newBareFixture(t)
		far := redistest.Start(t).Client(t)
		lock := func(rdb rueidis.Client, g *deadlock.Graph, name string) rlock.Locker {
			if where {
				rdb = deadlock.Apart{Client: rdb, Graph: g}
			}
			return newClient(t, rdb, o).Mutex(b.name + name)
		}
		one, two, three := deadlock.New(), deadlock.New(), deadlock.New()
		errs := circle(t, []party{
			{lock(b.rdb, one, "/x"), lock(b.rdb, one, "/y")},
			{lock(b.rdb, two, "/y"), lock(far, two, "/z")},
			{lock(far, three, "/z"), lock(b.rdb, three, "/x")},
		}, func(int) { w.next(t) })
		require.Len(t, victimOf(t, errs).Cycle, 3)
	})
}

// Clients on a cluster find deadlocks as well, over sharded and over plain channels.
func TestDeadlockOnACluster(t *testing.T) {
	cluster := redistest.SharedCluster(t)
	redistest.Parallel(t)
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			redistest.Parallel(t)
			rdb, name := cluster.Client(t), redistest.Name(t)
			w := newWaits()
			o := w.failAfter(300 * time.Millisecond)
			o.PlainPubSub = plain
			const n = 3
			parties := make([]party, n)
			for i := range parties {
				c := elsewhere(t, rdb, o)
				parties[i] = party{c.Mutex(fmt.Sprint(name, i)), c.Mutex(fmt.Sprint(name, (i+1)%n))}
			}
			require.Len(t, victimOf(t, circle(t, parties, func(int) { w.next(t) })).Cycle, n)
		})
	}
}

// The reported circle leads through those that the victim waits for, and not through others that hold or want the same lock.
func TestDeadlockBeside(t *testing.T) {
	for name, row := range map[string]struct {
		parties func(c []*rlock.Client, name string) []party
		reads   bool     // another reader keeps the writer out until the end
		writes  bool     // a writer waits behind the first party
		holds   []string // of each in the circle, from the victim on, after the name
	}{
		"a waiter before it in a fair line": {parties: func(c []*rlock.Client, name string) []party {
			return []party{
				{c[0].Mutex(name + "/x"), c[0].FairMutex(name)}, {c[1].FairMutex(name), c[1].Mutex(name + "/y")}, {c[2].Mutex(name + "/y"), c[2].FairMutex(name)},
			}
		}, holds: []string{"/y", ""}},
		"another reader": {parties: func(c []*rlock.Client, name string) []party {
			return []party{{c[0].RWMutex(name).Read(), c[0].Mutex(name + "/m")}, {c[1].Mutex(name + "/m"), c[1].RWMutex(name).Write()}}
		}, reads: true, holds: []string{"/m", ""}},
		"a writer that waits": {parties: func(c []*rlock.Client, name string) []party {
			return []party{{c[0].RWMutex(name).Read(), c[0].Mutex(name + "/m")}, {c[1].Mutex(name + "/m"), c[1].RWMutex(name).Read()}}
		}, writes: true, holds: []string{"/m", ""}},
		"the other locks of an All": {parties: func(c []*rlock.Client, name string) []party {
			return []party{
				{rlock.All(c[0].Mutex(name+"/a"), c[0].FairMutex(name+"/b"), c[0].RWMutex(name).Read()), rlock.All(c[0].Mutex(name+"/free"), c[0].Mutex(name+"/x"))},
				{c[1].Mutex(name + "/x"), rlock.All(c[1].Mutex(name+"/free"), c[1].FencedMutex(name+"/y"))},
				{c[2].FencedMutex(name + "/y"), rlock.All(c[2].Mutex(name+"/free"), c[2].RWMutex(name).Write())},
			}
		}, holds: []string{"/y", "", "/x"}},
	} {
		inBothSettings(t, name, func(t *testing.T, where apart) {
			w := newWaits()
			b := newFixture(t)
			clients := where.clients(t, b.rdb, w.failAfter(300*time.Millisecond), 3)
			rw := clients[2].RWMutex(b.name)
			leave, wrote := func() error { return nil }, make(<-chan error)
			if row.reads {
				leave = locked(t, rw.Read()).unlock
			}
			e := victimOf(t, circle(t, row.parties(clients, b.name), func(i int) {
				w.next(t)
				if i == 0 && row.writes {
					wrote = async(func() error { return rw.Write().Do(t.Context(), nothing) })
					w.next(t)
					redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "the writer is noted in Redis")
				}
			}))
			require.NoError(t, leave())
			require.Len(t, e.Cycle, len(row.holds))
			for i, name := range row.holds {
				require.Equal(t, b.name+name, e.Cycle[i].Holds)
			}
			if row.writes {
				require.NoError(t, within(t, wrote, testTimeout))
			}
			lockAndUnlock(t, b.Mutex(b.name+"/free"))
		})
	}
}

// An Upgrade that waits for a reader can be the victim of a circle.
func TestDeadlockOfAnUpgrade(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		w := newWaits()
		b := newFixture(t, w.failAfter(300*time.Millisecond))
		rw, m := b.RWMutex(b.name), b.Mutex(b.name+"/m")
		upper := locked(t, rw.Upgradeable())
		inner := locked(t, under{upper.ctx, m})
		reads := async(func() error { // ends when it gets m from the victim
			return rw.Read().Do(t.Context(), func(ctx context.Context) error { return m.Do(ctx, nothing) })
		})
		w.next(t)
		_, _, err := rw.Upgradeable().Upgrade(inner.ctx)
		require.ErrorIs(t, err, rlock.ErrDeadlock)
		require.NoError(t, inner.unlock())
		require.NoError(t, upper.unlock())
		require.NoError(t, within(t, reads, testTimeout))
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
		both := make(chan struct{})
		ended := async(func() error {
			return x.Do(ctx, func(ctx context.Context) error {
				<-both
				return y.Do(ctx, nothing)
			})
		})
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
			return b.RWMutex(b.name).Write().Do(ctx, nothing)
		})
		require.ErrorIs(t, err, rlock.ErrDeadlock)
	})
}

// do runs fn while it holds a lock of any kind.
func do(ctx context.Context, l rlock.Locker, fn func(context.Context) error) error {
	_, err := rlock.DoValue(ctx, l, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
	return err
}

// A deadlock of n processes that already listen is found two laps of the probe after After. That is 2n trips, each from one process
// over Redis to the next. The queries that each process sends meanwhile take as long as a trip, but run beside it and add no delay.
func TestDeadlockWithin(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const n, after, way = 5, time.Second, 500 * time.Millisecond
		w := newWaits()
		o := w.failAfter(after)
		b := newBareFixture(t)
		clients, proxies, parties := make([]*rlock.Client, n), make([]*redistest.Proxy, n), make([]party, n)
		for i := range parties {
			proxies[i] = redistest.StartProxy(t, redistest.Shared(t))
			clients[i] = newClient(t, deadlock.Apart{Client: redistest.Dial(t, proxies[i].Addr(), pipelined), Graph: deadlock.New()}, o)
			parties[i] = party{clients[i].Mutex(fmt.Sprint(b.name, "/", i)), clients[i].Mutex(fmt.Sprint(b.name, "/", (i+1)%n))}
		}
		delay := func(d time.Duration) {
			for _, p := range proxies {
				p.Delay(d)
			}
		}
		victim := &timed{Locker: parties[n-1].wants, ended: func() { delay(0) }}
		parties[n-1].wants = victim
		errs := circle(t, parties, func(i int) {
			w.next(t)
			switch i {
			case n - 2: // the last one starts once the others listen
				b.earsOf(t, clients[:n-1]...)
			case n - 1:
				delay(way / 2)
			}
		})
		e := victimOf(t, errs)
		require.Len(t, e.Cycle, n)
		requireTook(t, 2*n*way, e.Cycle[0].WaitingSince.Add(after), victim.at)
	})
}

// A writer asks all readers at once, one of which closes the circle. It needs one query to Redis to learn of the readers, and finds
// the deadlock two laps later.
func TestDeadlockOfManyReadersWithin(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const n, after, way = 12, time.Second, 500 * time.Millisecond
		const ways, slow = 1 + 4, 4 * way
		w := newWaits()
		o := w.failAfter(after)
		b := newBareFixture(t)
		proxies := []*redistest.Proxy{redistest.StartProxy(t, redistest.Shared(t)), redistest.StartProxy(t, redistest.Shared(t))}
		writer := elsewhere(t, redistest.Dial(t, proxies[0].Addr(), pipelined), o)
		reader := elsewhere(t, redistest.Dial(t, proxies[1].Addr(), pipelined), o)
		var others []lockResult // that wait for nothing
		for range n {
			others = append(others, locked(t, elsewhere(t, b.rdb, o).RWMutex(b.name).Read()))
		}
		victim := &timed{Locker: writer.RWMutex(b.name).Write(), ended: func() {
			for _, p := range proxies {
				p.Delay(0)
			}
		}}
		errs := circle(t, []party{
			{reader.RWMutex(b.name).Read(), reader.Mutex(b.name + "/m")}, {writer.Mutex(b.name + "/m"), victim},
		}, func(i int) {
			w.next(t)
			if i == 0 {
				b.earsOf(t, reader)
				return
			}
			for _, p := range proxies {
				p.Delay(way / 2)
			}
		})
		for _, r := range others {
			require.NoError(t, r.unlock())
		}
		e := victimOf(t, errs)
		took := victim.at.Sub(e.Cycle[0].WaitingSince.Add(after))
		t.Logf("%.1f trips", took.Seconds()/way.Seconds())
		require.Less(t, took, ways*way+slow)
	})
}

// timed is a lock that records when its Lock returned.
type timed struct {
	rlock.Locker

	at    time.Time
	ended func()
}

func (l *timed) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	inner, unlock, err := l.Locker.Lock(ctx)
	l.at = time.Now()
	l.ended()
	return inner, unlock, err
}

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
			listens := answer(rdb.Do(t.Context(), rdb.B().PubsubChannels().Pattern("rlock_client:*").Build()).AsStrSlice()).ok(t)
			require.Equal(t, row.asks, len(listens) == 1)
			require.NoError(t, hold.unlock())
			waits.getAndUnlock(t, testTimeout)
		})
	}
}
