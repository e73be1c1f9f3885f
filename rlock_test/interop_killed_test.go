//go:build interop

package rlock_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
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
		return func() { await(t, in, 10*time.Second) }
	}
	p := v.w.startGo(t, goJob{Watchdog: shortLease, Name: name, Kind: kind})
	v.goes = append(v.goes, p)
	p.begin(t)
	return func() { p.expect(t, "held", 10*time.Second) }
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

	queue, holder, next := redistest.Name(t)+"queue", newGoActor(w.quickGo).as("fair"), heir().as("fair")
	lock(t, holder, queue, 0) // of this library, which can skip the dead waiter
	v.start(t, "fair", queue)
	w.awaitEntries(t, queue, 1)
	in := w.joins(t, next, queue)
	checks["head of the queue"] = func(t *testing.T) { w.skips(t, holder, next, queue, in, 5*time.Second+5*time.Second/3) }

	if v.java != nil && w.version == os.Getenv("REDISSON_NEWEST") { // the others sleep on when they are told: docs/internals/interop.md
		checks["head of the queue, with Redisson behind it"] = w.javaBehindJava(t, v)
	}
	if v.java != nil {
		checks["reader beside ours"] = w.readerBeside(t, v)
	}

	v.kill()
	sideBySide(t, checks)
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
	left := w.watch.pttl(t, name)
	require.Positive(t, left)
	ends := time.Now().Add(left) // at the latest, and at the earliest that much after asked
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
	got := await(t, in, 40*time.Second)
	took := got.ended.Sub(ends)
	t.Logf("in %v after the lease, or after one that came later", took.Round(100*time.Microsecond))
	if kind == "write" && java { // it sleeps for what it was told last
		require.Less(t, took, shortLease+late)
	} else {
		require.Less(t, took, late)
	}
	if kind == "" {
		require.Greater(t, got.ended.Sub(asked), left-100*time.Millisecond)
		w.holds(t, name, waiter.field(t, name), 1)
	}
	unlock(t, waiter, name)
	if behind != nil {
		await(t, behind, 10*time.Second)
		unlock(t, next, name)
	}
	w.requireNothingLeft(t, name)
}

// skips requires that an unlock wakes the one behind a dead waiter.
func (w *world) skips(t *testing.T, holder, next actor, name string, in <-chan event, within time.Duration) {
	t.Helper()
	unlocked := unlock(t, holder, name)
	took := await(t, in, 40*time.Second).ended.Sub(unlocked.began)
	t.Logf("in after %v", took)
	require.Less(t, took, within+late)
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
		redistest.Eventually(t, 10*time.Second, func() bool { return w.listeners(t, own) == 0 }, "the server has noticed")
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
