package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	manyWaiters = 10_000
	waiterBytes = 4 << 10 // heap per waiter; measured: half of it
	// Goroutines of the link, of rueidis and of the proxy, however many callers wait.
	connectionGoroutines = 40

	noRenewal     = 10 * time.Minute
	longestGap    = 5 * time.Second // half of the shortest timeout that could wake a sleeper
	drainPatience = 5 * time.Minute // exceeded only if something never happens
)

// parkedCtx reports when Lock first calls Done: when it is in the queue, just before it waits.
type parkedCtx struct {
	context.Context
	looked atomic.Bool
	parked chan<- struct{}
}

func (c *parkedCtx) Done() <-chan struct{} {
	if c.looked.CompareAndSwap(false, true) {
		c.parked <- struct{}{}
	}
	return c.Context.Done()
}

// crowd is many goroutines that wait for locks, and their outcomes.
type crowd struct {
	cancels []context.CancelFunc
	wg      sync.WaitGroup
	start   chan int      // the number of the next goroutine to call Lock
	parked  chan struct{} // sent to when its Lock waits

	mu     sync.Mutex // guards the following
	last   time.Time  // when a waiter last got its lock
	gap    time.Duration
	served []int // the waiters that got their locks, in order
	given  []int // the waiters that gave up
	inside map[string]bool
}

// gather starts n goroutines that are about to call Lock.
func gather(t *testing.T, n int, mutex func(i int) *rlock.Mutex) *crowd {
	t.Helper()
	c := &crowd{
		cancels: make([]context.CancelFunc, n), start: make(chan int), parked: make(chan struct{}),
		served: make([]int, 0, n), given: make([]int, 0, n), inside: make(map[string]bool),
	}
	ctxs := make([]*parkedCtx, n)
	mutexes := make([]*rlock.Mutex, n)
	for i := range n {
		ctx, cancel := context.WithCancel(t.Context())
		ctx.Done() // allocates the channel now, so that the waiter's memory does not include it
		ctxs[i], c.cancels[i] = &parkedCtx{Context: ctx, parked: c.parked}, cancel
		mutexes[i] = mutex(i)
		c.wg.Go(func() {
			i := <-c.start
			c.lock(ctxs[i], t, i, mutexes[i])
		})
	}
	return c
}

func (c *crowd) lock(ctx context.Context, t *testing.T, i int, m *rlock.Mutex) {
	_, unlock, err := m.Lock(ctx)
	if err != nil {
		assert.ErrorIs(t, err, rlock.ErrNotAcquired)
		assert.ErrorIs(t, err, context.Canceled)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.given = append(c.given, i)
		return
	}
	c.enter(t, i, m.Name())
	c.leave(m.Name())
	assert.NoError(t, unlock())
}

func (c *crowd) enter(t *testing.T, i int, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	assert.False(t, c.inside[name], "G1: two inside")
	c.inside[name] = true
	c.served = append(c.served, i)
	now := time.Now()
	if !c.last.IsZero() {
		c.gap = max(c.gap, now.Sub(c.last))
	}
	c.last = now
}

func (c *crowd) leave(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside[name] = false
}

// park has all goroutines call Lock, one after the other, and returns when all wait.
func (c *crowd) park() {
	for i := range c.cancels {
		c.start <- i
		<-c.parked
	}
}

// wait waits until all goroutines have ended, and cancels their contexts. A long gap between two locks means a lost
// wake-up.
func (c *crowd) wait(t *testing.T) {
	t.Helper()
	c.wg.Wait()
	t.Logf("longest gap between two locks: %v", c.gap)
	assert.Less(t, c.gap, longestGap)
	for _, cancel := range c.cancels {
		cancel()
	}
}

func (c *crowd) serving() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.served)
}

// parkAndMeasure parks the crowd, and checks and logs the memory of a waiter.
func (c *crowd) parkAndMeasure(t *testing.T) (before memory) {
	t.Helper()
	goroutines := runtime.NumGoroutine() // with the callers
	before = measure()
	began := time.Now()
	c.park()
	t.Logf("%d waiters in line after %v", len(c.cancels), time.Since(began))
	redistest.Eventually(t, drainPatience, func() bool { return runtime.NumGoroutine() <= goroutines+connectionGoroutines },
		"no waiter may have a goroutine besides its caller's")
	heap, stacks := measure().per(before, len(c.cancels))
	t.Logf("per waiter: %d bytes of heap; its caller's stack has grown by %d", heap, stacks)
	require.Less(t, heap, int64(waiterBytes))
	return before
}

// requireSilence requires that nobody sends a command (G3), except rueidis's own PINGs.
func requireSilence(t *testing.T, s *redistest.Server, d time.Duration) {
	t.Helper()
	watch := s.Client(t)
	before := redistest.Commands(t, watch)
	sleep(d)
	for name, n := range redistest.Commands(t, watch) {
		if name != "info" && name != "ping" {
			require.Equal(t, before[name], n, name)
		}
	}
}

// Fault 7, G3, G4, G5: 10,000 waiters on one name send nothing. Then each unlock wakes one of them, in the order of their
// calls and once each, and nothing is left. The same with half of the waiters cancelled at random, before the first
// unlock and during the others' turns.
func TestLoadWaitersOnOneName(t *testing.T) {
	t.Run("all stay", func(t *testing.T) { waitersOnOneName(t, 0) })
	t.Run("half are cancelled", func(t *testing.T) { waitersOnOneName(t, manyWaiters/2) })
}

func waitersOnOneName(t *testing.T, cancelled int) {
	random := rand.New(rand.NewPCG(faultsSeed(t), 7))
	s := redistest.Start(t)
	options := rlock.Options{WatchdogTimeout: noRenewal}
	holder := newClient(t, s.Client(t), options)
	m := &meter{Client: s.Client(t)}
	waiters := newClient(t, m, options)
	warmUp(t, s, holder, waiters, m)
	_, unlock, err := holder.Mutex("one").Lock(t.Context())
	require.NoError(t, err)
	m.acquires.Store(0)

	c := gather(t, manyWaiters, func(int) *rlock.Mutex { return waiters.Mutex("one") })
	before := c.parkAndMeasure(t)
	// The first waiter asks at once, and again after the subscription.
	redistest.Eventually(t, drainPatience, func() bool { return m.acquires.Load() == 2 }, "asked after the subscription")
	requireSilence(t, s, 2*time.Second)

	leavers := random.Perm(manyWaiters)[:cancelled]
	for _, i := range leavers[:cancelled/2] {
		c.cancels[i]()
	}
	began := time.Now()
	require.NoError(t, unlock())
	for k, i := range leavers[cancelled/2:] { // spread over the others' turns
		redistest.Eventually(t, drainPatience, func() bool { return c.serving() >= k }, "the others must go on")
		c.cancels[i]()
	}
	c.wait(t)
	handed := int(m.handOffs.Load())
	asked := int(m.acquires.Load()) - 2 + handed
	t.Logf("%d got the lock and %d gave up in %v, with %d acquiring calls, %d of them hand-offs",
		len(c.served), len(c.given), time.Since(began), asked, handed)

	require.Len(t, slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.served, c.given)))), manyWaiters,
		"each Lock must return once")
	require.True(t, slices.IsSorted(c.served), "in the order of their calls")
	slices.Sort(leavers)
	for _, i := range c.given {
		_, leaver := slices.BinarySearch(leavers, i)
		require.True(t, leaver, "waiter %d was not cancelled", i)
	}
	require.Positive(t, handed)
	// A waiter cancelled in its turn gives the lock back, which wakes the next one twice.
	require.LessOrEqual(t, asked, len(c.served)+2*len(c.given), "woken once each")
	if cancelled > 0 {
		require.Greater(t, len(c.given), cancelled/2, "some must be cancelled during the others' turns")
	}
	requireNothing(t, s, before, holder, waiters)
}

// warmUp opens the connections, each with a megabyte of buffers, before memory is measured. Many names are needed, since
// the name selects one of the connections for commands.
//
// Other commands dial: after an acquire that dialled there would be a sweep, since the library cannot see through the
// meter that rueidis sent it only once.
func warmUp(t *testing.T, s *redistest.Server, holder, waiters *rlock.Client, m *meter) {
	t.Helper()
	const names = 64
	name := func(i int) string { return fmt.Sprintf("warm:%d", i) }
	for i := range names {
		require.NoError(t, m.Client.Do(t.Context(), m.B().Exists().Key(name(i)).Build()).Error())
	}
	unlocks := make([]rlock.UnlockFunc, names)
	for i := range names {
		var err error
		_, unlocks[i], err = holder.Mutex(name(i)).Lock(t.Context())
		require.NoError(t, err)
	}
	c := gather(t, names, func(i int) *rlock.Mutex { return waiters.Mutex(name(i)) })
	c.park()
	for _, unlock := range unlocks {
		require.NoError(t, unlock())
	}
	c.wait(t)
	requireEmpty(t, s.Client(t), drainPatience) // the subscriptions stay for a moment
}

// requireNothing requires that the crowd has left nothing.
func requireNothing(t *testing.T, s *redistest.Server, before memory, clients ...*rlock.Client) {
	t.Helper()
	watch := s.Client(t)
	requireEmpty(t, watch, drainPatience)
	heap, _ := measure().per(before, 1)
	t.Logf("heap growth: %d bytes", heap)
	require.Negative(t, heap, "the waiters' memory must be freed, and the crowd's contexts and handles, which were counted before")
	for _, c := range clients {
		c.Close()
	}
}

// Fault 7 and 2, G3, G4, G5: 10,000 waiters on 1,000 names share one connection and send nothing. After a cut, all names
// are subscribed to again, with one attempt per name. Each waiter gets its lock.
func TestLoadWaitersOnManyNames(t *testing.T) {
	const names = 1000
	s := redistest.Start(t)
	proxy := redistest.StartProxy(t, s.Addr())
	options := rlock.Options{WatchdogTimeout: noRenewal}
	holder := newClient(t, s.Client(t), options)
	m := &meter{Client: redistest.Dial(t, proxy.Addr())}
	waiters := newClient(t, m, options)
	watch := s.Client(t)
	warmUp(t, s, holder, waiters, m)
	m.acquires.Store(0)
	name := func(i int) string { return fmt.Sprintf("many:%d", i%names) }
	unlocks := make([]rlock.UnlockFunc, names)
	loadParallel(names, func(i int) {
		var err error
		_, unlocks[i], err = holder.Mutex(name(i)).Lock(t.Context())
		assert.NoError(t, err)
	})

	c := gather(t, manyWaiters, func(i int) *rlock.Mutex { return waiters.Mutex(name(i)) })
	before := c.parkAndMeasure(t)
	asked := func() int64 { return m.acquires.Load() }
	redistest.Eventually(t, drainPatience, func() bool { return asked() >= 2*names }, "all names must be asked for twice")
	requireSilence(t, s, time.Second)

	settled := asked()
	began := time.Now()
	require.NoError(t, do(t, watch, "CLIENT", "KILL", "TYPE", "pubsub").Error())
	redistest.Eventually(t, drainPatience, func() bool {
		channels, err := do(t, watch, "PUBSUB", "CHANNELS").AsStrSlice()
		return err == nil && len(channels) == 3*names && asked() >= settled+names // with each name's channels for grants and for the queue
	}, "all names must be subscribed to and asked for again")
	t.Logf("%d names subscribed to again after %v", names, time.Since(began))
	requireSilence(t, s, time.Second)
	require.Equal(t, settled+names, asked(), "one attempt per name")

	proxy.CutAll() // the connections for commands, too
	began = time.Now()
	loadParallel(names, func(i int) { assert.NoError(t, unlocks[i]()) })
	c.wait(t)
	t.Logf("%d got their locks in %v after all connections were cut", len(c.served), time.Since(began))
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(c.served))), manyWaiters, "each waiter must get its lock once")
	last := make(map[string]int)
	for _, i := range c.served {
		require.GreaterOrEqual(t, i, last[name(i)], "in the order of their calls")
		last[name(i)] = i
	}
	requireNothing(t, s, before, holder, waiters)
}
