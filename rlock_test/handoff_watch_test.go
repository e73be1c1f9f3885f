package rlock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	watchedGrant = 500 * time.Millisecond // the grant lease of these tests, equal to the watchdog time of their Clients
	watchedHold  = 20 * time.Second       // the lease of the hold that all wait for; waiters without a message sleep as long
	watchedSlack = 2 * time.Second        // for a busy machine
)

// deadInLine is a lock with a queue of processes, some of which are killed or stopped.
type deadInLine struct {
	fixture
	unlock       func() error
	well         *redistest.Server
	gone, silent *redistest.Proxy // the connections of killed and of stopped processes
	places       int
}

func newDeadInLine(t *testing.T) *deadInLine {
	t.Helper()
	m := &deadInLine{well: redistest.Start(t)}
	m.rdb, m.name = m.well.Client(t), redistest.Name(t)
	m.Client = newClient(t, m.rdb, watchedOptions)
	m.gone, m.silent = redistest.StartProxy(t, m.well.Addr()), redistest.StartProxy(t, m.well.Addr())
	var err error
	_, m.unlock, err = m.Mutex(m.name, rlock.WithLease(watchedHold)).Lock(context.Background())
	require.NoError(t, err)
	return m
}

var watchedOptions = rlock.Options{WatchdogTimeout: watchedGrant}

// waits starts another process, connected to addr, that waits behind all others.
func (m *deadInLine) waits(t *testing.T, addr string) pendingLock {
	t.Helper()
	p := lockAsync(t, newClient(t, redistest.Dial(t, addr), watchedOptions).Mutex(m.name))
	m.places++
	redistest.Eventually(t, testTimeout, func() bool {
		n, err := m.do(t, "ZCARD", "rlock_queue:{"+m.name+"}").AsInt64()
		return err == nil && n == int64(m.places)
	}, "the process is in the queue")
	return p
}

// cutOff kills the processes behind gone and stops those behind silent, once they have no call under way.
func (m *deadInLine) cutOff() {
	sleep(100 * time.Millisecond)
	m.gone.Refuse(true)
	m.gone.CutAll()
	m.silent.BlackHole(true)
	sleep(100 * time.Millisecond)
}

// requireWithin checks that a waiter gets the lock within that many grant leases.
func requireWithin(t *testing.T, p pendingLock, began time.Time, grants int) {
	t.Helper()
	got := p.get(t, watchedHold)
	require.NoError(t, got.err)
	require.Less(t, time.Since(began), time.Duration(grants)*watchedGrant+watchedSlack)
	require.NoError(t, got.unlock())
}

// Killed processes in the queue do not delay the waiters behind them. Each stopped process delays them by one grant lease at most,
// wherever it stands.
func TestDeadInLine(t *testing.T) {
	redistest.Parallel(t)
	for dead := range 9 {
		t.Run(fmt.Sprint(dead, " killed, and one stopped"), func(t *testing.T) {
			redistest.Parallel(t)
			m := newDeadInLine(t)
			for range dead {
				m.waits(t, m.gone.Addr())
			}
			m.waits(t, m.silent.Addr())
			w := m.waits(t, m.well.Addr())
			m.cutOff()
			began := time.Now()
			require.NoError(t, m.unlock())
			requireWithin(t, w, began, 1)
		})
	}
	for _, stopped := range []int{2, 4, 5, 9} {
		t.Run(fmt.Sprint(stopped, " stopped"), func(t *testing.T) {
			redistest.Parallel(t)
			m := newDeadInLine(t)
			for range stopped {
				m.waits(t, m.silent.Addr())
			}
			w := m.waits(t, m.well.Addr())
			m.cutOff()
			began := time.Now()
			require.NoError(t, m.unlock())
			requireWithin(t, w, began, stopped)
		})
	}
}

// Each hand-over chooses anew which waiters check on the new holder: live waiters that already had their turn do not use up this
// number.
func TestDeadBehindTheWell(t *testing.T) {
	redistest.Parallel(t)
	for _, well := range []int{1, 4, 12} {
		t.Run(fmt.Sprint(well), func(t *testing.T) {
			redistest.Parallel(t)
			m := newDeadInLine(t)
			var before []pendingLock
			for range well {
				before = append(before, m.waits(t, m.well.Addr()))
			}
			m.waits(t, m.silent.Addr())
			w := m.waits(t, m.well.Addr())
			m.cutOff()
			began := time.Now()
			require.NoError(t, m.unlock())
			for _, p := range before {
				got := p.get(t, testTimeout)
				require.NoError(t, got.err)
				require.NoError(t, got.unlock())
			}
			requireWithin(t, w, began, 1)
		})
	}
}

// Processes that are stopped just before they check on the holder delay live waiters by one grant lease each at most.
func TestStoppedBeforeTheirLook(t *testing.T) {
	redistest.Parallel(t)
	for _, stopped := range []int{1, 4, 5} {
		t.Run(fmt.Sprint(stopped), func(t *testing.T) {
			redistest.Parallel(t)
			m := newDeadInLine(t)
			require.NoError(t, m.unlock())
			for range stopped { // loads all scripts that the processes need
				c := newClient(t, redistest.Dial(t, m.silent.Addr()), watchedOptions)
				loadScripts(t, c)
			}
			options := rlock.Options{WatchdogTimeout: 3 * time.Second} // a grant lease of 2 s
			holder := newClient(t, m.rdb, options)
			ctx, unlock, err := holder.Mutex(m.name, rlock.WithLease(1900*time.Millisecond)).Lock(context.Background())
			require.NoError(t, err)
			for i := range stopped {
				lockAsync(t, newClient(t, redistest.Dial(t, m.silent.Addr()), options).Mutex(m.name))
				redistest.Eventually(t, testTimeout, func() bool {
					n, err := m.do(t, "ZCARD", "rlock_queue:{"+m.name+"}").AsInt64()
					return err == nil && n == int64(i+1)
				}, "the process is in the queue")
			}
			m.silent.BlackHole(true)
			_, unlockInner, err := holder.Mutex(m.name, rlock.WithLease(watchedHold)).Lock(ctx)
			require.NoError(t, err)
			m.places = stopped
			w := m.waits(t, m.well.Addr())
			require.NoError(t, unlockInner())
			began := time.Now()
			require.NoError(t, unlock())
			got := w.get(t, testTimeout)
			require.NoError(t, got.err)
			require.Less(t, time.Since(began), time.Duration(stopped)*2*time.Second+watchedSlack)
			require.NoError(t, got.unlock())
		})
	}
}

// A waiter outside the queue is notified of each unlock, whichever processes are in the queue, dead or alive.
func TestOutsiderBesideTheDead(t *testing.T) {
	redistest.Parallel(t)
	for _, dead := range []int{0, 1, 4} {
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			redistest.Parallel(t)
			m := newDeadInLine(t)
			m.waits(t, m.silent.Addr())
			for range dead {
				m.waits(t, m.gone.Addr())
			}
			outside := newClient(t, m.rdb, rlock.Options{HandOff: rlock.HandOff{Most: -1}})
			w := lockAsync(t, outside.Mutex(m.name))
			m.awaitSubscribers(t, m.name, dead+2)
			m.cutOff()
			began := time.Now()
			require.NoError(t, m.unlock())
			requireWithin(t, w, began, 0)
		})
	}
}

// A process in the queue needs no unlock messages and subscribes to the channel of the queue. A Client without hand-offs and a
// waiter of a fair lock are not in this queue.
func TestWhoIsInLine(t *testing.T) {
	redistest.Parallel(t)
	b := newFixture(t)
	line := func(name string) int64 { return b.subscribers(t, "redisson_lock__channel:{"+name+"}:rlock_queue") }
	for name, row := range map[string]struct {
		locker func(name string) locker
		inLine int64
	}{
		"mutex":  {func(name string) locker { return newClient(t, b.rdb).Mutex(name) }, 1},
		"fenced": {func(name string) locker { return newClient(t, b.rdb).FencedMutex(name) }, 1},
		"all":    {func(name string) locker { return rlock.All(newClient(t, b.rdb).Mutex(name)) }, 1},
		"fair":   {func(name string) locker { return newClient(t, b.rdb).FairMutex(name) }, 0},
		"no hand-offs": {func(name string) locker {
			return newClient(t, b.rdb, rlock.Options{HandOff: rlock.HandOff{Most: -1}}).Mutex(name)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			key := b.name + " " + name
			_, unlock, err := b.Mutex(key).Lock(context.Background())
			require.NoError(t, err)
			w := lockAsync(t, row.locker(key))
			b.awaitSubscribers(t, key, 1)
			require.Equal(t, row.inLine, line(key))
			require.NoError(t, unlock())
			got := w.get(t, testTimeout)
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
			redistest.Eventually(t, testTimeout, func() bool { return line(key) == 0 }, "the subscription ends with the wait")
		})
	}
}

// A process that cannot join the queue, because Redis is out of memory, is notified of unlocks like a waiter outside the queue.
func TestNoPlaceInLine(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
	b.Client = newClient(t, b.rdb, watchedOptions)
	other := newClient(t, s.Client(t), watchedOptions)
	loadScripts(t, other)
	_, unlock, err := b.Mutex(b.name, rlock.WithLease(watchedHold)).Lock(context.Background())
	require.NoError(t, err)
	inLine := lockAsync(t, newClient(t, s.Client(t), watchedOptions).Mutex(b.name))
	redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_queue:{"+b.name+"}") }, "the process is in the queue")
	require.NoError(t, b.do(t, "CONFIG", "SET", "maxmemory", "1").Error())
	w := lockAsync(t, other.Mutex(b.name))
	b.awaitSubscribers(t, b.name, 2)
	line := "redisson_lock__channel:{" + b.name + "}:rlock_queue"
	redistest.Eventually(t, testTimeout, func() bool {
		return b.subscribers(t, line) == 1 && b.subscribers(t, unlockChannelOf("", b.name)) == 2
	}, "one of the two processes is not in the queue")
	require.NoError(t, b.do(t, "CONFIG", "SET", "maxmemory", "0").Error())
	began := time.Now()
	require.NoError(t, unlock())
	for range 2 { // in either order
		select {
		case got := <-w.result:
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
		case got := <-inLine.result:
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
		}
	}
	require.Less(t, time.Since(began), watchedSlack)
}

// Foreign data under a helper key of the lock, such as its queue, does not prevent anyone from getting the lock.
func TestSomethingElseBesideTheLock(t *testing.T) {
	redistest.Parallel(t)
	b := newFixture(t)
	other := newClient(t, b.rdb)
	for name, row := range map[string]struct {
		lock func(c *rlock.Client, name string) locker
		key  string
		late bool // the data appears while the lock is held
	}{
		"mutex":  {func(c *rlock.Client, name string) locker { return c.Mutex(name) }, "rlock_queue:{%s}", false},
		"fenced": {func(c *rlock.Client, name string) locker { return c.FencedMutex(name) }, "rlock_queue:{%s}", false},
		"writer": {func(c *rlock.Client, name string) locker { return c.RWMutex(name).Write() }, "rlock_writers:{%s}", false},
		"all":    {func(c *rlock.Client, name string) locker { return rlock.All(c.Mutex(name), c.Mutex(name+"2")) }, "rlock_queue:{%s}", false},
		"fair":   {func(c *rlock.Client, name string) locker { return c.FairMutex(name) }, "redisson_lock_queue:{%s}", true},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			lock := b.name + " " + name
			key := fmt.Sprintf(row.key, lock)
			if !row.late {
				require.NoError(t, b.do(t, "SET", key, "x").Error())
			}
			_, unlock, err := row.lock(b.Client, lock).Lock(context.Background())
			require.NoError(t, err)
			if row.late {
				require.NoError(t, b.do(t, "SET", key, "x").Error())
				require.NoError(t, unlock())
				require.False(t, b.exists(t, lock))
				return
			}
			w := lockAsync(t, row.lock(other, lock))
			redistest.Eventually(t, testTimeout, func() bool { return b.subscribers(t, unlockChannelOf(name, lock)) == 1 }, "the waiter listens")
			sleep(50 * time.Millisecond)
			began := time.Now()
			require.NoError(t, unlock())
			got := w.get(t, testTimeout)
			require.NoError(t, got.err)
			require.Less(t, time.Since(began), 5*time.Second, "the waiter is woken before the lease ends")
			require.NoError(t, got.unlock())
		})
	}
}

func unlockChannelOf(kind, name string) string {
	if kind == "writer" {
		return "redisson_rwlock:{" + name + "}"
	}
	return "redisson_lock__channel:{" + name + "}"
}

func (b fixture) subscribers(t *testing.T, channel string) int64 {
	t.Helper()
	m, err := b.do(t, "PUBSUB", "NUMSUB", channel).ToArray()
	require.NoError(t, err)
	n, err := m[1].AsInt64()
	require.NoError(t, err)
	return n
}

// A process keeps its place in the queue if its first waiter gives up: the next waiter of the process inherits it.
func TestTurnOutlivesTheFirstWaiter(t *testing.T) {
	redistest.Parallel(t)
	b := newFixture(t)
	for name, row := range map[string]struct {
		m       func(c *rlock.Client, name string) *rlock.Mutex
		givesUp func(w pendingLock) // nil: its timeout comes
	}{
		"its time ends": {m: func(c *rlock.Client, name string) *rlock.Mutex { return c.Mutex(name) }},
		"cancelled":     {m: func(c *rlock.Client, name string) *rlock.Mutex { return c.Mutex(name) }, givesUp: func(w pendingLock) { w.cancel() }},
		"fenced":        {m: func(c *rlock.Client, name string) *rlock.Mutex { return c.FencedMutex(name) }, givesUp: func(w pendingLock) { w.cancel() }},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			x, y, key := newClient(t, b.rdb), newClient(t, b.rdb), b.name+" "+name
			queue := func() []string {
				all, err := b.do(t, "ZRANGE", "rlock_queue:{"+key+"}", "0", "-1").AsStrSlice()
				require.NoError(t, err)
				return all
			}
			_, unlock, err := row.m(b.Client, key).Lock(context.Background())
			require.NoError(t, err)
			var first locker = row.m(x, key)
			if row.givesUp == nil {
				first = tryFor{row.m(x, key), time.Second}
			}
			gives := lockAsync(t, first)
			redistest.Eventually(t, testTimeout, func() bool { return len(queue()) == 1 }, "the first of the process waits")
			second := lockAsync(t, row.m(x, key))
			sleep(100 * time.Millisecond) // the second waits as well
			other := lockAsync(t, row.m(y, key))
			redistest.Eventually(t, testTimeout, func() bool { return len(queue()) == 2 }, "another process waits")
			line := queue()
			if row.givesUp != nil {
				row.givesUp(gives)
			}
			require.Error(t, gives.get(t, testTimeout).err)
			sleep(200 * time.Millisecond) // time for a release of the place to arrive
			require.Equal(t, line, queue())
			require.NoError(t, unlock())
			got := second.get(t, testTimeout)
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
			got = other.get(t, testTimeout)
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
			redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, key) && len(queue()) == 0 }, "no key is left")
		})
	}
}

// While a waiter outside the queue listens, a process passes the lock on within itself for only a quarter of its usual number of
// sections.
func TestRunBesideAnOutsider(t *testing.T) {
	redistest.Parallel(t)
	for outside, least := range map[bool]int64{false: 0, true: 10} {
		t.Run(fmt.Sprint(outside), func(t *testing.T) {
			redistest.Parallel(t)
			s := redistest.Start(t)
			b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
			c := newClient(t, s.Client(t), rlock.Options{HandOff: rlock.HandOff{Most: 12, For: time.Hour}})
			var told atomic.Int64
			if outside {
				conn, giveBack := b.rdb.Dedicate()
				defer giveBack()
				conn.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) {
					if m.Message == "00" {
						told.Add(1)
					}
				}})
				require.NoError(t, conn.Do(context.Background(), conn.B().Subscribe().Channel(unlockChannelOf("", b.name)).Build()).Error())
			}
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					for range 20 {
						assert.NoError(t, c.Mutex(b.name).Do(context.Background(), func(context.Context) error {
							sleep(time.Millisecond)
							return nil
						}))
					}
				})
			}
			wg.Wait()
			require.GreaterOrEqual(t, told.Load(), least, "one message for every four sections; after full runs only 4 for 60 sections")
			if !outside {
				require.Zero(t, told.Load())
			}
		})
	}
}

// A lock may have a name that makes its unlock channel equal to the grant channel of a process for another lock. Waiters of either
// lock, or of both, receive all their messages.
func TestLockNamedAsAChannelForGrants(t *testing.T) {
	redistest.Parallel(t)
	for way, o := range map[string]rlock.Options{"granted": {}, "told": {HandOff: rlock.HandOff{Most: -1}}} {
		t.Run(way, func(t *testing.T) {
			redistest.Parallel(t)
			b := newFixture(t)
			c, holder := newClient(t, b.rdb, o), newClient(t, b.rdb, o)
			names := []string{"{" + b.name + "}", "{" + b.name + "}:" + c.ID(), "{" + b.name + "}:rlock_queue"}
			for range 2 { // each alone, and then all together
				for _, name := range names {
					_, unlock, err := holder.Mutex(name).Lock(context.Background())
					require.NoError(t, err)
					w := lockAsync(t, c.Mutex(name))
					redistest.Eventually(t, testTimeout, func() bool { return b.subscribers(t, "redisson_lock__channel:"+name) >= 1 }, "the waiter listens")
					require.NoError(t, unlock())
					got := w.get(t, 2*time.Second+soon)
					require.NoError(t, got.err, name)
					require.NoError(t, got.unlock())
				}
			}
			var unlocks []rlock.UnlockFunc
			var waiters []pendingLock
			for _, name := range names {
				_, unlock, err := holder.Mutex(name).Lock(context.Background())
				require.NoError(t, err)
				unlocks, waiters = append(unlocks, unlock), append(waiters, lockAsync(t, c.Mutex(name)))
			}
			redistest.Eventually(t, testTimeout, func() bool { return c.Stats().Waiting == len(names) }, "all goroutines wait")
			for i, unlock := range unlocks {
				require.NoError(t, unlock())
				got := waiters[i].get(t, 2*time.Second+soon)
				require.NoError(t, got.err, names[i])
				require.NoError(t, got.unlock())
			}
		})
	}
}
