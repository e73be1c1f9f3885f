package rlock_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// semaphorePlaces returns the entries of a semaphore's queue in Redis: what each process wants.
func (b fixture) semaphorePlaces(t testing.TB) (wants []string) {
	t.Helper()
	record := answer(b.do(t, "HGETALL", "rlock_sem_requests:{"+b.name+"}").AsStrMap()).ok(t)
	for field, text := range record {
		if !strings.Contains(field, ":") {
			wants = append(wants, strings.TrimPrefix(text, "want "))
		}
	}
	return wants
}

// A refused TryAcquire with zero wait, beside a waiter of its process, is not part of the process's place in the queue.
func TestSemaphoreTriesHaveNoPlace(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		watch := b.Semaphore(b.name)
		permits(t, watch, 1)
		s := c.Semaphore(b.name)
		first := b.acquireAsync(t, s, 2, 1)
		require.NoError(t, watch.Release(context.Background(), 1))
		require.NoError(t, within(t, first, testTimeout)) // so that the subscription stays open for a moment

		proxy.OnReply(nthScript(1, redistest.Hold))
		back := async(func() error { return s.Release(context.Background(), 1) })
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "a call is under way")
		parked := make(chan struct{}, 1)
		try := async(func() error { return s.TryAcquire(&parkedCtx{Context: context.Background(), parked: parked}, 100, 0) })
		<-parked // in the next call
		waits := async(func() error { return s.Acquire(&parkedCtx{Context: context.Background(), parked: parked}, 5) })
		<-parked // and so is this
		proxy.Release()
		require.NoError(t, within(t, back, testTimeout))
		require.ErrorIs(t, within(t, try, testTimeout), rlock.ErrNotAcquired)
		redistest.Eventually(t, testTimeout, func() bool {
			places := b.semaphorePlaces(t)
			return len(places) == 1 && places[0] == "5"
		}, "its place is for 5")
		require.NoError(t, watch.Release(context.Background(), 4))
		require.NoError(t, within(t, waits, testTimeout))
	})
}

// If Redis refuses a call, waiters that were not part of it ask for the permits that are free.
func TestSemaphoreRefusedCallIsNotForAll(t *testing.T) {
	redistest.OnlyVirtual(t, "that all have arrived can be seen only there", func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		watch := b.Semaphore(b.name)
		permits(t, watch, 9)
		s := c.Semaphore(b.name)
		large := b.acquireAsync(t, s, 100, 1)
		redistest.Eventually(t, testTimeout, func() bool { return len(b.semaphorePlaces(t)) == 1 }, "the process is queued")

		proxy.OnReply(nthScript(1, redistest.Hold))
		proxy.OnRequest(nthScript(2, redistest.Fail("OOM command not allowed when used memory > 'maxmemory'.")))
		const n = 40
		var small []<-chan error
		for range n {
			small = append(small, async(func() error { return s.Acquire(context.Background(), 1) }))
			redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "a call is under way")
		}
		redistest.Settle(t) // all have arrived meanwhile
		proxy.Release()
		refused := 0
		for i, err := range append([]<-chan error{large}, small...) {
			if err := within(t, err, 5*time.Second); err != nil {
				require.ErrorContains(t, err, "OOM", "%d", i)
				refused++
			}
		}
		require.Equal(t, 32, refused, "one call asks for 32 waiters")
		requireFree(t, watch, 0)
	})
}

// Waiters that do not fit into one call wait like the others: their errors show that Redis answers, and how many
// permits are free. One that wants fewer permits waits for those before it.
func TestSemaphoreWaitersBehindACall(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		s := b.Semaphore(b.name)
		permits(t, s, 3)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		const n = 32
		var large []<-chan error
		for i := range n {
			large = append(large, async(func() error { return s.Acquire(ctx, 10) }))
			redistest.Eventually(t, testTimeout, func() bool { return b.wants(t) == i+1 }, "the waiter is queued")
		}
		began := time.Now()
		err := s.TryAcquire(ctx, 10, 100*time.Millisecond)
		require.Less(t, redistest.Ran(t, began, time.Now()), 900*time.Millisecond, "the call did not use up its second for an answer")
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.NotErrorIs(t, err, rlock.ErrUnreachable)
		require.ErrorContains(t, err, "3 free of 10 wanted")

		small := async(func() error { return s.Acquire(context.Background(), 2) })
		redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "it waits as well")
		requireStillWaits(t, small)
		cancel()
		for _, err := range large {
			require.ErrorIs(t, within(t, err, testTimeout), rlock.ErrNotAcquired)
		}
		require.NoError(t, within(t, small, testTimeout), "it is the first now")
	})
}

// wants returns the number of wants of one process in Redis.
func (b fixture) wants(t testing.TB) int {
	t.Helper()
	places := b.semaphorePlaces(t)
	if len(places) != 1 {
		return 0
	}
	return 1 + strings.Count(places[0], ",")
}

// A FLUSHALL also removes the places in the queue. Waiters still learn of new permits.
func TestSemaphoreFlushed(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		server := redistest.Start(t)
		b := fixture{rdb: server.Client(t), name: redistest.Name(t)}
		other, one, two := newClient(t, server.Client(t)), newClient(t, server.Client(t)), newClient(t, server.Client(t))
		permits(t, other.Semaphore(b.name), 0)
		got := []<-chan error{b.acquireAsync(t, one.Semaphore(b.name), 1, 1), b.acquireAsync(t, two.Semaphore(b.name), 1, 2)}
		require.NoError(t, b.do(t, "FLUSHALL").Error())
		permits(t, other.Semaphore(b.name), 2)
		for _, err := range got {
			require.NoError(t, within(t, err, wakeTimeout))
		}
		requireFree(t, other.Semaphore(b.name), 0)
	})
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
