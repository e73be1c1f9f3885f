//go:build interop

package rlock_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// victim is killed: a process of Redisson, or processes of ours with a lock each.
type victim struct {
	w    *world
	java *redisson // nil for ours
	goes []*goProcess
}

// start begins to lock; held waits until it has.
func (v *victim) start(t testing.TB, kind, name string) (held func()) {
	t.Helper()
	if v.java != nil {
		in := v.java.thread().as(kind).start(t, name, 0)
		return func() { await(t, in, testTimeout) }
	}
	p := v.w.startGo(t, goJob{Watchdog: shortLease, Name: name, Kind: kind})
	v.goes = append(v.goes, p)
	p.begin(t)
	return func() { p.expect(t, "held", testTimeout) }
}

// startAll is start for several plain locks.
func (v *victim) startAll(t testing.TB, names ...string) (held func()) {
	t.Helper()
	if v.java != nil {
		in := v.java.thread().startOp(t, "lock", multi(names...))
		return func() { await(t, in, testTimeout) }
	}
	p := v.w.startGo(t, goJob{Watchdog: shortLease, Names: names})
	v.goes = append(v.goes, p)
	p.begin(t)
	return func() { p.expect(t, "held", testTimeout) }
}

func (v *victim) kill() {
	if v.java != nil {
		v.java.kill()
	}
	for _, p := range v.goes {
		p.kill()
	}
}

func (w *world) goIsKilled(t *testing.T) {
	w.killed(t, &victim{w: w}, func() actor { return w.quickJava.thread() })
}

func (w *world) javaIsKilled(t *testing.T) {
	w.killed(t, &victim{w: w, java: w.startJava(t, shortLease)}, func() actor { return newGoActor(w.quickGo) })
}

// A holder of each kind renews and is killed, and so is a waiter at the head of the queue. An heir of the other side waits for each.
func (w *world) killed(t *testing.T, v *victim, heir func() actor) {
	checks := make(map[string]func(*testing.T))
	for kind, wants := range map[string]string{"": "", "fair": "fair", "read": "write"} {
		name, waiter := redistest.Name(t)+kind, heir().as(wants)
		v.start(t, kind, name)()
		in := w.joins(t, waiter, name)
		w.awaitRenewal(t, name)
		checks["holder, "+kind] = func(t *testing.T) { w.inherits(t, waiter, name, in) }
	}

	checks["several locks"] = w.inheritsAll(t, v, heir())

	queue, holder, next := redistest.Name(t)+"queue", newGoActor(w.quickGo).as("fair"), heir().as("fair")
	lock(t, holder, queue, 0) // of this library, which can skip the dead waiter
	v.start(t, "fair", queue)
	w.awaitEntries(t, queue, 1)
	in := w.joins(t, next, queue)
	ear := w.earOf(t, queue, v)
	checks["head of the queue"] = func(t *testing.T) {
		redistest.Eventually(t, testTimeout, func() bool { return w.listeners(t, ear) == 0 }, "the server has noticed")
		w.skips(t, holder, next, queue, in, 5*time.Second+5*time.Second/3)
	}

	if v.java != nil {
		checks["head of the queue, with Redisson behind it"] = w.javaBehindJava(t, v)
	}
	if v.java != nil {
		checks["reader beside ours"] = w.readerBeside(t, v)
	}

	v.kill()
	sideBySide(t, checks)
}

// A stopped process of ours at the head is given the lock, or told that it is free where nobody can tell whether it listens. Only Redisson is
// behind it, for longer than a place lasts: then most versions sleep on when they are told.
func (w *world) goIsStopped(t *testing.T) {
	name, holder, next, v := redistest.Name(t), newGoActor(w.quickGo).as("fair"), w.quickJava.thread().as("fair"), &victim{w: w}
	lock(t, holder, name, 0)
	v.start(t, "fair", name)
	w.awaitEntries(t, name, 1)
	in := w.joins(t, next, name)
	sleep(shortLease)
	stop(t, v.goes[0].process)
	within := 2 * time.Second
	if w.cluster && w.plain {
		within = 5 * time.Second
	}
	w.skips(t, holder, next, name, in, within)
}

// Before Redisson in a queue are two waiters of a process that is stopped, and two of a Redisson that has died.
func (w *world) manyAreGone(t *testing.T) {
	const place = 5 * time.Second
	name, holder, next, dead := redistest.Name(t), newGoActor(w.quickGo).as("fair"), w.quickJava.thread().as("fair"), w.startJava(t, shortLease)
	lock(t, holder, name, 0)
	p := w.startGo(t, goJob{Watchdog: shortLease, Name: name, Kind: "fair", Waiters: 2})
	p.begin(t)
	w.awaitEntries(t, name, 2)
	for n := range 2 {
		dead.thread().as("fair").start(t, name, 0)
		w.awaitEntries(t, name, 3+n)
	}
	in := w.joins(t, next, name)
	dead.kill()
	sleep(shortLease)
	stop(t, p.process)
	w.skips(t, holder, next, name, in, 3*place)
}

// A waiter of Redisson's at the head is interrupted, which leaves its entry, or its process is stopped.
func (w *world) javaIsInterrupted(t *testing.T) {
	java := w.quickJava.thread()
	w.javaIsNoMore(t, java, func() { require.Equal(t, "true", java.ask(t, "interrupt")) })
}

func (w *world) javaIsStopped(t *testing.T) {
	java := w.startJava(t, shortLease)
	defer java.kill()
	w.javaIsNoMore(t, java.thread(), func() { stop(t, java.process) })
}

func (w *world) javaIsNoMore(t *testing.T, first *javaThread, end func()) {
	name, holder, next := redistest.Name(t), newGoActor(w.quickGo).as("fair"), w.quickJava.thread().as("fair")
	lock(t, holder, name, 0)
	first.as("fair").start(t, name, 0)
	w.awaitEntries(t, name, 1)
	first.sleeps(t)
	in := w.joins(t, next, name)
	sleep(shortLease)
	end()
	w.skips(t, holder, next, name, in, 5*time.Second)
}

// A hold reaches its longest time, and its section goes on. Redisson has asked before, and most versions would sleep without an end.
func (w *world) longestHold(t *testing.T) {
	const d = 2 * shortLease
	name, next := redistest.Name(t), w.quickJava.thread().as("fair")
	ctx, unlocks := enter(t, context.Background(), w.quickGo.FairMutex(name, rlock.WithMaxHold(d)))
	began := time.Now()
	in := w.joins(t, next, name)
	got := await(t, in, testTimeout)
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	requireIn(t, d+shortLease/3+late, began, got)
	require.ErrorIs(t, unlocks(), rlock.ErrLost)
	unlock(t, next, name)
	w.requireNothingLeft(t, name)
}

// earOf returns the channel of the head of a queue, which is the victim's.
func (w *world) earOf(t testing.TB, name string, v *victim) string {
	head := w.entries(t, name)[0]
	if v.java == nil {
		head = head[:36]
	}
	return unlockChannel(name) + ":" + head
}

// awaitRenewal waits until the watchdog has renewed the hold.
func (w *world) awaitRenewal(t testing.TB, name string) {
	t.Helper()
	last := w.watch.pttl(t, name)
	redistest.Eventually(t, shortLease, func() bool {
		before := last
		last = w.watch.pttl(t, name)
		return last > before
	}, "renewed")
}

// inherits requires that a waiter gets the lock when the lease of a just killed holder expires.
func (w *world) inherits(t *testing.T, waiter actor, name string, in <-chan event) {
	t.Helper()
	asked := time.Now()
	left := w.watch.pttl(t, name) // of the waiter's hold, if it is in already
	read := time.Now()
	ends := read.Add(left) // at the latest, and at the earliest that much after asked
	kind := waiter.lockKind()
	java := javaOf(waiter) != nil
	var behind <-chan event
	next := newGoActor(w.quickGo).as("fair")
	if kind == "fair" && java && w.version == os.Getenv("REDISSON_SHARDED") { // it sleeps on until a waiter of this library comes: docs/internals/interop.md
		sleep(time.Until(ends.Add(late)))
		ends = time.Now()
		requireWaiting(t, in)
		behind = next.start(t, name, 0)
	}
	got := await(t, in, testTimeout)
	t.Logf("in %v after the lease, or after one that came later", got.ended.Sub(ends).Round(100*time.Microsecond))
	if kind == "write" && java { // it sleeps for what it was told last
		requireIn(t, shortLease+late, ends, got)
	} else {
		requireIn(t, late, ends, got)
	}
	if kind == "" {
		if got.ended.After(read) {
			require.Greater(t, got.ended.Sub(asked), left-100*time.Millisecond)
		}
		w.holds(t, name, waiter.field(t, name), 1)
	}
	unlock(t, waiter, name)
	if behind != nil {
		await(t, behind, testTimeout)
		unlock(t, next, name)
	}
	w.requireNothingLeft(t, name)
}

// inheritsAll has the victim hold several locks, for which an heir waits in another order. It gets them when their leases expire.
func (w *world) inheritsAll(t *testing.T, v *victim, heir actor) (check func(*testing.T)) {
	base := redistest.Name(t)
	names := []string{base + ":a", base + ":b", base + ":c"}
	v.startAll(t, names...)()
	var in <-chan event
	other := []string{names[2], names[1], names[0]}
	if j := javaOf(heir); j != nil {
		in = j.startOp(t, "lock", multi(other...))
		j.sleeps(t)
	} else {
		in = newGoActor(w.quickGo).startOn(t, allOf(w.quickGo, other))
	}
	return func(t *testing.T) {
		var left time.Duration
		for _, name := range names {
			left = max(left, w.watch.pttl(t, name))
		}
		requireIn(t, late, time.Now().Add(left), await(t, in, testTimeout))
	}
}

// skips requires that an unlock wakes the one behind a dead waiter.
func (w *world) skips(t *testing.T, holder, next actor, name string, in <-chan event, within time.Duration) {
	t.Helper()
	unlocked := unlock(t, holder, name)
	got := await(t, in, testTimeout)
	t.Logf("in after %v", got.ended.Sub(unlocked.began))
	requireIn(t, within+late, unlocked.began, got)
	unlock(t, next, name)
	w.requireNothingLeft(t, name)
}

// Only Redisson waits behind the dead waiter: the release wakes it, too.
func (w *world) javaBehindJava(t *testing.T, v *victim) (check func(*testing.T)) {
	name, holder, next := redistest.Name(t)+"java", newGoActor(w.quickGo).as("fair"), w.quickJava.thread().as("fair")
	lock(t, holder, name, 0)
	v.start(t, "fair", name)
	w.awaitEntries(t, name, 1)
	own := unlockChannel(name) + ":" + w.entries(t, name)[0]
	in := w.joins(t, next, name)
	return func(t *testing.T) {
		redistest.Eventually(t, testTimeout, func() bool { return w.listeners(t, own) == 0 }, "the server has noticed")
		w.skips(t, holder, next, name, in, 5*time.Second)
	}
}

// Beside a reader of ours that stays, the lock is free when that leaves.
func (w *world) readerBeside(t *testing.T, v *victim) (check func(*testing.T)) {
	name := redistest.Name(t) + "beside"
	v.start(t, "read", name)()
	_, leave := enter(t, context.Background(), w.quickGo.RWMutex(name).Read())
	return func(t *testing.T) {
		sleep(shortLease / 2)
		waits := lockAsync(t, w.quickGo.RWMutex(name).Write())
		sleep(shortLease/2 + late)
		waits.stillWaits(t)
		require.NoError(t, leave())
		waits.getAndUnlock(t, soon)
	}
}
