//go:build interop

package rlock_test

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// counterSide uses latches and semaphores from Go or from Java.
type counterSide interface {
	// call is an operation of Peer.java that does not wait. It returns a number, or 1 for true.
	call(t testing.TB, op, name string, n int64) int64
	// wait begins to wait, and returns when that only waits for a message: with n for permits, without for a latch.
	wait(t testing.TB, name string, n ...int64) <-chan event
}

type goCounter struct{ client *rlock.Client }

func (g goCounter) call(t testing.TB, op, name string, n int64) (result int64) {
	t.Helper()
	ctx, l, s := context.Background(), g.client.CountDownLatch(name), g.client.Semaphore(name)
	var did bool
	var err error
	switch op {
	case "latch.set":
		did, err = l.TrySetCount(ctx, n)
	case "latch.down":
		for range n {
			require.NoError(t, l.CountDown(ctx))
		}
	case "latch.count":
		result, err = l.Count(ctx)
	case "latch.delete":
		did, err = l.Delete(ctx)
	case "sem.set":
		did, err = s.TrySetPermits(ctx, n)
	case "sem.release":
		err = s.Release(ctx, n)
	case "sem.tryacquire":
		if err = s.TryAcquire(ctx, n, 0); err != nil {
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			return 0
		}
		did = true
	case "sem.available":
		result, err = s.Available(ctx)
	case "sem.drain":
		result, err = s.Drain(ctx)
	default:
		require.FailNow(t, "no such operation", op)
	}
	require.NoError(t, err)
	if did {
		return 1
	}
	return result
}

// Nothing else of the test may wait in Go.
func (g goCounter) wait(t testing.TB, name string, n ...int64) <-chan event {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel) // ends the goroutine at the latest
	events := make(chan event, 1)
	go func() {
		began := time.Now()
		var err error
		if len(n) > 0 {
			err = g.client.Semaphore(name).Acquire(ctx, n[0])
		} else {
			err = g.client.CountDownLatch(name).Await(ctx)
		}
		events <- event{began, time.Now(), err}
	}()
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "it waits")
	return events
}

type javaCounter struct{ *javaThread }

func (j javaCounter) call(t testing.TB, op, name string, n int64) int64 {
	t.Helper()
	args := []string{url.QueryEscape(name)}
	switch op {
	case "sem.tryacquire":
		args = append(args, strconv.FormatInt(n, 10), "0")
	case "latch.set", "latch.down", "sem.set", "sem.release":
		args = append(args, strconv.FormatInt(n, 10))
	}
	switch got := j.ask(t, op, args...); got {
	case "true":
		return 1
	case "false", "-":
		return 0
	default:
		result := answer(strconv.ParseInt(got, 10, 64)).ok(t)
		return result
	}
}

func (j javaCounter) wait(t testing.TB, name string, n ...int64) <-chan event {
	t.Helper()
	thread, op, args := j.of.thread(), "latch.await", []string{url.QueryEscape(name)}
	if len(n) > 0 {
		op, args = "sem.acquire", append(args, strconv.FormatInt(n[0], 10))
	}
	in := thread.startOp(t, op, args...)
	thread.sleeps(t)
	return in
}

// counterSides runs a test with each side first.
func (w *world) counterSides(t *testing.T, name string, test func(t *testing.T, one, two counterSide)) {
	t.Helper()
	goes, java := goCounter{w.watch.Client}, javaCounter{w.java.thread()}
	t.Run(name+"/Go and Java", func(t *testing.T) { test(t, goes, java) })
	t.Run(name+"/Java and Go", func(t *testing.T) { test(t, java, goes) })
}

// counterStep is a call, and the result that it must have.
type counterStep struct {
	by      counterSide
	op      string
	n, want int64
}

func take(t testing.TB, name string, steps ...counterStep) {
	t.Helper()
	for i, s := range steps {
		require.Equal(t, s.want, s.by.call(t, s.op, name, s.n), "%d: %s", i, s.op)
	}
}

// counterWakeUp measures from a call on one side to the end of a wait on the other. arrange is a call before each wait.
func (w *world) counterWakeUp(t *testing.T, waiter, other counterSide, arrange, op string, permits ...int64) {
	t.Helper()
	alone(t)
	const warmUp, rounds = 10, 40
	name, n := redistest.Name(t), append(permits, 1)[0]
	var all wakeUps
	for range warmUp + rounds {
		if arrange != "" {
			require.EqualValues(t, 1, other.call(t, arrange, name, n))
		}
		in := waiter.wait(t, name, permits...)
		began := time.Now()
		other.call(t, op, name, n)
		called := event{began: began, ended: time.Now()}
		all.add(t, called, await(t, in, soon), called)
	}
	all.requirePrompt(t, warmUp)
}

// latch checks docs/redisson.md: both sides share one latch.
func (w *world) latch(t *testing.T) {
	w.counterSides(t, "count", w.latchCount)
	w.counterSides(t, "wait", w.latchWait)
	w.counterSides(t, "wake-up", func(t *testing.T, one, two counterSide) { w.counterWakeUp(t, one, two, "latch.set", "latch.down") })
	w.counterSides(t, "delete", w.latchDelete)
	t.Run("both count down at once", w.latchHerd)
	t.Run("names", w.latchNames)
}

// Each side sees the changes of the other.
func (w *world) latchCount(t *testing.T, one, two counterSide) {
	name := redistest.Name(t)
	take(t, name, []counterStep{
		{one, "latch.set", 5, 1}, {two, "latch.set", 7, 0}, {two, "latch.down", 2, 0}, {one, "latch.count", 0, 3}, {one, "latch.down", 1, 0},
		{two, "latch.count", 0, 2}, {two, "latch.down", 2, 0}, {one, "latch.count", 0, 0},
	}...)
	require.False(t, w.watch.exists(t, name))
	take(t, name, counterStep{two, "latch.down", 1, 0})
	require.False(t, w.watch.exists(t, name), "nothing below 0")
	take(t, name, []counterStep{
		{two, "latch.set", 1, 1}, {one, "latch.count", 0, 1}, {one, "latch.down", 1, 0},
		{one, "latch.set", 0, 1}, {two, "latch.set", 1, 0}, {two, "latch.count", 0, 0}, {two, "latch.down", 1, 0}, // 0 is a count
	}...)
	require.False(t, w.watch.exists(t, name))
}

// One waits, the other counts down; it does not come back early.
func (w *world) latchWait(t *testing.T, waiter, other counterSide) {
	name := redistest.Name(t)
	take(t, name, counterStep{other, "latch.set", 3, 1})
	in := waiter.wait(t, name)
	other.call(t, "latch.down", name, 2)
	sleep(300 * time.Millisecond)
	requireWaiting(t, in)
	other.call(t, "latch.down", name, 1)
	await(t, in, soon)
}

// Waiters go on when the other side deletes the latch, Java's as well as Go's.
func (w *world) latchDelete(t *testing.T, waiter, other counterSide) {
	name := redistest.Name(t)
	take(t, name, counterStep{waiter, "latch.set", 2, 1})
	in := waiter.wait(t, name)
	take(t, name, counterStep{other, "latch.delete", 0, 1}, counterStep{other, "latch.delete", 0, 0})
	await(t, in, soon)
	take(t, name, counterStep{waiter, "latch.count", 0, 0})
}

// Both sides count down together, and both wait: the sum is exact.
func (w *world) latchHerd(t *testing.T) {
	const n, threads = 1000, 4
	name, goes, java := redistest.Name(t), goCounter{w.watch.Client}, javaCounter{w.java.thread()}
	take(t, name, counterStep{goes, "latch.set", n + 1, 1})
	inGo, inJava := goes.wait(t, name), java.wait(t, name)
	var counts sync.WaitGroup
	for range threads {
		counts.Go(func() { javaCounter{w.java.thread()}.call(t, "latch.down", name, n/2/threads) })
		counts.Go(func() { goes.call(t, "latch.down", name, n/2/threads) })
	}
	counts.Wait()
	take(t, name, counterStep{goes, "latch.count", 0, 1})
	requireWaiting(t, inGo)
	requireWaiting(t, inJava)
	goes.call(t, "latch.down", name, 1)
	await(t, inGo, soon)
	await(t, inJava, soon)
}

func (w *world) latchNames(t *testing.T) {
	goes, java := goCounter{w.watch.Client}, javaCounter{w.java.thread()}
	for _, name := range []string{"a b", "a:b", "ä€", `"quoted"`, "a/b", "{a}"} {
		name += redistest.Name(t)
		if w.cluster && strings.HasPrefix(name, "{") {
			require.ErrorContains(t, java.do(t, "latch.set", url.QueryEscape(name), "2").err, "CROSSSLOT")
			require.ErrorContains(t, w.watch.CountDownLatch(name).CountDown(context.Background()), "on a cluster the name of a latch may have no braces")
			continue
		}
		take(t, name, counterStep{java, "latch.set", 2, 1})
		in := goes.wait(t, name)
		take(t, name, []counterStep{{goes, "latch.count", 0, 2}, {goes, "latch.down", 1, 0}, {java, "latch.down", 1, 0}}...)
		await(t, in, soon)
	}
}

// semaphore checks docs/redisson.md: both sides share the same permits.
func (w *world) semaphore(t *testing.T) {
	w.counterSides(t, "count", w.semaphoreCount)
	w.counterSides(t, "wait", w.semaphoreWait)
	w.counterSides(t, "wake-up", func(t *testing.T, one, two counterSide) { w.counterWakeUp(t, one, two, "", "sem.release", 2) })
	t.Run("both wait", w.semaphoreBothWait)
}

// Each side sees the changes of the other.
func (w *world) semaphoreCount(t *testing.T, one, two counterSide) {
	take(t, redistest.Name(t), []counterStep{
		{one, "sem.set", 5, 1}, {two, "sem.set", 7, 0}, {two, "sem.tryacquire", 3, 1}, {one, "sem.available", 0, 2}, {one, "sem.tryacquire", 3, 0},
		{one, "sem.tryacquire", 2, 1}, {two, "sem.tryacquire", 1, 0}, {one, "sem.release", 4, 0}, {two, "sem.drain", 0, 4},
		{one, "sem.available", 0, 0}, {two, "sem.release", 1, 0}, {one, "sem.drain", 0, 1},
	}...)
}

// One waits for more than the other gives back at first.
func (w *world) semaphoreWait(t *testing.T, waiter, other counterSide) {
	name := redistest.Name(t)
	take(t, name, counterStep{other, "sem.set", 0, 1})
	in := waiter.wait(t, name, 2)
	other.call(t, "sem.release", name, 1)
	sleep(300 * time.Millisecond)
	requireWaiting(t, in)
	other.call(t, "sem.release", name, 1)
	await(t, in, soon)
	take(t, name, counterStep{other, "sem.available", 0, 0})
}

// Both sides wait at a time, and both get permits that either gives back.
func (w *world) semaphoreBothWait(t *testing.T) {
	for _, giver := range []counterSide{goCounter{newClient(t, w.watch.rdb, w.options(0))}, javaCounter{w.quickJava.thread()}} {
		name := redistest.Name(t)
		take(t, name, counterStep{giver, "sem.set", 0, 1})
		inGo := goCounter{w.watch.Client}.wait(t, name, 1)
		inJava := javaCounter{w.java.thread()}.wait(t, name, 1)
		giver.call(t, "sem.release", name, 2)
		await(t, inGo, soon)
		await(t, inJava, soon)
		take(t, name, counterStep{giver, "sem.available", 0, 0})
	}
}

// Two processes of Java and two of Go, with four threads each, want three of five permits, or one. In the end all are back.
func (w *world) semaphoreHerd(t *testing.T) {
	const n, long = 5, 5 * time.Second
	name, watch := redistest.Name(t), goCounter{w.watch.Client}
	take(t, name, counterStep{watch, "sem.set", n, 1})
	var replies []<-chan reply
	for i, r := range []*redisson{w.java, w.quickJava} {
		for range 4 {
			replies = append(replies, r.thread().send(t, "sem.hammer", url.QueryEscape(name), strconv.Itoa(1+2*i), ms(long)))
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
	inJava := w.java.sum(t, replies)
	close(stop)
	<-stopped
	t.Logf("%d and %d times in Go, %d in Java", inGo[0], inGo[1], inJava)
	take(t, name, counterStep{watch, "sem.available", 0, n})
}
