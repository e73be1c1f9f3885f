package rlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A process in line needs no messages about unlocks, and listens on the channel of the line. A Client without queues, and waiters of a
// quorum or a fair lock, are not in line.
func TestWhoIsInLine(t *testing.T) {
	plain := func(c *rlock.Client, name string) locker { return c.Mutex(name) }
	for name, row := range map[string]struct {
		locker func(c *rlock.Client, name string) locker
		o      rlock.Options
		inLine int64
	}{
		"mutex":        {locker: plain, inLine: 1},
		"fenced":       {locker: func(c *rlock.Client, name string) locker { return c.FencedMutex(name) }, inLine: 1},
		"all":          {locker: func(c *rlock.Client, name string) locker { return rlock.All(c.Mutex(name)) }, inLine: 1},
		"fair":         {locker: func(c *rlock.Client, name string) locker { return c.FairMutex(name) }},
		"no hand-offs": {locker: plain, o: rlock.Options{HandOff: rlock.HandOff{Most: -1}}},
	} {
		runVirtual(t, name, func(t *testing.T, b fixture) {
			line := func() int64 { return b.subscribers(t, unlockChannelOf("", b.name)+":rlock_queue") }
			a := locked(t, b.Mutex(b.name))
			w := lockAsync(t, row.locker(newClient(t, b.rdb, row.o), b.name))
			b.awaitSubscribers(t, b.name, 1)
			require.Equal(t, row.inLine, line())
			require.NoError(t, a.unlock())
			w.getAndUnlock(t, testTimeout)
			redistest.Eventually(t, testTimeout, func() bool { return line() == 0 }, "the subscription ends with the other one")
		})
	}
}

// A process that gets no place in line, because Redis is out of memory, hears of unlocks as an outsider does.
func TestNoPlaceInLine(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
	b.Client = newClient(t, b.rdb)
	other := newClient(t, s.Client(t))
	loadScripts(t, other)
	const hold = 10 * testTimeout // waiters without a message sleep as long
	a := locked(t, b.Mutex(b.name, rlock.WithLease(hold)))
	inLine := lockAsync(t, newClient(t, s.Client(t)).Mutex(b.name))
	b.awaitPlace(t, b.name)
	require.NoError(t, b.do(t, "CONFIG", "SET", "maxmemory", "1").Error())
	w := lockAsync(t, other.Mutex(b.name))
	b.awaitSubscribers(t, b.name, 2)
	redistest.Eventually(t, testTimeout, func() bool {
		return b.subscribers(t, unlockChannelOf("", b.name)+":rlock_queue") == 1
	}, "one of them is not in line")
	require.NoError(t, b.do(t, "CONFIG", "SET", "maxmemory", "0").Error())
	require.NoError(t, a.unlock())
	for range 2 {
		require.NoError(t, first(t, []pendingLock{w, inLine}, testTimeout).unlock())
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
	m := answer(b.do(t, "PUBSUB", "NUMSUB", channel).ToArray()).ok(t)
	n := answer(m[1].AsInt64()).ok(t)
	return n
}

// A process keeps its turn when the first of its waiters gives up, since the next has been there for as long.
func TestTurnOutlivesTheFirstWaiter(t *testing.T) {
	for name, cancelled := range map[string]bool{"its time ends": false, "cancelled": true} {
		runVirtual(t, name, func(t *testing.T, b fixture) {
			x, y := newClient(t, b.rdb).FencedMutex(b.name), newClient(t, b.rdb).FencedMutex(b.name)
			queue := func() []string {
				all := answer(b.do(t, "ZRANGE", "rlock_queue:{"+b.name+"}", "0", "-1").AsStrSlice()).ok(t)
				return all
			}
			a := locked(t, b.FencedMutex(b.name))
			var first locker = x
			if !cancelled {
				first = tryFor{x, time.Second}
			}
			gives := lockAsync(t, first)
			b.awaitPlace(t, b.name)
			second := lockAsync(t, x)
			b.awaitWaiters(t, 2)
			other := lockAsync(t, y)
			redistest.Eventually(t, testTimeout, func() bool { return len(queue()) == 2 }, "another process waits")
			line := queue()
			if cancelled {
				gives.cancel()
			}
			require.Error(t, gives.get(t, testTimeout).err)
			sleep(200 * time.Millisecond) // in which a release of its place would arrive
			require.Equal(t, line, queue())
			require.NoError(t, a.unlock())
			second.getAndUnlock(t, testTimeout)
			other.getAndUnlock(t, testTimeout)
			redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) && len(queue()) == 0 }, "nothing is left")
		})
	}
}

// The channel on which a process is told that it has a lock {x} is the unlock channel of another lock, if that is called so. Who waits for
// either of them hears what it is told, and so does who waits for both.
func TestLockNamedAsAChannelForGrants(t *testing.T) {
	for way, o := range map[string]rlock.Options{"granted": {}, "told": {HandOff: rlock.HandOff{Most: -1}}} {
		runVirtual(t, way, func(t *testing.T, b fixture) {
			c, holder := newClient(t, b.rdb, o), newClient(t, b.rdb, o)
			names := []string{"{" + b.name + "}", "{" + b.name + "}:" + c.ID(), "{" + b.name + "}:rlock_queue"}
			for range 2 { // each alone, and then all together
				for _, name := range names {
					a := locked(t, holder.Mutex(name))
					w := lockAsync(t, c.Mutex(name))
					redistest.Eventually(t, testTimeout, func() bool { return b.subscribers(t, "redisson_lock__channel:"+name) >= 1 }, "it waits")
					require.NoError(t, a.unlock())
					w.getAndUnlock(t, 2*time.Second+soon)
				}
			}
			var held []lockResult
			var waiters []pendingLock
			for _, name := range names {
				held, waiters = append(held, locked(t, holder.Mutex(name))), append(waiters, lockAsync(t, c.Mutex(name)))
			}
			b.awaitWaiters(t, len(names))
			for i, a := range held {
				require.NoError(t, a.unlock())
				waiters[i].getAndUnlock(t, 2*time.Second+soon)
			}
		})
	}
}

const (
	watchedGrant = 500 * time.Millisecond // the grant lease of these tests, equal to the watchdog time of their Clients
	watchedHold  = 20 * time.Second       // the lease of the hold that all wait for; waiters without a message sleep as long
	watchedSlack = watchedGrant / 2       // a look comes somewhat later than the end of the grant that it is for
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
	return m.waitsWith(t, addr, watchedOptions)
}

func (m *deadInLine) waitsWith(t *testing.T, addr string, o rlock.Options) pendingLock {
	t.Helper()
	p := lockAsync(t, newClient(t, redistest.Dial(t, addr), o).Mutex(m.name))
	m.places++
	redistest.Eventually(t, testTimeout, func() bool {
		n, err := m.do(t, "ZCARD", "rlock_queue:{"+m.name+"}").AsInt64()
		return err == nil && n == int64(m.places)
	}, "the process is in the queue")
	return p
}

// requireWithin kills the processes behind gone and stops those behind silent, once they have no call under way. Then it checks that those
// before the waiter get the lock, and after them the waiter within that time.
func (m *deadInLine) requireWithin(t *testing.T, waiter pendingLock, most time.Duration, before ...pendingLock) {
	t.Helper()
	sleep(100 * time.Millisecond)
	m.gone.Refuse(true)
	m.gone.CutAll()
	m.silent.BlackHole(true)
	sleep(100 * time.Millisecond)
	require.NoError(t, m.unlock())
	for _, p := range before {
		p.getAndUnlock(t, testTimeout)
	}
	began := time.Now()
	waiter.getAndUnlock(t, watchedHold)
	requireTookAtMost(t, most+watchedSlack, began, time.Now())
}

// Killed processes in the queue do not delay the waiters behind them. Each stopped process delays them by one grant lease at most,
// wherever it stands: each hand-over chooses anew which waiters check on the new holder, and live ones that have had their turn do not use up
// this number.
func TestDeadInLine(t *testing.T) {
	const killed, stopped, well = 'k', 's', 'w'
	for line, grants := range map[string]int{
		"s": 1, "ks": 1, "kks": 1, "kkkkkkkks": 1, "ss": 2, "ssss": 4, "sssssssss": 9, "ws": 1, "wwwws": 1, "wwwwwwwwwwwws": 1,
	} {
		redistest.RunVirtual(t, line, func(t *testing.T) {
			m := newDeadInLine(t)
			var before []pendingLock
			for _, process := range line {
				switch process {
				case killed:
					m.waits(t, m.gone.Addr())
				case stopped:
					m.waits(t, m.silent.Addr())
				case well:
					before = append(before, m.waits(t, m.well.Addr()))
				}
			}
			m.requireWithin(t, m.waits(t, m.well.Addr()), time.Duration(grants)*watchedGrant, before...)
		})
	}
}

// A waiter outside the queue is notified of each unlock, whichever processes are in the queue, dead or alive.
func TestOutsiderBesideTheDead(t *testing.T) {
	for _, dead := range []int{0, 1, 4} {
		redistest.RunVirtual(t, fmt.Sprint(dead), func(t *testing.T) {
			m := newDeadInLine(t)
			m.waits(t, m.silent.Addr())
			for range dead {
				m.waits(t, m.gone.Addr())
			}
			outside := newClient(t, m.rdb, rlock.Options{HandOff: rlock.HandOff{Most: -1}})
			w := lockAsync(t, outside.Mutex(m.name))
			m.awaitSubscribers(t, m.name, dead+2)
			m.requireWithin(t, w, 0)
		})
	}
}

// Processes that are stopped just before they check on the holder delay live waiters by one grant lease each at most.
func TestStoppedBeforeTheirLook(t *testing.T) {
	for _, stopped := range []int{1, 4, 5} {
		redistest.RunVirtual(t, fmt.Sprint(stopped), func(t *testing.T) {
			m := newDeadInLine(t)
			require.NoError(t, m.unlock())
			for range stopped { // loads all scripts that the processes need
				loadScripts(t, newClient(t, redistest.Dial(t, m.silent.Addr()), watchedOptions))
			}
			options := rlock.Options{WatchdogTimeout: 3 * time.Second} // a grant lease of 2 s
			holder := locked(t, newClient(t, m.rdb, options).Mutex(m.name, rlock.WithLease(watchedHold)))
			for range stopped {
				m.waitsWith(t, m.silent.Addr(), options)
			}
			m.silent.BlackHole(true)
			queue := "rlock_queue:{" + m.name + "}"
			places := answer(m.do(t, "ZRANGE", queue, "0", "-1").AsStrSlice()).ok(t)
			for _, place := range places { // as if the hold had seemed to end within a grant lease when they joined, see acquire.lua
				require.NoError(t, m.do(t, "ZINCRBY", queue, "1", place).Error())
			}
			w := m.waits(t, m.well.Addr())
			began := time.Now()
			require.NoError(t, holder.unlock())
			w.getAndUnlock(t, testTimeout)
			requireTookAtMost(t, time.Duration(stopped)*2*time.Second+watchedSlack, began, time.Now())
		})
	}
}
