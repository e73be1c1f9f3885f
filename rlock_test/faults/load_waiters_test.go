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

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	manyWaiters = 10_000
	waiterBytes = 4 << 10 // of heap; measured: half of it
	// of the link, of rueidis and of the proxy; no more however many wait.
	connectionGoroutines = 40

	noRenewal     = 10 * time.Minute
	longestGap    = 5 * time.Second // half of the shortest time-out that could end a stall
	drainPatience = 5 * time.Minute // no test waits that long unless somebody sleeps for ever
)

// parkedCtx tells when a Lock looks at it for the first time, which a Lock does when it stands in the
// queue and is about to wait.
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

// crowd is many goroutines that wait for locks, and what became of them.
type crowd struct {
	cancels []context.CancelFunc
	wg      sync.WaitGroup
	start   chan int      // which of them to send to the lock
	parked  chan struct{} // it waits

	mu     sync.Mutex // guards the following
	last   time.Time  // when somebody was served
	gap    time.Duration
	served []int // who got the lock, in that order
	given  []int // who gave up
	inside map[string]bool
}

// gather starts n goroutines that stand before their Lock.
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
		ctx.Done() // made here, so that it does not count as the waiter's
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
	assert.False(t, c.inside[name], "two inside")
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

// park sends all of them to their locks, one after the other, and returns when all wait.
func (c *crowd) park() {
	for i := range c.cancels {
		c.start <- i
		<-c.parked
	}
}

// wait returns when all have ended, and ends their contexts. That nobody is served for a while means
// that a wake-up got lost.
func (c *crowd) wait(t *testing.T) {
	t.Helper()
	c.wg.Wait()
	t.Logf("at most %v between two that were served", c.gap)
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

// parkAndMeasure parks the crowd, and checks and prints what a waiter costs.
func (c *crowd) parkAndMeasure(t *testing.T) (before memory) {
	t.Helper()
	goroutines := runtime.NumGoroutine() // the callers are among them
	before = measure()
	began := time.Now()
	c.park()
	t.Logf("%d waiters in line after %v", len(c.cancels), time.Since(began))
	redistest.Eventually(t, drainPatience, func() bool { return runtime.NumGoroutine() <= goroutines+connectionGoroutines },
		"no goroutine of ours for each waiter")
	heap, stacks := measure().per(before, len(c.cancels))
	t.Logf("a waiter costs %d bytes of heap, besides its goroutine, whose stack has grown by %d", heap, stacks)
	require.Less(t, heap, int64(waiterBytes))
	return before
}

// requireSilence checks that no command comes from anybody (G3). PING is rueidis' own, one a second
// and connection.
func requireSilence(t *testing.T, s *redistest.Server, d time.Duration) {
	t.Helper()
	watch := s.Client(t)
	before := redistest.Commands(t, watch)
	loadPass(d)
	for name, n := range redistest.Commands(t, watch) {
		if name != "info" && name != "ping" {
			require.Equal(t, before[name], n, name)
		}
	}
}

// Fault 7, G3, G4, G5: 10,000 waiters on one name send nothing; then each unlock wakes one, in the
// order of their calls, and each is woken exactly once; nothing is left of them. The same with half
// of them cancelled at random, before the first unlock and while they are served.
func TestLoadWaitersOnOneName(t *testing.T) {
	t.Run("all stay", func(t *testing.T) { waitersOnOneName(t, 0) })
	t.Run("half are cancelled", func(t *testing.T) { waitersOnOneName(t, manyWaiters/2) })
}

func waitersOnOneName(t *testing.T, cancelled int) {
	random := rand.New(rand.NewPCG(loadSeed(t), 7))
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
	// One asks at once, and again when the subscription stands.
	redistest.Eventually(t, drainPatience, func() bool { return m.acquires.Load() == 2 }, "asked after the subscription")
	requireSilence(t, s, 2*time.Second)

	leavers := random.Perm(manyWaiters)[:cancelled]
	for _, i := range leavers[:cancelled/2] {
		c.cancels[i]()
	}
	began := time.Now()
	require.NoError(t, unlock())
	for k, i := range leavers[cancelled/2:] { // spread over the time that serving takes
		redistest.Eventually(t, drainPatience, func() bool { return c.serving() >= k }, "they are served")
		c.cancels[i]()
	}
	c.wait(t)
	handed := int(m.handOffs.Load())
	asked := int(m.acquires.Load()) - 2 + handed
	t.Logf("%d served and %d given up in %v, with %d calls that acquire, %d of them hand-offs",
		len(c.served), len(c.given), time.Since(began), asked, handed)

	require.Len(t, slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.served, c.given)))), manyWaiters,
		"each ended once")
	require.True(t, slices.IsSorted(c.served), "in the order of their calls")
	slices.Sort(leavers)
	for _, i := range c.given {
		_, leaver := slices.BinarySearch(leavers, i)
		require.True(t, leaver, "waiter %d was not cancelled", i)
	}
	require.Positive(t, handed)
	// A waiter cancelled in its turn gives back what it got, which tells the next one twice.
	require.LessOrEqual(t, asked, len(c.served)+2*len(c.given), "woken once each")
	if cancelled == 0 {
		require.Equal(t, manyWaiters, asked, "woken once each")
	} else {
		require.Greater(t, len(c.given), cancelled/2, "some were cancelled while others were served")
	}
	requireNothing(t, s, before, holder, waiters)
}

// warmUp makes the connections, each with buffers of a megabyte, before memory is measured: of those
// for commands, each name uses one.
//
// An acquire that has to dial is swept for a while: behind a meter, the library cannot see that rueidis has not sent it twice. So
// other commands dial.
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
	requireEmpty(t, s.Client(t), drainPatience) // also of the subscriptions that linger
}

// requireNothing checks that all is as it was before the crowd came.
func requireNothing(t *testing.T, s *redistest.Server, before memory, clients ...*rlock.Client) {
	t.Helper()
	watch := s.Client(t)
	requireEmpty(t, watch, drainPatience)
	redistest.Eventually(t, drainPatience, func() bool { return libraryGoroutines() <= 2*len(clients) },
		"a renewer and at most a link for each client")
	heap, _ := measure().per(before, 1)
	t.Logf("%d bytes of heap more than before", heap)
	require.Negative(t, heap, "what waited is forgotten, and so are the contexts and handles of the crowd, which were there before")
	for _, c := range clients {
		c.Close()
	}
	redistest.Eventually(t, drainPatience, func() bool { return libraryGoroutines() == 0 }, "no goroutine after Close")
}

// Fault 7 and 2, G3, G4, G5: 10,000 waiters on 1,000 names share one connection and send nothing; when
// it is cut all names are subscribed to again, with one attempt for each name; each waiter is served.
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
	redistest.Eventually(t, drainPatience, func() bool { return asked() >= 2*names }, "all have asked twice")
	requireSilence(t, s, time.Second)

	settled := asked()
	began := time.Now()
	require.NoError(t, do(t, watch, "CLIENT", "KILL", "TYPE", "pubsub").Error())
	redistest.Eventually(t, drainPatience, func() bool {
		channels, err := do(t, watch, "PUBSUB", "CHANNELS").AsStrSlice()
		return err == nil && len(channels) == 2*names && asked() >= settled+names // of each name the one for grants, too
	}, "all subscribed again, and asked again")
	t.Logf("%d names subscribed again after %v", names, time.Since(began))
	requireSilence(t, s, time.Second)
	require.Equal(t, settled+names, asked(), "one attempt for each name")

	proxy.CutAll() // the connections for commands, too
	began = time.Now()
	loadParallel(names, func(i int) { assert.NoError(t, unlocks[i]()) })
	c.wait(t)
	t.Logf("%d served in %v after all connections were cut", len(c.served), time.Since(began))
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(c.served))), manyWaiters, "each was served once")
	last := make(map[string]int)
	for _, i := range c.served {
		require.GreaterOrEqual(t, i, last[name(i)], "in the order of their calls")
		last[name(i)] = i
	}
	requireNothing(t, s, before, holder, waiters)
}
