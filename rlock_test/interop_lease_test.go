//go:build interop

package rlock_test

import (
	"context"
	"strconv"
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
			require.Greater(t, ttl, rlock.DefaultWatchdogTimeout-5*time.Second)
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
	require.Less(t, await(t, in, 5*time.Second).ended.Sub(unlocked.began), late)
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
		ttl := w.watch.pttl(t, name)
		require.LessOrEqual(t, ttl, shortLease)
		require.Greater(t, ttl, shortLease/4, "must be renewed every third of the lease")
		requireWaiting(t, in)
		if waiter.lockKind() == "fair" {
			require.Len(t, w.entries(t, name), 1)
		}
	}
	unlocked := unlock(t, holder, name)
	require.Less(t, await(t, in, 5*time.Second).ended.Sub(unlocked.began), late)
	unlock(t, waiter, name)
}

// The lease expires in mid-section: the other side gets the lock, and the late unlock does not harm it.
func (w *world) fixedLease(t *testing.T, s sides) {
	const fixed = shortLease / 2 // a renewal would come after a third
	holder, waiter, name := s.holder(), s.waiter(), redistest.Name(t)
	began := time.Now()
	lock(t, holder, name, fixed)
	in := waiter.start(t, name, testTimeout)
	w.awaitSubscriber(t, name)
	left := w.watch.pttl(t, name)
	ends := time.Now().Add(left)
	took := await(t, in, fixed+5*time.Second).ended
	require.GreaterOrEqual(t, took.Sub(began), fixed-time.Millisecond) // Java's clock reading is cut off
	require.Less(t, took.Sub(ends), late)
	w.lateUnlock(t, holder, waiter, name)
	unlock(t, waiter, name)
}

// lateUnlock requires that the unlock of a former holder fails, and does not change the new hold.
func (w *world) lateUnlock(t testing.TB, former, now actor, name string) {
	t.Helper()
	field := now.field(t, name)
	w.holds(t, name, field, 1)
	before := w.watch.pttl(t, name)
	if g, ok := former.(*goActor); ok {
		ctx := g.ctx()
		select {
		case <-ctx.Done():
		case <-time.After(shortLease/3 + late/2):
			require.Fail(t, "the next renewal did not report the loss to the former holder")
		}
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	}
	former.requireNotHeld(t, former.unlock(t, name).err)
	w.holds(t, name, field, 1)
	after := w.watch.pttl(t, name)
	require.LessOrEqual(t, after, before)
	require.Greater(t, after, before-shortLease)
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
	require.Less(t, await(t, in, 5*time.Second).ended.Sub(force.began), late)
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
		got := next.get(t, 5*time.Second)
		require.NoError(t, got.err)
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
	const least = 8 * time.Second
	name := redistest.Name(t)
	_, unlock, err := w.watch.Client.Mutex(name, rlock.WithMinHold(least)).Lock(t.Context())
	acquired := time.Now()
	require.NoError(t, err)
	var impatient [3]<-chan reply
	var threads [3]*javaThread
	for i := range threads {
		threads[i] = w.java.thread()
		impatient[i] = threads[i].send(t, "trylock", wordOf("", name), ms(least/2))
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
	took := await(t, in, 2*least).ended.Sub(acquired)
	require.GreaterOrEqual(t, took, least-time.Millisecond)
	require.Less(t, took, least+late)
	require.NoError(t, waiter.unlock(t, name).err)
}

// Java sees a hold exported by Go as held throughout. It gets the lock when the ticket expires or the adopter unlocks,
// although it had been given another time before.
func (w *world) takenAlong(t *testing.T) {
	const least = 8 * time.Second
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
		ticket, err := rlock.Export(ctx, rlock.WithTicketTime(lasts))
		require.NoError(t, err)
		require.NoError(t, unlock())
		other.tryInVain(t, name)
		requireWaiting(t, in)
		free := began.Add(lasts)
		if adopted {
			ctx, unlock, err := adopter.Adopt(t.Context(), ticket)
			require.NoError(t, err)
			w.holds(t, name, rlock.Owner(ctx), 1)
			other.tryInVain(t, name)
			requireWaiting(t, in)
			require.NoError(t, unlock())
			free = time.Now()
		}
		took := await(t, in, 2*least).ended.Sub(free)
		require.Greater(t, took, -late)
		require.Less(t, took, late)
		require.NoError(t, waiter.unlock(t, name).err)
	}
}
