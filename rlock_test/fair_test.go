package rlock_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The order is that in which waiters queued, over all processes.
func TestFairOrderOverProcesses(t *testing.T) {
	noGrants := rlock.HandOff{Most: -1}
	for name, o := range map[string]rlock.Options{"grants": {}, "no grants": {HandOff: noGrants}} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b, _ := fairStandalone(t, 3, o)
			b.requireFairOrder(30)
		})
	}
}

func TestFairOrderOnDeployments(t *testing.T) {
	c, s := redistest.SharedCluster(t), redistest.SharedSentinel(t)
	redistest.Parallel(t)
	t.Run("cluster", func(t *testing.T) {
		redistest.Parallel(t)
		for name, o := range map[string]rlock.Options{"sharded": {}, "plain": {PlainPubSub: true}} {
			t.Run(name, func(t *testing.T) {
				b := newFairFixture(t, c.Client(t), func() rueidis.Client { return c.Client(t) }, 3, o)
				b.requireFairOrder(12)
				_, _, err := b.processes[0].FairMutex("a{}b").Lock(context.Background())
				require.ErrorContains(t, err, `rlock: "a{}b": on a cluster the name of such a lock may have braces only around what is hashed`)
			})
		}
	})
	t.Run("Replicas", func(t *testing.T) { // which turns hand-overs off
		redistest.Parallel(t)
		o := rlock.Options{Replicas: 1, ReplicaTimeout: 10 * time.Second}
		newFairFixture(t, s.Client(t), func() rueidis.Client { return s.Client(t) }, 2, o).requireFairOrder(3)
	})
}

// requireFairOrder requires that waiters of all processes get the lock in the order in which they came, each woken by the one before.
func (b *fairFixture) requireFairOrder(waiters int) {
	b.Helper()
	unlock := b.lock(0)
	var want []string
	for i := range waiters {
		b.wait(context.Background(), i*i%len(b.processes), strconv.Itoa(i))
		want = append(want, strconv.Itoa(i))
	}
	began := time.Now()
	require.NoError(b, unlock())
	b.requireOrder(want...)
	requireTookAtMost(b.T, time.Second, began, time.Now()) // polling would take each of them longer
}

// countedScripts is a client that counts its calls of scripts.
type countedScripts struct {
	rueidis.Client
	calls atomic.Int64
}

func (c *countedScripts) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if isScript(cmd.Commands()) {
		c.calls.Add(1)
	}
	return c.Client.Do(ctx, cmd)
}

// Each waiter of a process joins with one call, and leaves with one. Besides, the first asks before it listens. What a call costs Redis is
// tested in package lua; the cost to keep places depends on the waiting time, and is not counted.
func TestFairCommands(t *testing.T) {
	const n = 50
	redistest.OnlyVirtual(t, "nobody asks because of a time that passes", func(t *testing.T) {
		b := newFixture(t)
		rdb := &countedScripts{Client: b.rdb}
		m := newClient(t, rdb).FairMutex(b.name)
		lockAndUnlock(t, m) // loads the scripts
		_, unlock := enter(t, context.Background(), m)
		before := rdb.calls.Load()
		in := make(chan int, n)
		for i := range n {
			go func() { // ends with its section
				assert.NoError(t, m.Do(context.Background(), func(context.Context) error {
					in <- i
					return nil
				}))
			}()
			redistest.Settle(t)
		}
		require.NoError(t, unlock())
		redistest.Settle(t)
		require.Len(t, in, n)
		for i := range n {
			require.Equal(t, i, <-in)
		}
		require.EqualValues(t, 1+2*n+1, rdb.calls.Load()-before)
	})
}

// Idle waiters of a process keep their places with one common call in a third of 5 s, less 5 %, and send nothing else.
func TestFairIdleWaiters(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 1, rlock.Options{})
		b.heldByAnother()
		ctx, cancel := context.WithCancel(context.Background())
		for i := range 50 {
			b.wait(ctx, 0, strconv.Itoa(i))
		}
		sleep(5 * time.Second) // until one call refreshes all of them
		before := redistest.Commands(t, b.rdb)
		sleep(10 * time.Second)
		after := redistest.Commands(t, b.rdb)
		require.InDelta(t, 6, after["evalsha"]-before["evalsha"], 1)
		require.Equal(t, before["lpos"], after["lpos"], "no waiter asks for the lock")
		require.Equal(t, before["subscribe"], after["subscribe"])
		require.Len(t, b.queue(), 50, "all keep their places")
		cancel()
		b.running.Wait()
		b.do("DEL", b.name)
		b.requireNothingLeft()
	})
}

// Three hundred waiters of killed processes, whose holder died with them, delay a live waiter by no more than the holder's lease.
// Waiters of stopped processes, which listen, delay it no longer, because their places expire.
func TestFairDeadWaiters(t *testing.T) {
	const watchdog = 2 * time.Second
	for name, stopped := range map[string]bool{"killed": false, "stopped": true} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b, s := fairStandalone(t, 2, rlock.Options{WatchdogTimeout: watchdog})
			list, times := b.keys()
			if stopped {
				listener, giveBack := s.Client(t).Dedicate()
				defer giveBack()
				listener.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(rueidis.PubSubMessage) {}})
				pattern := "redisson_lock__channel:{" + b.name + "}:*"
				require.NoError(t, listener.Do(t.Context(), listener.B().Psubscribe().Pattern(pattern).Build()).Error())
			}
			until := strconv.FormatInt(time.Now().Add(watchdog).UnixMilli(), 10)
			places, expiries := []string{"RPUSH", list}, []string{"ZADD", times}
			for i := range 300 {
				owner := fmt.Sprintf("%08x-0000-4000-8000-000000000000:0%d", i/3, i+1)
				places, expiries = append(places, owner), append(expiries, until, owner)
			}
			b.do(places...) // in one command: they expire soon
			b.do(expiries...)
			b.heldByAnother()
			b.do("PEXPIRE", b.name, strconv.FormatInt(watchdog.Milliseconds(), 10))
			b.expected = 300
			began := time.Now()
			b.wait(context.Background(), 0, "a")
			b.wait(context.Background(), 1, "b")
			b.requireEntered("a", "b")
			requireTookAtMost(t, watchdog+100*time.Millisecond, began, time.Now())
		})
	}
}

// The first in the queue does not come: a process of ours that was stopped is given the lock, or told that it is free; so is a waiter of
// Redisson's that has died. A waiter of Redisson's behind it, whose time is over, sleeps until it is told again. Whoever released the lock
// does that when the first has had its time.
func TestFairWakesRedissonBehindTheDead(t *testing.T) {
	const stopped, dead, java = "00000001-0000-4000-8000-000000000000:01", "00000002-0000-4000-8000-000000000000:1", "00000003-0000-4000-8000-000000000000:1"
	unlock := func(b *fairFixture, unlock rlock.UnlockFunc) { require.NoError(b, unlock()) }
	force := func(b *fairFixture, _ rlock.UnlockFunc) {
		answer(b.processes[0].FairMutex(b.name).ForceUnlock(b.Context())).ok(b)
	}
	for name, c := range map[string]struct {
		first  string
		o      rlock.Options
		end    func(*fairFixture, rlock.UnlockFunc)
		within time.Duration
	}{
		"given":            {stopped, rlock.Options{}, unlock, 2 * time.Second},
		"given by force":   {stopped, rlock.Options{}, force, 5 * time.Second},
		"told":             {stopped, rlock.Options{HandOff: rlock.HandOff{Most: -1}}, unlock, 5 * time.Second},
		"Redisson":         {dead, rlock.Options{}, unlock, 5 * time.Second},
		"Redisson, forced": {dead, rlock.Options{}, force, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
				b, s := fairStandalone(t, 1, c.o)
				list, times := b.keys()
				heard := make(chan time.Time, 10)
				listener, giveBack := s.Client(t).Dedicate()
				defer giveBack()
				channel := "redisson_lock__channel:{" + b.name + "}:"
				listener.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) {
					if m.Channel == channel+java && m.Message == "0" {
						heard <- time.Now()
					}
				}})
				require.NoError(t, listener.Do(t.Context(), listener.B().Subscribe().Channel(channel+stopped[:36], channel+java).Build()).Error())
				unlock := b.lock(0)
				until := strconv.FormatInt(time.Now().Add(4*time.Second).UnixMilli(), 10)
				b.do("RPUSH", list, c.first, java)
				b.do("ZADD", times, until, c.first, strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10), java)

				began := time.Now()
				c.end(b, unlock)
				at := began
				for at.Equal(began) { // those of the release
					at = redistest.Within(t, testTimeout, heard, "told")
				}
				require.Equal(t, c.within+2*time.Millisecond, at.Sub(began))
				require.Zero(t, answer(b.do("EXISTS", b.name).AsInt64()).ok(t))
				require.Equal(t, []string{java}, answer(b.do("LRANGE", list, "0", "-1").AsStrSlice()).ok(t))
				sleep(time.Minute)
				require.Empty(t, heard)
				b.do("DEL", list)
				b.do("DEL", times)
			})
		})
	}
}

// A waiter that gives up leaves the queue at once, wherever it stands, and the order of the others stays.
func TestFairGiveUp(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 3, rlock.Options{})
		unlock := b.lock(0)
		var cancels []context.CancelFunc
		for i := range 9 {
			ctx, cancel := context.WithCancel(context.Background())
			t.Cleanup(cancel)
			cancels = append(cancels, cancel)
			b.wait(ctx, i%3, strconv.Itoa(i))
		}
		began := time.Now()
		for _, i := range []int{0, 4, 8} { // the first, a middle and the last waiter
			cancels[i]()
		}
		b.awaitQueue(6)
		requireTookAtMost(t, time.Second, began, time.Now()) // an abandoned place would last longer
		for _, wait := range []time.Duration{50 * time.Millisecond, 0} {
			refusalOf(t, b.processes[1].FairMutex(b.name), wait)
			b.awaitQueue(6)
		}
		require.NoError(t, unlock())
		b.requireOrder("1", "2", "3", "5", "6", "7")
	})
}

// Close removes the waiters of a process from the queue.
func TestFairClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 2, rlock.Options{})
		unlock := b.lock(0)
		for range 5 {
			b.running.Go(func() {
				_, _, err := b.processes[1].FairMutex(b.name).Lock(context.Background())
				assert.ErrorIs(t, err, rlock.ErrClosed)
			})
		}
		b.awaitQueue(5)
		b.processes[1].Close()
		require.Empty(t, b.queue())
		require.NoError(t, unlock())
		b.requireNothingLeft()
	})
}

// Waiters find out on their own that the lock or their queue was deleted, although no message reports it.
func TestFairKeysDeleted(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 2, rlock.Options{})
		list, times := b.keys()
		b.heldByAnother()
		for i := range 3 {
			b.wait(context.Background(), i%2, strconv.Itoa(i))
		}
		before := b.queue()
		b.do("DEL", list, times)
		b.awaitQueue(3)
		for _, owner := range b.queue() {
			require.NotContains(t, before, owner, "a waiter joins again with a new owner")
		}
		began := time.Now()
		b.do("DEL", b.name)
		for range 3 {
			<-b.in
		}
		requireTookAtMost(t, longestPeriod(5*time.Second), began, time.Now())
		b.requireNothingLeft()
	})
}

// A waiter with a fixed lease that is handed the lock gets all of it, and a hold without one is renewed.
func TestFairHolds(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 2, rlock.Options{WatchdogTimeout: 2 * time.Second})
		unlock := b.lock(0)
		fixed := lockAsync(t, b.processes[1].FairMutex(b.name, rlock.WithLease(time.Minute)))
		b.awaitQueue(1)
		renewed := lockAsync(t, b.processes[1].FairMutex(b.name))
		b.awaitQueue(2)
		require.NoError(t, unlock())
		a := fixed.gets(t, testTimeout)
		ttl := answer(b.processes[0].FairMutex(b.name).TTL(a.ctx)).ok(t)
		require.Greater(t, ttl, 50*time.Second)
		require.NoError(t, a.unlock())
		a = renewed.gets(t, testTimeout)
		sleep(5 * time.Second) // more than two leases
		require.NoError(t, a.ctx.Err())
		require.NoError(t, a.unlock())
		b.requireNothingLeft()
	})
}

// A fair lock and a plain Mutex of the same name exclude each other, and the unlock of either wakes the waiters of the other.
func TestFairBesidePlain(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 2, rlock.Options{})
		plain := b.processes[1].Mutex(b.name)
		a := locked(t, plain)
		b.wait(context.Background(), 0, "fair 0")
		b.wait(context.Background(), 1, "fair 1")
		began := time.Now()
		require.NoError(t, a.unlock())
		b.requireEntered("fair 0", "fair 1")
		requireTookAtMost(t, 100*time.Millisecond, began, time.Now()) // on their own they ask in each third of 5 s
		b.requireNothingLeft()

		fair := b.lock(0)
		waits := lockAsync(t, plain)
		fixture{rdb: b.rdb}.awaitPlace(t, b.name)
		began = time.Now()
		require.NoError(t, fair())
		waits.getAndUnlock(t, testTimeout)
		requireTookAtMost(t, 100*time.Millisecond, began, time.Now())
	})
}

// fairFixture is a fair lock that several processes want, each a client of its own.
type fairFixture struct {
	*testing.T
	rdb       rueidis.Client // beside them
	name      string
	processes []*rlock.Client
	expected  int // in the queue
	in        chan string
	running   sync.WaitGroup
}

func newFairFixture(t *testing.T, rdb rueidis.Client, dial func() rueidis.Client, n int, o rlock.Options) *fairFixture {
	t.Helper()
	b := &fairFixture{T: t, rdb: rdb, name: redistest.Name(t), in: make(chan string, 1000)}
	for range n {
		b.processes = append(b.processes, newClient(t, dial(), o))
	}
	t.Cleanup(func() {
		if t.Failed() { // the lock may never become free
			for _, c := range b.processes {
				c.Close()
			}
		}
		b.running.Wait()
	})
	return b
}

// fairStandalone is a fairFixture with its own server, so that nothing else is counted.
func fairStandalone(t *testing.T, n int, o rlock.Options) (*fairFixture, *redistest.Server) {
	t.Helper()
	s := redistest.Start(t)
	return newFairFixture(t, s.Client(t), func() rueidis.Client { return s.Client(t) }, n, o), s
}

// fairProxied is a fairFixture of n processes, and one more behind a network that fails.
func fairProxied(t *testing.T, n int) (*fairFixture, *redistest.Proxy) {
	t.Helper()
	b, s := fairStandalone(t, n, rlock.Options{})
	proxy := redistest.StartProxy(t, s.Addr())
	b.processes = append(b.processes, newClient(t, s.Client(t, redistest.Via(proxy))))
	return b, proxy
}

// heldByAnother makes another library hold the lock for a minute.
func (b *fairFixture) heldByAnother() {
	b.do("HSET", b.name, foreignOwner, "1")
	b.do("PEXPIRE", b.name, "60000")
}

func (b *fairFixture) keys() (list, times string) {
	return "redisson_lock_queue:{" + b.name + "}", "redisson_lock_timeout:{" + b.name + "}"
}

func (b *fairFixture) do(cmd ...string) rueidis.RedisResult {
	return b.rdb.Do(context.Background(), b.rdb.B().Arbitrary(cmd[0]).Keys(cmd[1]).Args(cmd[2:]...).Build())
}

func (b *fairFixture) queue() []string {
	b.Helper()
	list, _ := b.keys()
	all, err := b.do("LRANGE", list, "0", "-1").AsStrSlice()
	require.NoError(b, err)
	return all
}

func (b *fairFixture) awaitQueue(n int) {
	b.Helper()
	b.expected = n
	redistest.Eventually(b.T, testTimeout, func() bool { return len(b.queue()) == n }, fmt.Sprintf("%d wait", n))
}

// lock takes the lock for a process.
func (b *fairFixture) lock(process int) (unlock rlock.UnlockFunc) {
	b.Helper()
	return locked(b.T, b.processes[process].FairMutex(b.name)).unlock
}

// wait has a goroutine of a process wait in the queue; it says its id when it is in, and unlocks at once.
func (b *fairFixture) wait(ctx context.Context, process int, id string) {
	b.Helper()
	b.running.Go(func() {
		_, unlock, err := b.processes[process].FairMutex(b.name).Lock(ctx)
		if ctx.Err() != nil {
			assert.ErrorIs(b, err, rlock.ErrNotAcquired)
			return
		}
		if assert.NoError(b, err) {
			b.in <- id
			assert.NoError(b, unlock())
		}
	})
	b.awaitQueue(b.expected + 1)
}

// requireOrder checks that exactly these get in, in order, and that nothing is left.
func (b *fairFixture) requireOrder(want ...string) {
	b.Helper()
	b.requireEntered(want...)
	b.requireNothingLeft()
}

// requireEntered checks that these got in, in order.
func (b *fairFixture) requireEntered(want ...string) {
	b.Helper()
	var got []string
	for range want {
		got = append(got, redistest.Within(b.T, testTimeout, b.in, fmt.Sprintf("another is in, after %v", got)))
	}
	require.Equal(b, want, got)
}

func (b *fairFixture) requireNothingLeft() {
	b.Helper()
	rwNothing(b.T, b.rdb, b.name)
}
