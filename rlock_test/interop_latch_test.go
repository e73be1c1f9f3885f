//go:build interop

package rlock_test

import (
	"context"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TestInteropLatch checks docs/redisson.md: both sides share one latch.
func TestInteropLatch(t *testing.T) {
	inEach(t, settings(t), func(t *testing.T, w *world) {
		for _, side := range []struct {
			way      string
			one, two latchSide
		}{
			{"Go and Java", goLatch{w.watch.Client}, javaLatch{w.java.thread()}},
			{"Java and Go", javaLatch{w.java.thread()}, goLatch{w.watch.Client}},
		} {
			t.Run(side.way+"/count", func(t *testing.T) { w.latchCount(t, side.one, side.two) })
			t.Run(side.way+"/wait", func(t *testing.T) { w.latchWait(t, side.one, side.two) })
			t.Run(side.way+"/wake-up", func(t *testing.T) { w.latchWakeUp(t, side.one, side.two) })
			t.Run(side.way+"/delete", func(t *testing.T) { w.latchDelete(t, side.one, side.two) })
		}
		t.Run("both count down at once", w.latchHerd)
		t.Run("names", w.latchNames)
	})
}

// latchSide uses latches from Go or from Java.
type latchSide interface {
	set(t testing.TB, name string, n int64) bool
	down(t testing.TB, name string, n int64)
	count(t testing.TB, name string) int64
	del(t testing.TB, name string) bool
	// await begins to wait, and returns when that only waits for a message.
	await(t testing.TB, name string) <-chan event
}

type goLatch struct{ client *rlock.Client }

func (g goLatch) set(t testing.TB, name string, n int64) bool {
	t.Helper()
	did, err := g.client.CountDownLatch(name).TrySetCount(context.Background(), n)
	require.NoError(t, err)
	return did
}

func (g goLatch) down(t testing.TB, name string, n int64) {
	t.Helper()
	for range n {
		require.NoError(t, g.client.CountDownLatch(name).CountDown(context.Background()))
	}
}

func (g goLatch) count(t testing.TB, name string) int64 {
	t.Helper()
	n, err := g.client.CountDownLatch(name).Count(context.Background())
	require.NoError(t, err)
	return n
}

func (g goLatch) del(t testing.TB, name string) bool {
	t.Helper()
	did, err := g.client.CountDownLatch(name).Delete(context.Background())
	require.NoError(t, err)
	return did
}

func (g goLatch) await(t testing.TB, name string) <-chan event {
	t.Helper()
	return waitInGo(t, g.client.CountDownLatch(name).Await)
}

type javaLatch struct{ thread *javaThread }

func (j javaLatch) set(t testing.TB, name string, n int64) bool {
	t.Helper()
	return j.thread.ask(t, "latch.set", url.QueryEscape(name), strconv.FormatInt(n, 10)) == "true"
}

func (j javaLatch) down(t testing.TB, name string, n int64) {
	t.Helper()
	j.thread.ask(t, "latch.down", url.QueryEscape(name), strconv.FormatInt(n, 10))
}

func (j javaLatch) count(t testing.TB, name string) int64 {
	t.Helper()
	return j.thread.number(t, "latch.count", name)
}

func (j javaLatch) del(t testing.TB, name string) bool {
	t.Helper()
	return j.thread.ask(t, "latch.delete", url.QueryEscape(name)) == "true"
}

func (j javaLatch) await(t testing.TB, name string) <-chan event {
	t.Helper()
	return j.thread.waitInJava(t, "latch.await", name)
}

// Each side sees the changes of the other.
func (w *world) latchCount(t *testing.T, one, two latchSide) {
	name := redistest.Name(t)
	require.True(t, one.set(t, name, 5))
	require.False(t, two.set(t, name, 7))
	two.down(t, name, 2)
	require.Equal(t, int64(3), one.count(t, name))
	one.down(t, name, 1)
	require.Equal(t, int64(2), two.count(t, name))
	two.down(t, name, 2)
	require.Zero(t, one.count(t, name))
	require.False(t, w.watch.exists(t, name))
	two.down(t, name, 1)
	require.False(t, w.watch.exists(t, name), "nothing below 0")
	require.True(t, two.set(t, name, 1), "and so again")
	require.Equal(t, int64(1), one.count(t, name))
	one.down(t, name, 1)

	require.True(t, one.set(t, name, 0))
	require.False(t, two.set(t, name, 1), "0 is a count")
	require.Zero(t, two.count(t, name))
	two.down(t, name, 1)
	require.False(t, w.watch.exists(t, name))
}

// One waits, the other counts down; it does not come back early.
func (w *world) latchWait(t *testing.T, waiter, other latchSide) {
	name := redistest.Name(t)
	require.True(t, other.set(t, name, 3))
	in := waiter.await(t, name)
	other.down(t, name, 2)
	sleep(300 * time.Millisecond)
	requireWaiting(t, in)
	other.down(t, name, 1)
	await(t, in, late)
	require.True(t, waiter.set(t, name, 2))
	in = waiter.await(t, name)
	other.down(t, name, 2)
	await(t, in, late)
}

func (w *world) latchWakeUp(t *testing.T, waiter, other latchSide) {
	alone(t)
	const warmUp, rounds = 10, 40
	name := redistest.Name(t)
	var took []time.Duration
	for range warmUp + rounds {
		require.True(t, other.set(t, name, 1))
		in := waiter.await(t, name)
		began := time.Now()
		other.down(t, name, 1)
		took = append(took, await(t, in, late).ended.Sub(began))
	}
	requireQuickWakeUps(t, took[warmUp:])
}

// Waiters go on when the other side deletes the latch, Java's as well as Go's.
func (w *world) latchDelete(t *testing.T, waiter, other latchSide) {
	name := redistest.Name(t)
	require.True(t, waiter.set(t, name, 2))
	in := waiter.await(t, name)
	require.True(t, other.del(t, name))
	require.False(t, other.del(t, name))
	await(t, in, late)
	require.Zero(t, waiter.count(t, name))
}

// Both sides count down together, and both wait: the sum is exact.
func (w *world) latchHerd(t *testing.T) {
	const n, threads = 1000, 4
	name := redistest.Name(t)
	goes := goLatch{w.watch.Client}
	require.True(t, goes.set(t, name, n+1))
	inGo := goes.await(t, name)
	inJava := javaLatch{w.java.thread()}.await(t, name)
	var replies []<-chan reply
	for i := range threads {
		replies = append(replies, w.java.send(t, strconv.Itoa(i), "latch.down", url.QueryEscape(name), strconv.Itoa(n/2/threads)))
	}
	var counts sync.WaitGroup
	for range threads {
		counts.Go(func() { goes.down(t, name, n/2/threads) })
	}
	counts.Wait()
	for _, ch := range replies {
		require.NoError(t, w.java.await(t, ch).err)
	}
	require.Equal(t, int64(1), goes.count(t, name))
	requireWaiting(t, inGo)
	requireWaiting(t, inJava)
	goes.down(t, name, 1)
	await(t, inGo, late)
	await(t, inJava, late)
}

func (w *world) latchNames(t *testing.T) {
	for _, name := range []string{"a b", "a:b", "ä€", `"quoted"`, "a/b"} {
		name += redistest.Name(t)
		j, g := javaLatch{w.java.thread()}, goLatch{w.watch.Client}
		require.True(t, j.set(t, name, 2))
		in := g.await(t, name)
		require.Equal(t, int64(2), g.count(t, name))
		g.down(t, name, 1)
		j.down(t, name, 1)
		await(t, in, late)
	}
	name := "{a}" + redistest.Name(t)
	thread := w.java.thread()
	set := thread.do(t, "latch.set", url.QueryEscape(name), "2")
	l := w.watch.CountDownLatch(name)
	if !w.cluster {
		require.NoError(t, set.err)
		in := goLatch{w.watch.Client}.await(t, name)
		javaLatch{thread}.down(t, name, 2)
		await(t, in, late)
		return
	}
	require.ErrorContains(t, set.err, "CROSSSLOT")
	require.ErrorContains(t, l.CountDown(context.Background()), "on a cluster the name of a latch may have no braces")
}
