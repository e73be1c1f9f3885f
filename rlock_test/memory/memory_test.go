// Package memory_test measures what the library costs the process: live bytes after a collection, allocations, and goroutines. These belong
// to the whole process, so no test here runs beside another, and nothing else has run before: the other packages have processes of their own.
package memory_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"runtime"
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

const (
	memoryOf    = 5000 // waiters or holds; the race detector supports about 8,000 goroutines
	waiterBytes = 1024
	holdBytes   = 512
	inUseBytes  = 512 // in addition, for its handle and a ctx that somebody waits for
	askedBytes  = 512 // in addition, for a hold with WithAsked
	idleBytes   = 1280
	pairAllocs  = 10          // the race detector adds two
	patience    = time.Minute // bounds every wait
	long        = time.Hour   // a lease, or a linger time, that does not end
)

func TestMain(m *testing.M) { redistest.Main(m) }

// connections counts those in memory, and with each the 400 KB of rueidis's. A timer can keep one a second after its client was closed.
var connections atomic.Int64

// start returns a server, once no connection of the tests before is in memory: it would be freed during this one.
func start(t *testing.T) *redistest.Server {
	t.Helper()
	redistest.Eventually(t, patience, func() bool {
		runtime.GC()
		return connections.Load() == 0
	}, "earlier tests leave nothing")
	return redistest.Start(t)
}

// connection has an address in memory of its own.
type connection struct{ net.Conn }

// counted counts the connections of a client.
func counted(o *rueidis.ClientOption) {
	o.DialCtxFn = func(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		c := &connection{conn}
		connections.Add(1)
		runtime.AddCleanup(c, func(int64) { connections.Add(-1) }, 0)
		return c, nil
	}
}

// single makes a client send commands on one connection. By default rueidis picks one of several at random for each command, and opens it then.
func single(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }

// newClient returns a Client with a rueidis client of its own.
func newClient(t *testing.T, s *redistest.Server) *rlock.Client {
	t.Helper()
	c, err := rlock.New(s.Client(t, counted, single), rlock.Options{})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// heapInUse returns the bytes allocated on the heap. The second collection also frees the contents of sync.Pools.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// parkedCtx reports that a Lock is about to wait: only then does it call Done.
type parkedCtx struct {
	context.Context
	once   sync.Once
	parked chan<- struct{}
}

func (c *parkedCtx) Done() <-chan struct{} {
	c.once.Do(func() { c.parked <- struct{}{} })
	return c.Context.Done()
}

// G3: the memory of a waiter, without its goroutine, which belongs to the caller.
func TestMemoryOfWaiters(t *testing.T) {
	for kind, waits := range map[string]func(*rlock.Client) func(context.Context) error{
		"Lock": func(c *rlock.Client) func(context.Context) error {
			m := c.Mutex("one")
			return func(ctx context.Context) error {
				_, _, err := m.Lock(ctx)
				return err
			}
		},
		"TryLock": func(c *rlock.Client) func(context.Context) error {
			m := c.Mutex("one")
			return func(ctx context.Context) error {
				_, _, err := m.TryLock(ctx, time.Hour)
				return err
			}
		},
		"semaphore": func(c *rlock.Client) func(context.Context) error {
			none := c.Semaphore("none")
			return func(ctx context.Context) error { return none.Acquire(ctx, 1) }
		},
		"permit": func(c *rlock.Client) func(context.Context) error {
			none := c.PermitSemaphore("none")
			return func(ctx context.Context) error {
				_, _, err := none.Acquire(ctx)
				return err
			}
		},
		"latch": func(c *rlock.Client) func(context.Context) error { return c.CountDownLatch("shut").Await },
	} {
		t.Run(kind, func(t *testing.T) { memoryOfWaiters(t, waits) })
	}
}

func memoryOfWaiters(t *testing.T, waits func(*rlock.Client) func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := start(t)
	watch := s.Client(t, counted, single)
	other, wait := newClient(t, s), waits(newClient(t, s))
	_, unlock, err := other.Mutex("one", rlock.WithLease(long)).Lock(ctx) // a renewal could open a connection
	require.NoError(t, err)
	_, err = other.CountDownLatch("shut").TrySetCount(ctx, 1)
	require.NoError(t, err)

	parked, start := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range memoryOf + 1 {
		ctx := &parkedCtx{Context: ctx, parked: parked}
		wg.Go(func() {
			<-start
			assert.ErrorIs(t, wait(ctx), context.Canceled)
		})
	}
	asked := redistest.Commands(t, watch)["evalsha"]
	start <- struct{}{}
	<-parked
	// The first waiter asks at once, and again after it has subscribed. It opens all connections that the test needs.
	redistest.Eventually(t, patience, func() bool { return redistest.Commands(t, watch)["evalsha"] == asked+2 }, "a waiter asks twice")

	goroutines, before := runtime.NumGoroutine(), heapInUse()
	for range memoryOf {
		start <- struct{}{}
		<-parked
	}
	per := (heapInUse() - before) / memoryOf
	t.Logf("a waiter costs %d bytes", per)
	assert.LessOrEqual(t, per, int64(waiterBytes))
	// rueidis starts one or two for the PING of each connection, once a second.
	redistest.Eventually(t, patience, func() bool { return runtime.NumGoroutine() <= goroutines }, "no goroutine per waiter")
	cancel()
	wg.Wait()
	require.NoError(t, unlock())
}

// The memory of a hold, without and with its handle and the channel that ctx.Done makes, and the additional memory with WithAsked.
func TestMemoryOfHolds(t *testing.T) {
	s := start(t)
	c := newClient(t, s)
	hold := memoryOfHolds(t, c)
	t.Logf("a hold costs %d bytes", hold)
	assert.LessOrEqual(t, hold, int64(holdBytes))
	inUse := memoryOfHoldsInUse(t, c)
	t.Logf("a hold costs %d bytes, with its handle and the channel of its ctx", inUse)
	assert.LessOrEqual(t, inUse, int64(holdBytes+inUseBytes))
	asked := memoryOfHolds(t, c, rlock.WithAsked())
	t.Logf("a hold with WithAsked costs %d bytes", asked)
	assert.LessOrEqual(t, asked, int64(holdBytes+askedBytes))
	again := memoryOfHolds(t, c)
	t.Logf("a hold costs %d bytes, in a Client that listens for other processes", again)
	assert.LessOrEqual(t, again, int64(holdBytes))
}

func memoryOfHoldsInUse(t *testing.T, c *rlock.Client) (per int64) {
	t.Helper()
	unlocks, before := make([]rlock.UnlockFunc, memoryOf), heapInUse()
	for i := range unlocks {
		ctx, unlock, err := c.Mutex(fmt.Sprintf("memory:%d", i)).Lock(context.Background())
		require.NoError(t, err)
		ctx.Done()
		unlocks[i] = unlock
	}
	per = (heapInUse() - before) / memoryOf
	for _, unlock := range unlocks {
		require.NoError(t, unlock())
	}
	return per
}

func memoryOfHolds(t *testing.T, c *rlock.Client, options ...rlock.Option) (per int64) {
	t.Helper()
	mutexes, unlocks := make([]*rlock.Mutex, memoryOf), make([]rlock.UnlockFunc, memoryOf)
	for i := range mutexes {
		mutexes[i] = c.Mutex(fmt.Sprintf("memory:%d", i), options...)
	}
	each := func(n int, f func(i int) error) {
		const goroutines = 64
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				for i := g; i < n; i += goroutines {
					assert.NoError(t, f(i))
				}
			})
		}
		wg.Wait()
	}
	lock := func(i int) (err error) {
		_, unlocks[i], err = mutexes[i].Lock(context.Background())
		return err
	}
	unlock := func(i int) error { return unlocks[i]() }
	each(1000, lock) // opens the connections
	each(1000, unlock)
	clear(unlocks) // an UnlockFunc keeps its hold in memory

	goroutines, before := runtime.NumGoroutine(), heapInUse()
	each(memoryOf, lock)
	per = (heapInUse() - before) / memoryOf
	redistest.Eventually(t, patience, func() bool { return runtime.NumGoroutine() <= goroutines }, "all holds share one goroutine")
	each(memoryOf, unlock)
	return per
}

// A child of a ctx of this library costs no goroutine, although package context starts one for each child of a foreign ctx.
func TestChildContextsCostNoGoroutine(t *testing.T) {
	c := newClient(t, start(t))
	m := c.Mutex("parent")
	ctx, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)
	nested, unlockNested, err := m.Lock(ctx)
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	var children []context.Context
	for range 100 {
		for _, parent := range []context.Context{ctx, nested} {
			child, cancel := context.WithCancel(parent)
			t.Cleanup(cancel)
			children = append(children, child)
		}
	}
	redistest.Eventually(t, patience, func() bool { return runtime.NumGoroutine() <= before }, "no goroutine per child")
	require.NoError(t, unlockNested())
	require.NoError(t, unlock())
	for _, child := range children {
		require.ErrorIs(t, child.Err(), context.Canceled, "the child ends with its parent")
	}
}

// pair is a Lock and its unlock.
func pair(t *testing.T, m *rlock.Mutex) {
	t.Helper()
	_, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)
	require.NoError(t, unlock())
}

// The memory of a lock kept by WithLinger.
func TestMemoryOfKeptLocks(t *testing.T) {
	s := start(t)
	c := newClient(t, s)
	keepFirst(t, c)
	const locks = 900 // a Client keeps at most a thousand
	keepAll := func(c *rlock.Client) {
		for i := range locks {
			pair(t, c.Mutex(fmt.Sprintf("kept:%s:%d", c.ID(), i), rlock.WithLinger(long)))
			if i%30 == 0 || i == locks-1 { // the runtime keeps the memory of goroutines that have ended
				redistest.Eventually(t, patience, func() bool { return c.Stats().Idle == i+2 }, "the Client has checked for waiters")
			}
		}
	}
	other := newClient(t, s)
	keepFirst(t, other)
	keepAll(other)
	before := heapInUse()
	keepAll(c)
	require.Equal(t, locks+1, c.Stats().Idle)
	per := (heapInUse() - before) / locks
	t.Logf("a kept lock costs %d bytes", per)
	assert.LessOrEqual(t, per, int64(idleBytes))
}

// keepFirst locks and unlocks until the Client keeps the lock: it does once its ear listens.
func keepFirst(t *testing.T, c *rlock.Client) {
	t.Helper()
	m := c.Mutex("kept:"+c.ID(), rlock.WithLinger(long))
	redistest.Eventually(t, patience, func() bool {
		pair(t, m)
		return c.Stats().Idle > 0
	}, "it is kept")
}

// The allocations of an uncontended Lock and its unlock.
func TestMemoryOfAPair(t *testing.T) {
	s := start(t)
	m := newClient(t, s).Mutex("pair")
	pair(t, m) // opens the connection and loads the scripts
	// The runtime and rueidis's PING of an idle connection allocate, too: take the minimum of several rounds.
	per := math.Inf(1)
	for range 10 {
		per = min(per, testing.AllocsPerRun(200, func() { pair(t, m) })) // on one core, so nothing else in this process runs for long
	}
	t.Logf("a Lock and its unlock allocate %.0f times", per)
	assert.LessOrEqual(t, per, float64(pairAllocs))
}
