//go:build interop

package rlock_test

import (
	"context"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Three levels deep and out again; both sides see the same at each step.
func (w *world) reentry(t *testing.T, s sides) {
	holder, other, name := s.holder(), s.waiter(), redistest.Name(t)
	check := func(count int) {
		t.Helper()
		w.holds(t, name, holder.field(t, name), int64(count))
		for a, depth := range map[actor]int{holder: count, other: 0} {
			locked, n, ttl := a.look(t, name)
			require.True(t, locked)
			require.Equal(t, depth, n)
			require.LessOrEqual(t, ttl, rlock.DefaultWatchdogTimeout)
			require.Greater(t, ttl, rlock.DefaultWatchdogTimeout/3, "renewed every third")
		}
		other.tryInVain(t, name)
	}
	for count := 1; count <= 3; count++ {
		lock(t, holder, name, 0)
		check(count)
	}
	in := w.startWaiting(t, other, name)
	for count := 2; count >= 1; count-- {
		unlock(t, holder, name)
		w.holds(t, name, holder.field(t, name), int64(count))
		requireWaiting(t, in)
	}
	unlocked := unlock(t, holder, name)
	requireIn(t, soon, unlocked.began, await(t, in, testTimeout))
	w.holds(t, name, other.field(t, name), 1)
	unlock(t, other, name)
	for _, a := range []actor{holder, other} {
		locked, count, ttl := a.look(t, name)
		require.False(t, locked)
		require.Zero(t, count)
		require.Zero(t, ttl)
	}
}

func (w *world) watchdog(t *testing.T, s sides) {
	holder, waiter, name := s.holder(), s.waiter(), redistest.Name(t)
	lock(t, holder, name, 0)
	in := w.joins(t, waiter, name)
	field := holder.field(t, name)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(shortLease + shortLease/2); time.Now().Before(end); <-tick.C {
		w.holds(t, name, field, 1)
		asked := time.Now()
		ttl := w.watch.pttl(t, name)
		require.LessOrEqual(t, ttl, shortLease)
		require.Less(t, redistest.Ran(t, asked.Add(ttl-shortLease), asked), shortLease*3/4, "must be renewed every third of the lease")
		requireWaiting(t, in)
		if waiter.lockKind() == "fair" {
			require.Len(t, w.entries(t, name), 1)
		}
	}
	unlock(t, holder, name)
	await(t, in, testTimeout)
	unlock(t, waiter, name)
}

// The lease expires in mid-section: the other side gets the lock, and the late unlock does not harm it.
func (w *world) fixedLease(t *testing.T, s sides) {
	holder, waiter, name := s.holder(), s.waiter(), redistest.Name(t)
	held := lock(t, holder, name, endingLease)
	in := waiter.start(t, name, testTimeout)
	w.awaitSubscriber(t, name)
	inAfter(t, held, in)
	w.lateUnlock(t, holder, waiter, name)
	unlock(t, waiter, name)
}

// inAfter requires that a waiter is in when the holder's endingLease has ended.
func inAfter(t testing.TB, held event, in <-chan event) {
	t.Helper()
	got := await(t, in, testTimeout)
	require.GreaterOrEqual(t, got.ended.Sub(held.began), endingLease-time.Millisecond, "not before") // a reading of the other side's clock is cut off
	requireIn(t, late, held.ended.Add(endingLease), got, "not much later")
}

// lateUnlock requires that the unlock of a former holder fails, and does not change the new hold.
func (w *world) lateUnlock(t testing.TB, former, now actor, name string) {
	t.Helper()
	field := now.field(t, name)
	w.holds(t, name, field, 1)
	asked := time.Now()
	before := w.watch.pttl(t, name)
	if g, ok := former.(*goActor); ok {
		ctx := g.ctx()
		redistest.Within(t, soon, ctx.Done(), "the next renewal reports the loss to the former holder")
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	}
	former.requireNotHeld(t, former.unlock(t, name).err)
	w.holds(t, name, field, 1)
	after := w.watch.pttl(t, name)
	require.LessOrEqual(t, after, before)
	require.GreaterOrEqual(t, after, before-time.Since(asked)-time.Millisecond, "it runs on")
}

func (w *world) forcedByHolder(t *testing.T, s sides) {
	w.forced(t, s.holder(), s.waiter(), s.holder())
}

// One side forces open a lock of the other, and the waiter is on the holder's side.
func (w *world) forcedByStranger(t *testing.T, s sides) {
	w.forced(t, s.holder(), s.holder(), s.waiter())
}

func (w *world) forced(t *testing.T, holder, waiter, by actor) {
	name := redistest.Name(t)
	lock(t, holder, name, 0)
	in := w.joins(t, waiter, name)
	force := by.force(t, name)
	requireIn(t, soon, force.began, await(t, in, testTimeout))
	w.lateUnlock(t, holder, waiter, name)
	unlock(t, waiter, name)
	w.requireNothingLeft(t, name)
}

// Both sides take their tokens from one counter. The Go writer of a read/write lock with that name raises it as
// well; Redisson's writer does not.
func (w *world) fencing(t *testing.T) {
	name, java := redistest.Name(t), w.java.thread()
	m, coded := w.watch.FencedMutex(name), wordOf("fenced", name)
	for last := int64(0); last < 6; last += 3 {
		ctx, unlock := enter(t, t.Context(), m)
		token, ok := rlock.FencingToken(ctx, name)
		require.True(t, ok)
		require.Equal(t, last+1, token)
		var in <-chan reply
		w.awaitWaiters(t, name, 1, func() { in = java.send(t, "token", coded) })
		require.NoError(t, unlock())
		require.Equal(t, strconv.FormatInt(last+2, 10), java.of.await(t, in).value)

		var next pendingLock
		w.awaitWaiters(t, name, 1, func() { next = lockAsync(t, m) })
		require.NoError(t, java.do(t, "unlock", coded).err)
		got := next.gets(t, soon)
		token, _ = rlock.FencingToken(got.ctx, name)
		require.Equal(t, last+3, token)
		require.NoError(t, got.unlock())
	}
	rw := w.watch.FencedRWMutex(name)
	for last := int64(6); last < 9; last++ {
		require.NoError(t, rw.Write().Do(t.Context(), func(ctx context.Context) error {
			token, _ := rlock.FencingToken(ctx, name)
			require.Equal(t, last+1, token)
			return nil
		}))
		if last == 7 { // in between
			writer := w.java.thread().as("write")
			lock(t, writer, name, 0)
			unlock(t, writer, name)
		}
	}
	require.Equal(t, "10", java.ask(t, "token", coded))
	require.NoError(t, java.do(t, "unlock", coded).err)
}

// Java gets a lock that Go leaves taken for a while when that time is over, although it had been given a longer time
// before, and although other threads of the same Redisson have given up. They give up before the unlock: a broadcast
// releases one permit per sleeping thread, and a thread that asks and sleeps again at once may take another's.
func (w *world) shortestHold(t *testing.T) {
	const least, patience = 20 * time.Second, 4 * time.Second // of Java's 30 s
	name := redistest.Name(t)
	began := time.Now()
	_, unlock, err := w.watch.Client.Mutex(name, rlock.WithMinHold(least)).Lock(t.Context())
	acquired := time.Now()
	require.NoError(t, err)
	var impatient [3]<-chan reply
	var threads [3]*javaThread
	for i := range threads {
		threads[i] = w.java.thread()
		impatient[i] = threads[i].send(t, "trylock", wordOf("", name), ms(patience))
	}
	waiter := w.java.thread()
	in := w.joins(t, waiter, name)
	for _, thread := range threads {
		thread.sleeps(t)
	}
	for _, ch := range impatient {
		require.Equal(t, "false", w.java.await(t, ch).value)
	}
	require.NoError(t, unlock())
	require.Less(t, time.Since(acquired), least)
	got := await(t, in, testTimeout)
	require.GreaterOrEqual(t, got.ended.Sub(began), least-time.Millisecond)
	requireIn(t, late, acquired.Add(least), got)
	require.NoError(t, waiter.unlock(t, name).err)
}

// Java sees a hold exported by Go as held throughout. It gets the lock when the ticket expires or the adopter unlocks,
// although it had been given another time before.
func (w *world) takenAlong(t *testing.T) {
	const least = 20 * time.Second
	adopter := newClient(t, w.watch.rdb, w.options(0))
	for _, adopted := range []bool{false, true} {
		name := redistest.Name(t)
		ctx, unlock := enter(t, t.Context(), w.watch.Client.Mutex(name))
		waiter, other := w.java.thread(), w.java.thread()
		in := w.joins(t, waiter, name) // with a remaining time of 30 s
		lasts := least
		if adopted {
			lasts = time.Hour
		}
		began := time.Now()
		ticket := answer(rlock.Export(ctx, rlock.WithTicketTime(lasts))).ok(t)
		exported := time.Now()
		require.NoError(t, unlock())
		other.tryInVain(t, name)
		requireWaiting(t, in)
		earliest, latest := began.Add(lasts), exported.Add(lasts)
		if adopted {
			ctx, unlock, err := adopter.Adopt(t.Context(), ticket)
			require.NoError(t, err)
			w.holds(t, name, rlock.Owner(ctx), 1)
			other.tryInVain(t, name)
			requireWaiting(t, in)
			earliest = time.Now()
			latest = earliest
			require.NoError(t, unlock())
		}
		got := await(t, in, testTimeout)
		require.GreaterOrEqual(t, got.ended.Sub(earliest), -time.Millisecond)
		requireIn(t, late, latest, got)
		require.NoError(t, waiter.unlock(t, name).err)
	}
}

// Java began to wait when the lock had a ticket's long time, and gets it when the lease of its adopter ends, who was killed.
func (w *world) adopterIsKilled(t *testing.T) {
	name, java := redistest.Name(t), w.quickJava.thread()
	ctx, unlocks := enter(t, context.Background(), w.watch.Client.Mutex(name))
	ticket := answer(rlock.Export(ctx, rlock.WithTicketTime(time.Hour))).ok(t)
	require.NoError(t, unlocks())
	in := w.joins(t, java, name)
	p := w.startGo(t, goJob{Watchdog: shortLease, Name: name, Ticket: ticket})
	p.begin(t)
	p.expect(t, "held", testTimeout)
	p.kill()
	left := w.watch.pttl(t, name)
	requireIn(t, late, time.Now().Add(left), await(t, in, testTimeout))
	unlock(t, java, name)
	w.requireNothingLeft(t, name)
}

// A process of ours is stopped in a section, or while it keeps the lock, and goes on when Java has the lock: it is told, or waits.
func (w *world) holderIsStopped(t *testing.T) {
	tests := make(map[string]func(*testing.T))
	for what, job := range map[string]goJob{"held": {Asked: true}, "kept": {Linger: time.Hour}} {
		tests[what] = func(t *testing.T) {
			name, java := redistest.Name(t), w.quickJava.thread()
			job.Watchdog, job.Name = shortLease, name
			p := w.startGo(t, job)
			p.begin(t)
			p.expect(t, what, testTimeout)
			in := w.joins(t, java, name)
			stop(t, p.process)
			left := w.watch.pttl(t, name)
			requireIn(t, late, time.Now().Add(left), await(t, in, testTimeout))
			require.NoError(t, p.process.Signal(syscall.SIGCONT))
			if what == "held" {
				p.expect(t, "lost", soon)
				p.end(t) // by its unlock
				w.holds(t, name, java.field(t, name), 1)
				unlock(t, java, name)
			} else {
				p.begin(t)
				w.awaitSubscriber(t, name)
				w.holds(t, name, java.field(t, name), 1)
				unlock(t, java, name)
				p.expect(t, "held", soon)
				p.end(t)
			}
			w.requireNothingLeft(t, name)
		}
	}
	sideBySide(t, tests)
}

// A process of ours that waits before Java is stopped, and is not waited for.
func (w *world) waiterIsStopped(t *testing.T) {
	name, holder, java := redistest.Name(t), newGoActor(w.watch.Client), w.java.thread()
	lock(t, holder, name, 0)
	p := w.startGo(t, goJob{Watchdog: rlock.DefaultWatchdogTimeout, Name: name})
	p.begin(t)
	w.awaitSubscriber(t, name)
	in := w.joins(t, java, name)
	stop(t, p.process)
	unlocked := unlock(t, holder, name)
	requireIn(t, soon, unlocked.began, await(t, in, testTimeout))
	require.NoError(t, p.process.Signal(syscall.SIGCONT))
	unlock(t, java, name)
	p.expect(t, "held", soon)
	p.end(t)
}

// A Client of ours is closed that keeps a lock, has it, or waits for it before Java, which gets it at once.
func (w *world) closes(t *testing.T) {
	c, java := newClient(t, w.watch.rdb, w.options(0)), w.java.thread()
	base, first := redistest.Name(t), newGoActor(w.watch.Client).as("fair")
	kept, held, queue := base+"kept", base+"held", base+"queue"
	keep(t, c, c.Mutex(kept, rlock.WithLinger(time.Hour)))
	_, unlocks := enter(t, context.Background(), c.Mutex(held))
	lock(t, first, queue, 0)
	w.joins(t, newGoActor(c).as("fair"), queue)
	inKept, inHeld, inQueue := w.joins(t, java, kept), w.joins(t, w.java.thread(), held), w.joins(t, w.java.thread().as("fair"), queue)
	began := time.Now()
	c.Close()
	requireIn(t, soon, began, await(t, inKept, testTimeout))
	requireWaiting(t, inHeld)
	require.NoError(t, unlocks())
	unlock(t, first, queue)
	requireIn(t, soon, began, await(t, inHeld, testTimeout))
	requireIn(t, soon, began, await(t, inQueue, testTimeout))
}

// Java's short leases end while Go, with a longer watchdog time, waits. Java's late unlocks fail.
func (w *world) shortLeases(t *testing.T) {
	const lease = 300 * time.Millisecond
	name, java, goes := redistest.Name(t), w.java.thread(), newGoActor(w.watch.Client)
	for range 5 {
		require.Equal(t, "true", java.ask(t, "trylock", java.word(name), "2000", ms(lease)))
		began := time.Now()
		requireIn(t, lease+late, began, await(t, goes.start(t, name, 0), testTimeout))
		java.requireNotHeld(t, java.unlock(t, name).err)
		require.Equal(t, "false", java.ask(t, "trylock", java.word(name), "50", ms(lease)))
		w.holds(t, name, goes.field(t, name), 1)
		unlock(t, goes, name)
	}
}

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
