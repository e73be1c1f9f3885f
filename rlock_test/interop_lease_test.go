//go:build interop

package rlock_test

import (
	"context"
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
