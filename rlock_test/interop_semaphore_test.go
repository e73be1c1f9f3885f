//go:build interop

package rlock_test

import (
	"context"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TestInteropSemaphore checks docs/redisson.md: both sides share the same permits.
func TestInteropSemaphore(t *testing.T) {
	inEach(t, settings(t), func(t *testing.T, w *world) {
		for _, side := range []struct {
			way      string
			one, two semaphoreSide
		}{
			{"Go and Java", goSemaphore{w.watch.Client}, javaSemaphore{w.java.thread()}},
			{"Java and Go", javaSemaphore{w.java.thread()}, goSemaphore{w.watch.Client}},
		} {
			t.Run(side.way+"/count", func(t *testing.T) { w.semaphoreCount(t, side.one, side.two) })
			t.Run(side.way+"/wait", func(t *testing.T) { w.semaphoreWait(t, side.one, side.two) })
		}
		t.Run("both wait", w.semaphoreBothWait)
		t.Run("herd", w.semaphoreHerd)
	})
}

// semaphoreSide uses semaphores from Go or from Java.
type semaphoreSide interface {
	set(t testing.TB, name string, n int64) bool
	release(t testing.TB, name string, n int64)
	try(t testing.TB, name string, n int64) bool
	available(t testing.TB, name string) int64
	drain(t testing.TB, name string) int64
	// acquire begins to wait, and returns when that only waits for a message.
	acquire(t testing.TB, name string, n int64) <-chan event
}

type goSemaphore struct{ client *rlock.Client }

func (g goSemaphore) set(t testing.TB, name string, n int64) bool {
	t.Helper()
	did, err := g.client.Semaphore(name).TrySetPermits(context.Background(), n)
	require.NoError(t, err)
	return did
}

func (g goSemaphore) release(t testing.TB, name string, n int64) {
	t.Helper()
	require.NoError(t, g.client.Semaphore(name).Release(context.Background(), n))
}

func (g goSemaphore) try(t testing.TB, name string, n int64) bool {
	t.Helper()
	err := g.client.Semaphore(name).TryAcquire(context.Background(), n, 0)
	if err != nil {
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
	}
	return err == nil
}

func (g goSemaphore) available(t testing.TB, name string) int64 {
	t.Helper()
	n, err := g.client.Semaphore(name).Available(context.Background())
	require.NoError(t, err)
	return n
}

func (g goSemaphore) drain(t testing.TB, name string) int64 {
	t.Helper()
	n, err := g.client.Semaphore(name).Drain(context.Background())
	require.NoError(t, err)
	return n
}

func (g goSemaphore) acquire(t testing.TB, name string, n int64) <-chan event {
	t.Helper()
	return waitInGo(t, func(ctx context.Context) error { return g.client.Semaphore(name).Acquire(ctx, n) })
}

type javaSemaphore struct{ thread *javaThread }

func (j javaSemaphore) set(t testing.TB, name string, n int64) bool {
	t.Helper()
	return j.thread.ask(t, "sem.set", url.QueryEscape(name), strconv.FormatInt(n, 10)) == "true"
}

func (j javaSemaphore) release(t testing.TB, name string, n int64) {
	t.Helper()
	j.thread.ask(t, "sem.release", url.QueryEscape(name), strconv.FormatInt(n, 10))
}

func (j javaSemaphore) try(t testing.TB, name string, n int64) bool {
	t.Helper()
	return j.thread.ask(t, "sem.tryacquire", url.QueryEscape(name), strconv.FormatInt(n, 10), "0") == "true"
}

func (j javaSemaphore) available(t testing.TB, name string) int64 {
	t.Helper()
	return j.thread.number(t, "sem.available", name)
}

func (j javaSemaphore) drain(t testing.TB, name string) int64 {
	t.Helper()
	return j.thread.number(t, "sem.drain", name)
}

func (j javaSemaphore) acquire(t testing.TB, name string, n int64) <-chan event {
	t.Helper()
	return j.thread.waitInJava(t, "sem.acquire", name, strconv.FormatInt(n, 10))
}

// Each side sees the changes of the other.
func (w *world) semaphoreCount(t *testing.T, one, two semaphoreSide) {
	name := redistest.Name(t)
	require.True(t, one.set(t, name, 5))
	require.False(t, two.set(t, name, 7))
	require.True(t, two.try(t, name, 3))
	require.Equal(t, int64(2), one.available(t, name))
	require.False(t, one.try(t, name, 3))
	require.True(t, one.try(t, name, 2))
	require.False(t, two.try(t, name, 1))
	one.release(t, name, 4)
	require.Equal(t, int64(4), two.drain(t, name))
	require.Zero(t, one.available(t, name))
	two.release(t, name, 1)
	require.Equal(t, int64(1), one.drain(t, name))
}

// One waits, the other gives back.
func (w *world) semaphoreWait(t *testing.T, waiter, other semaphoreSide) {
	alone(t)
	const warmUp, rounds = 10, 40
	name := redistest.Name(t)
	require.True(t, other.set(t, name, 0))
	var took []time.Duration
	for i := range warmUp + rounds {
		in := waiter.acquire(t, name, 2)
		if i == 0 {
			other.release(t, name, 1)
			sleep(300 * time.Millisecond)
			requireWaiting(t, in)
			other.release(t, name, 1)
			await(t, in, late)
			continue
		}
		began := time.Now()
		other.release(t, name, 2)
		took = append(took, await(t, in, late).ended.Sub(began))
	}
	require.Zero(t, other.available(t, name))
	requireQuickWakeUps(t, took[warmUp:])
}

// Both sides wait at a time, and both get permits that either gives back.
func (w *world) semaphoreBothWait(t *testing.T) {
	for _, giver := range []semaphoreSide{goSemaphore{newClient(t, w.watch.rdb, w.options(0))}, javaSemaphore{w.quickJava.thread()}} {
		name := redistest.Name(t)
		require.True(t, giver.set(t, name, 0))
		inGo := goSemaphore{w.watch.Client}.acquire(t, name, 1)
		inJava := javaSemaphore{w.java.thread()}.acquire(t, name, 1)
		giver.release(t, name, 2)
		await(t, inGo, late)
		await(t, inJava, late)
		require.Zero(t, giver.available(t, name))
	}
}

// Two processes of Java and two of Go, with four threads each, want three of five permits, or one. In the end all are back.
func (w *world) semaphoreHerd(t *testing.T) {
	alone(t)
	const n, long = 5, 5 * time.Second
	name := redistest.Name(t)
	watch := goSemaphore{w.watch.Client}
	require.True(t, watch.set(t, name, n))
	var replies []<-chan reply
	for i, r := range []*redisson{w.java, w.quickJava} {
		for thread := range 4 {
			replies = append(replies, r.send(t, "herd"+strconv.Itoa(thread), "sem.hammer", url.QueryEscape(name), strconv.Itoa(1+2*i), ms(long)))
		}
	}
	var inGo [2]int64
	var mu sync.Mutex // guards inGo
	var all sync.WaitGroup
	for i, c := range []*rlock.Client{w.watch.Client, w.quickGo} {
		for range 4 {
			all.Go(func() {
				s := c.Semaphore(name)
				for end := time.Now().Add(long); time.Now().Before(end); {
					assert.NoError(t, s.Acquire(context.Background(), int64(1+2*i)))
					sleep(time.Millisecond)
					assert.NoError(t, s.Release(context.Background(), int64(1+2*i)))
					mu.Lock()
					inGo[i]++
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	// Redisson may wake a thread that wants more than there is, and let another one sleep that does not: so there are messages until all have ended.
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ended by stop
		defer close(stopped)
		for s := w.watch.Client.Semaphore(name); ; sleep(50 * time.Millisecond) {
			select {
			case <-stop:
				return
			default:
			}
			assert.NoError(t, s.Release(context.Background(), 1))
			assert.NoError(t, s.Acquire(context.Background(), 1))
		}
	}()
	inJava := w.java.sum(t, replies[:4]) + w.quickJava.sum(t, replies[4:])
	close(stop)
	<-stopped
	t.Logf("%d and %d times in Go, %d in Java", inGo[0], inGo[1], inJava)
	require.Equal(t, int64(n), watch.available(t, name))
}
