//go:build interop

package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func (w *world) fair(t *testing.T) {
	w.bothWays(t, "wake-up", fairly(w.fairWakeUp))
	w.bothWays(t, "order", fairly(w.fairOrder))
	w.bothWays(t, "give-up", fairly(w.fairGiveUp))
	w.bothWays(t, "names", fairly(w.names))
}

// entries are those of the queue.
func (w *world) entries(t testing.TB, name string) []string {
	t.Helper()
	all, err := w.watch.do(t, "LRANGE", fairKey("redisson_lock_queue", name), "0", "-1").AsStrSlice()
	require.NoError(t, err)
	return all
}

func fairKey(prefix, name string) string {
	return prefix + unlockChannel(name)[len("redisson_lock__channel"):]
}

func (w *world) awaitEntries(t testing.TB, name string, n int) {
	t.Helper()
	redistest.Eventually(t, 10*time.Second, func() bool { return len(w.entries(t, name)) == n }, "in the queue")
}

func (w *world) requireNothingLeft(t testing.TB, name string) {
	t.Helper()
	for _, key := range []string{name, fairKey("redisson_lock_queue", name), fairKey("redisson_lock_timeout", name)} {
		redistest.Eventually(t, 10*time.Second, func() bool { return !w.watch.exists(t, key) }, key+" is gone")
	}
}

// Both sides get their turns.
func (w *world) fairExclusion(t *testing.T) {
	name := redistest.Name(t)
	inGo, inJava := w.exclude(t, goJob{Name: name, Kind: "fair"})
	require.Greater(t, inJava, inGo/3)
	require.Greater(t, inGo, inJava/3)
	w.requireNothingLeft(t, name)
}

func (w *world) fairWakeUp(t *testing.T, s sides) {
	alone(t)
	w.measure(t, 30, 100, s.holder(), s.waiter(), w.joins, redistest.Name(t))
}

// Fifty waiters of both sides get in by the order in which they queued.
func (w *world) fairOrder(t *testing.T, s sides) {
	name, first := redistest.Name(t), s.holder()
	lock(t, first, name, testTimeout)
	var waiters []actor
	var in []<-chan event
	for i := range 50 {
		a := s.waiter()
		if i*i%5 < 2 {
			a = s.holder()
		}
		waiters = append(waiters, a)
		in = append(in, w.joins(t, a, name))
	}
	began := time.Now()
	unlock(t, first, name)
	for i, a := range waiters {
		await(t, in[i], 20*time.Second)
		for _, later := range in[i+1:] {
			requireWaiting(t, later)
		}
		unlock(t, a, name)
	}
	t.Logf("50 waiters were served in %v", time.Since(began).Round(time.Millisecond))
	w.requireNothingLeft(t, name)
}

// A waiter of either side gives up, in the middle and at the head; the others keep their order.
func (w *world) fairGiveUp(t *testing.T, s sides) {
	name, holder := redistest.Name(t), s.holder()
	lock(t, holder, name, testTimeout)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	gone := make(chan error, 2)
	goGivesUp := func() {
		n := len(w.entries(t, name))
		go func() { // ends with cancel
			_, _, err := w.watch.FairMutex(name).Lock(ctx)
			gone <- err
		}()
		w.awaitEntries(t, name, n+1)
	}
	var java [2]*javaThread
	var replies [2]<-chan reply
	javaGivesUp := func(i int) {
		n := len(w.entries(t, name))
		java[i] = w.java.thread()
		replies[i] = java[i].send(t, "trylock", wordOf("fair", name), "1500")
		w.awaitEntries(t, name, n+1)
	}
	goGivesUp()
	javaGivesUp(0)
	a, b := s.waiter(), s.holder()
	inA := w.joins(t, a, name)
	goGivesUp()
	javaGivesUp(1)
	inB := w.joins(t, b, name)
	cancel()
	require.ErrorIs(t, <-gone, rlock.ErrNotAcquired)
	require.ErrorIs(t, <-gone, rlock.ErrNotAcquired)
	for i, j := range java {
		require.Equal(t, "false", j.of.await(t, replies[i]).value)
	}
	w.awaitEntries(t, name, 2)
	unlock(t, holder, name)
	await(t, inA, 40*time.Second)
	requireWaiting(t, inB)
	unlock(t, a, name)
	await(t, inB, 40*time.Second)
	unlock(t, b, name)
	w.requireNothingLeft(t, name)
}

// Redisson's tryLock without a lease takes a number of seconds for milliseconds: its place ends that much after the time that it saw. A
// later waiter passes it then, and both get the lock. One that gives milliseconds keeps its place.
func (w *world) inSeconds(t *testing.T) {
	type queue struct {
		name               string
		holder, goes, java actor
		field              string // Java's
		inJava             <-chan reply
		inGo               <-chan event
	}
	stand := func(op, wait string) queue {
		java := w.quickJava.thread()
		q := queue{name: redistest.Name(t) + op, holder: newGoActor(w.quickGo).as("fair"), goes: newGoActor(w.quickGo).as("fair"), java: java.as("fair")}
		lock(t, q.holder, q.name, 0)
		q.field = q.java.field(t, q.name)
		q.inJava = java.send(t, op, wordOf("fair", q.name), wait)
		w.awaitEntries(t, q.name, 1)
		q.inGo = w.joins(t, q.goes, q.name)
		return q
	}
	javaGetsIt := func(q queue) {
		require.Equal(t, "true", w.quickJava.await(t, q.inJava).value)
		unlock(t, q.java, q.name)
	}
	goGetsIt := func(q queue) {
		await(t, q.inGo, 40*time.Second)
		unlock(t, q.goes, q.name)
	}
	keeps, loses := stand("trylock", ms(time.Minute)), stand("trylock.s", "60")
	redistest.Eventually(t, 30*time.Second, func() bool { return w.entries(t, loses.name)[0] != loses.field }, "Go's waiter has passed")
	w.awaitEntries(t, loses.name, 2)
	require.Equal(t, keeps.field, w.entries(t, keeps.name)[0])

	unlock(t, loses.holder, loses.name)
	goGetsIt(loses)
	javaGetsIt(loses)
	unlock(t, keeps.holder, keeps.name)
	javaGetsIt(keeps)
	goGetsIt(keeps)
	w.requireNothingLeft(t, loses.name)
	w.requireNothingLeft(t, keeps.name)
}
