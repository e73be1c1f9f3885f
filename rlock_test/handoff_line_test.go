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

// A process in line needs no messages about unlocks, and listens on the channel of the line. A Client without queues, and waiters of a
// quorum or a fair lock, are not in line.
func TestWhoIsInLine(t *testing.T) {
	for name, row := range map[string]struct {
		locker func(c *rlock.Client, name string) locker
		o      rlock.Options
		inLine int64
	}{
		"mutex":  {locker: func(c *rlock.Client, name string) locker { return c.Mutex(name) }, inLine: 1},
		"fenced": {locker: func(c *rlock.Client, name string) locker { return c.FencedMutex(name) }, inLine: 1},
		"all":    {locker: func(c *rlock.Client, name string) locker { return rlock.All(c.Mutex(name)) }, inLine: 1},
		"fair":   {locker: func(c *rlock.Client, name string) locker { return c.FairMutex(name) }},
		"no hand-offs": {locker: func(c *rlock.Client, name string) locker {
			return c.Mutex(name)
		}, o: rlock.Options{HandOff: rlock.HandOff{Most: -1}}},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t)
			line := func() int64 { return b.subscribers(t, unlockChannelOf("", b.name)+":rlock_queue") }
			_, unlock, err := b.Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			w := lockAsync(t, row.locker(newClient(t, b.rdb, row.o), b.name))
			b.awaitSubscribers(t, b.name, 1)
			require.Equal(t, row.inLine, line())
			require.NoError(t, unlock())
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
	b.Client = newClient(t, b.rdb, watchedOptions)
	other := newClient(t, s.Client(t), watchedOptions)
	loadScripts(t, other)
	_, unlock, err := b.Mutex(b.name, rlock.WithLease(watchedHold)).Lock(context.Background())
	require.NoError(t, err)
	inLine := lockAsync(t, newClient(t, s.Client(t), watchedOptions).Mutex(b.name))
	redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_queue:{"+b.name+"}") }, "it has a place")
	require.NoError(t, b.do(t, "CONFIG", "SET", "maxmemory", "1").Error())
	w := lockAsync(t, other.Mutex(b.name))
	b.awaitSubscribers(t, b.name, 2)
	line := "redisson_lock__channel:{" + b.name + "}:rlock_queue"
	redistest.Eventually(t, testTimeout, func() bool {
		return b.subscribers(t, line) == 1 && b.subscribers(t, unlockChannelOf("", b.name)) == 2
	}, "one of them is not in line")
	require.NoError(t, b.do(t, "CONFIG", "SET", "maxmemory", "0").Error())
	began := time.Now()
	require.NoError(t, unlock())
	for range 2 { // in whichever order
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

// Something else under a key that waiters use beside the lock does not keep anybody from it.
func TestSomethingElseBesideTheLock(t *testing.T) {
	for name, row := range map[string]struct {
		lock func(c *rlock.Client, name string) locker
		key  string
		late bool // it comes when the lock is held
	}{
		"mutex":  {func(c *rlock.Client, name string) locker { return c.Mutex(name) }, "rlock_queue:{%s}", false},
		"fenced": {func(c *rlock.Client, name string) locker { return c.FencedMutex(name) }, "rlock_queue:{%s}", false},
		"writer": {func(c *rlock.Client, name string) locker { return c.RWMutex(name).Write() }, "rlock_writers:{%s}", false},
		"all":    {func(c *rlock.Client, name string) locker { return rlock.All(c.Mutex(name), c.Mutex(name+"2")) }, "rlock_queue:{%s}", false},
		"fair":   {func(c *rlock.Client, name string) locker { return c.FairMutex(name) }, "redisson_lock_queue:{%s}", true},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t)
			lock, key := b.name, fmt.Sprintf(row.key, b.name)
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
			w := lockAsync(t, row.lock(newClient(t, b.rdb), lock))
			redistest.Eventually(t, testTimeout, func() bool { return b.subscribers(t, unlockChannelOf(name, lock)) == 1 }, "it waits")
			sleep(50 * time.Millisecond)
			began := time.Now()
			require.NoError(t, unlock())
			got := w.get(t, testTimeout)
			require.NoError(t, got.err)
			require.Less(t, time.Since(began), 5*time.Second, "told, and not only when the lease was over")
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

// A process keeps its turn when the first of its waiters gives up, since the next has been there for as long.
func TestTurnOutlivesTheFirstWaiter(t *testing.T) {
	for name, row := range map[string]struct {
		m       func(c *rlock.Client, name string) *rlock.Mutex
		givesUp func(w pendingLock) // nil: its time ends
	}{
		"its time ends": {m: func(c *rlock.Client, name string) *rlock.Mutex { return c.Mutex(name) }},
		"cancelled":     {m: func(c *rlock.Client, name string) *rlock.Mutex { return c.Mutex(name) }, givesUp: func(w pendingLock) { w.cancel() }},
		"fenced":        {m: func(c *rlock.Client, name string) *rlock.Mutex { return c.FencedMutex(name) }, givesUp: func(w pendingLock) { w.cancel() }},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t)
			x, y, key := newClient(t, b.rdb), newClient(t, b.rdb), b.name
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
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 2 }, "and so does the second")
			other := lockAsync(t, row.m(y, key))
			redistest.Eventually(t, testTimeout, func() bool { return len(queue()) == 2 }, "another process waits")
			line := queue()
			if row.givesUp != nil {
				row.givesUp(gives)
			}
			require.Error(t, gives.get(t, testTimeout).err)
			sleep(200 * time.Millisecond) // in which a release of its place would arrive
			require.Equal(t, line, queue())
			require.NoError(t, unlock())
			got := second.get(t, testTimeout)
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
			got = other.get(t, testTimeout)
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
			redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, key) && len(queue()) == 0 }, "nothing is left")
		})
	}
}

// While a listener outside the line is subscribed, a process passes the lock on internally for only a quarter of its usual run.
func TestRunBesideAnOutsider(t *testing.T) {
	for outside, least := range map[bool]int64{false: 0, true: 10} {
		redistest.RunVirtual(t, fmt.Sprint(outside), func(t *testing.T) {
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
			require.GreaterOrEqual(t, told.Load(), least, "after each fourth section; 4 of 60 after whole runs")
			if !outside {
				require.Zero(t, told.Load())
			}
		})
	}
}

// The channel on which a process is told that it has a lock {x} is the unlock channel of another lock, if that is called so. Who waits for
// either of them hears what it is told, and so does who waits for both.
func TestLockNamedAsAChannelForGrants(t *testing.T) {
	for way, o := range map[string]rlock.Options{"granted": {}, "told": {HandOff: rlock.HandOff{Most: -1}}} {
		redistest.RunVirtual(t, way, func(t *testing.T) {
			b := newFixture(t)
			c, holder := newClient(t, b.rdb, o), newClient(t, b.rdb, o)
			names := []string{"{" + b.name + "}", "{" + b.name + "}:" + c.ID(), "{" + b.name + "}:rlock_queue"}
			for range 2 { // each alone, and then all together
				for _, name := range names {
					_, unlock, err := holder.Mutex(name).Lock(context.Background())
					require.NoError(t, err)
					w := lockAsync(t, c.Mutex(name))
					redistest.Eventually(t, testTimeout, func() bool { return b.subscribers(t, "redisson_lock__channel:"+name) >= 1 }, "it waits")
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
			redistest.Eventually(t, testTimeout, func() bool { return c.Stats().Waiting == len(names) }, "all wait")
			for i, unlock := range unlocks {
				require.NoError(t, unlock())
				got := waiters[i].get(t, 2*time.Second+soon)
				require.NoError(t, got.err, names[i])
				require.NoError(t, got.unlock())
			}
		})
	}
}
