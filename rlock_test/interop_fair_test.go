//go:build interop

package rlock_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TestInteropFair is TestInterop for fair locks, whose queue both sides share.
func TestInteropFair(t *testing.T) {
	inEach(t, settings(t), func(t *testing.T, all *world) {
		w := &fairWorld{all}
		t.Run("exclusion", w.fairExclusion)
		w.bothWays(t, "wake-up", w.fairWakeUp)
		w.bothWays(t, "order", w.fairOrder)
		w.bothWays(t, "give-up", w.fairGiveUp)
		w.bothWays(t, "names", w.fairNames)
		w.quickly(t, "forced by the same side", w.forcedByHolder)
		w.quickly(t, "forced by the other side", w.forcedByStranger)
		t.Run("leases", func(t *testing.T) {
			w.quickly(t, "watchdog", together(w.watchdog))
			t.Run("asked", w.asked)
			w.quickly(t, "holder killed", together(w.holderKilled))
			w.quickly(t, "waiter killed", together(w.waiterKilled))
			if w.version == os.Getenv("REDISSON_NEWEST") { // the others sleep on when they are told: docs/redisson.md
				t.Run("waiter killed before one of its own side", w.javaKilledBeforeJava)
				t.Run("tryLock in seconds", w.inSeconds)
			}
		})
	})
}

// Both sides get their turns.
func (w *fairWorld) fairExclusion(t *testing.T) {
	name := redistest.Name(t)
	inGo, inJava := w.exclude(t, goJob{Name: name, Fair: true}, codedFair(name))
	require.Greater(t, inJava, inGo/3)
	require.Greater(t, inGo, inJava/3)
	w.requireNothingLeft(t, name)
}

func (w *fairWorld) fairWakeUp(t *testing.T, s sides) {
	alone(t)
	const warmUp, rounds = 30, 100
	holder, waiter, name := s.holder(), s.waiter(), redistest.Name(t)
	var took []time.Duration
	for range warmUp + rounds {
		lock(t, holder, name, testTimeout)
		in := w.queueUp(t, waiter, name)
		unlocked := unlock(t, holder, name)
		took = append(took, await(t, in, 40*time.Second).ended.Sub(unlocked.began))
		unlock(t, waiter, name)
	}
	took = took[warmUp:]
	slices.Sort(took)
	t.Logf("wake-up: median %v, p99 %v, max %v", took[rounds/2], took[rounds*99/100], took[rounds-1])
	require.LessOrEqual(t, took[rounds/2], 20*time.Millisecond, "median")
	require.LessOrEqual(t, took[rounds-1], time.Second, "max")
}

// Fifty waiters of both sides get in by the order in which they queued.
func (w *fairWorld) fairOrder(t *testing.T, s sides) {
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
		in = append(in, w.queueUp(t, a, name))
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
func (w *fairWorld) fairGiveUp(t *testing.T, s sides) {
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
		replies[i] = java[i].of.send(t, java[i].name, "trylock", codedFair(name), "1500")
		w.awaitEntries(t, name, n+1)
	}
	goGivesUp()
	javaGivesUp(0)
	a, b := s.waiter(), s.holder()
	inA := w.queueUp(t, a, name)
	goGivesUp()
	javaGivesUp(1)
	inB := w.queueUp(t, b, name)
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

func (w *fairWorld) fairNames(t *testing.T, s sides) {
	holder, waiter := s.holder(), s.waiter()
	for _, name := range interopNames {
		name += redistest.Name(t)
		lock(t, holder, name, testTimeout)
		w.holds(t, name, holder.field(t, name), 1)
		waiter.tryInVain(t, name)
		in := w.queueUp(t, waiter, name)
		unlocked := unlock(t, holder, name)
		require.Less(t, await(t, in, 40*time.Second).ended.Sub(unlocked.began), late, name)
		w.holds(t, name, waiter.field(t, name), 1)
		unlock(t, waiter, name)
		w.requireNothingLeft(t, name)
	}
}

func (w *fairWorld) forcedByHolder(t *testing.T, s sides) {
	w.forced(t, s.holder(), s.waiter(), s.holder())
}

func (w *fairWorld) forcedByStranger(t *testing.T, s sides) {
	w.forced(t, s.holder(), s.holder(), s.waiter())
}

func (w *fairWorld) forced(t *testing.T, holder, waiter, by actor) {
	name := redistest.Name(t)
	lock(t, holder, name, 0)
	in := w.queueUp(t, waiter, name)
	force := by.force(t, name)
	took := await(t, in, 40*time.Second).ended.Sub(force.began)
	t.Logf("in after %v", took)
	require.Less(t, took, late)
	unlock(t, waiter, name)
	w.requireNothingLeft(t, name)
}

func (w *fairWorld) watchdog(t *testing.T, s sides) {
	holder, waiter, name := s.holder(), s.waiter(), redistest.Name(t)
	lock(t, holder, name, 0)
	in := w.queueUp(t, waiter, name)
	field := holder.field(t, name)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(shortLease + shortLease/2); time.Now().Before(end); <-tick.C {
		w.holds(t, name, field, 1)
		requireWaiting(t, in)
		require.Len(t, w.entries(t, name), 1)
	}
	unlocked := unlock(t, holder, name)
	require.Less(t, await(t, in, 40*time.Second).ended.Sub(unlocked.began), late)
	unlock(t, waiter, name)
}

// The holder renews and is killed: the head of the other side is in when the lease ends. Some versions of Redisson sleep on until a
// waiter of this library comes.
func (w *fairWorld) holderKilled(t *testing.T, s sides) {
	name, waiter := redistest.Name(t), s.waiter()
	kill := w.process(t, s, name)
	in := w.queueUp(t, waiter, name)
	w.awaitRenewal(t, name)
	kill()
	ends := time.Now().Add(w.watch.pttl(t, name))
	_, java := waiter.(*fairJava)
	sleeps := java && w.version == os.Getenv("REDISSON_SHARDED") // docs/redisson.md says which ones
	var behind <-chan event
	next := &fairGo{newGoActor(w.quickGo)}
	if sleeps {
		sleep(time.Until(ends.Add(late)))
		ends = time.Now()
		requireWaiting(t, in)
		behind = next.start(t, name, 0)
	}
	took := await(t, in, 40*time.Second).ended.Sub(ends)
	t.Logf("in %v after the lease, or after one that came later", took)
	require.Less(t, took, late)
	unlock(t, waiter, name)
	if sleeps {
		await(t, behind, 10*time.Second)
		unlock(t, next, name)
	}
	w.requireNothingLeft(t, name)
}

// process makes a process of the holder's side take the lock or wait for it, and returns a function that kills the process.
func (w *fairWorld) process(t *testing.T, s sides, name string) (kill func()) {
	n := len(w.entries(t, name))
	held := w.watch.exists(t, name)
	if _, isGo := s.holder().(*fairGo); isGo {
		p := w.startGo(t, goJob{Watchdog: shortLease, Name: name, Fair: true})
		p.begin(t)
		kill = p.kill
		if !held {
			p.expect(t, "held", 10*time.Second)
		}
	} else {
		p := w.startJava(t, shortLease)
		kill = p.kill
		in := (&fairJava{p.thread()}).start(t, name, 0)
		if !held {
			await(t, in, 10*time.Second)
		}
	}
	if held {
		w.awaitEntries(t, name, n+1)
	}
	return kill
}

// A waiter of either side is killed at the head of the queue, with a waiter of the other side behind it. The holder is this library, which
// can skip the dead waiter.
func (w *fairWorld) waiterKilled(t *testing.T, s sides) {
	name, holder, waiter := redistest.Name(t), &fairGo{newGoActor(w.quickGo)}, s.waiter()
	lock(t, holder, name, testTimeout)
	kill := w.process(t, s, name)
	in := w.queueUp(t, waiter, name)
	kill()
	unlocked := unlock(t, holder, name)
	took := await(t, in, 40*time.Second).ended.Sub(unlocked.began)
	t.Logf("in after %v", took)
	require.Less(t, took, 5*time.Second+5*time.Second/3+late)
	unlock(t, waiter, name)
	w.requireNothingLeft(t, name)
}

// A waiter of Redisson is killed at the head of the queue, and only Redisson waits behind it: the release wakes that waiter, too.
func (w *fairWorld) javaKilledBeforeJava(t *testing.T) {
	t.Parallel()
	name, holder, waiter := redistest.Name(t), &fairGo{newGoActor(w.quickGo)}, &fairJava{w.quickJava.thread()}
	lock(t, holder, name, time.Minute)
	dead := w.startJava(t, shortLease)
	(&fairJava{dead.thread()}).start(t, name, 0)
	w.awaitEntries(t, name, 1)
	in := w.queueUp(t, waiter, name)
	dead.kill()
	own := unlockChannel(name) + ":" + w.entries(t, name)[0]
	redistest.Eventually(t, 10*time.Second, func() bool { return w.listeners(t, own) == 0 }, "the server has noticed")
	unlocked := unlock(t, holder, name)
	took := await(t, in, 40*time.Second).ended.Sub(unlocked.began)
	t.Logf("in after %v", took)
	require.Less(t, took, 5*time.Second+late)
	unlock(t, waiter, name)
	w.requireNothingLeft(t, name)
}

// Redisson's tryLock without a lease takes a number of seconds for milliseconds: its place ends that much after the time that it saw. A
// later waiter passes it then, and both get the lock. One that gives milliseconds keeps its place.
func (w *fairWorld) inSeconds(t *testing.T) {
	t.Parallel()
	type queue struct {
		name         string
		holder, goes *fairGo
		java         *fairJava
		field        string // Java's
		inJava       <-chan reply
		inGo         <-chan event
	}
	stand := func(op, wait string) queue {
		q := queue{name: redistest.Name(t), holder: &fairGo{newGoActor(w.quickGo)}, goes: &fairGo{newGoActor(w.quickGo)}, java: &fairJava{w.quickJava.thread()}}
		lock(t, q.holder, q.name, 0)
		q.field = q.java.field(t, q.name)
		q.inJava = q.java.of.send(t, q.java.javaThread.name, op, codedFair(q.name), wait)
		w.awaitEntries(t, q.name, 1)
		q.inGo = w.queueUp(t, q.goes, q.name)
		return q
	}
	javaGetsIt := func(q queue) {
		require.Equal(t, "true", q.java.of.await(t, q.inJava).value)
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
