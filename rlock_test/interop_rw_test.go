//go:build interop

package rlock_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func (w *world) readAndWrite(t *testing.T) {
	t.Run("wake-up", w.rwWakeUp)
	w.bothWays(t, "names", w.rwNames)
	t.Run("downgrade", w.downgrade)
	t.Run("forced", w.rwForced)
}

func rwChannel(name string) string {
	if strings.Contains(name, "{") {
		return "redisson_rwlock:" + name
	}
	return "redisson_rwlock:{" + name + "}"
}

// rwWaits is joins, with time for the attempt after the subscription.
func (w *world) rwWaits(t testing.TB, a actor, name string) <-chan event {
	t.Helper()
	in := w.joins(t, a, name)
	if javaOf(a) == nil {
		sleep(30 * time.Millisecond)
	}
	requireWaiting(t, in)
	return in
}

// Writers of both sides add to a number, and readers of both see that it stays as it is while they look.
func (w *world) rwExclusion(t *testing.T) {
	const long = 5 * time.Second
	name := redistest.Name(t)
	file := numberFile(t)
	var replies []<-chan reply
	for _, r := range []*redisson{w.java, w.quickJava} {
		replies = append(replies,
			r.thread().send(t, "hammer", wordOf("write", name), url.QueryEscape(file), ms(long)),
			r.thread().send(t, "steady", wordOf("read", name), url.QueryEscape(file), ms(long)))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var writes, reads int64
	end := time.Now().Add(long)
	for _, c := range []*rlock.Client{w.watch.Client, w.quickGo} {
		rw := c.RWMutex(name)
		wg.Go(func() {
			for time.Now().Before(end) {
				assert.NoError(t, rw.Write().Do(context.Background(), func(context.Context) error { return addOne(file) }))
				mu.Lock()
				writes++
				mu.Unlock()
				sleep(5 * time.Millisecond) // room for readers
			}
		})
		wg.Go(func() {
			for time.Now().Before(end) {
				assert.NoError(t, rw.Read().Do(context.Background(), func(context.Context) error {
					before, err := readNumber(file)
					assert.NoError(t, err)
					sleep(time.Millisecond)
					after, err := readNumber(file)
					assert.NoError(t, err)
					assert.Equal(t, before, after, "written while it was read")
					return nil
				}))
				mu.Lock()
				reads++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	inJava := [2]int64{} // writes, reads
	for i := range replies {
		n := w.java.sum(t, replies[i:i+1])
		require.Positive(t, n)
		inJava[i%2] += n
	}
	require.Positive(t, reads)
	require.Positive(t, writes)
	answer(readNumber(file)).is(t, inJava[0]+writes, "an addition was lost")
	require.False(t, w.watch.exists(t, name))
	t.Logf("%d writes and %d reads in Go, %d and %d in Java", writes, reads, inJava[0], inJava[1])
}

func (w *world) rwWakeUp(t *testing.T) {
	for _, who := range ways(w.watch.Client, w.java) {
		for _, s := range [][2]string{{"write", "read"}, {"read", "write"}, {"write", "write"}} {
			t.Run(who.way+" to "+s[0]+", the other waits to "+s[1], func(t *testing.T) {
				alone(t)
				w.measure(t, 5, 30, who.holder().as(s[0]), who.waiter().as(s[1]), w.rwWaits, redistest.Name(t))
			})
		}
	}
}

func (w *world) rwNames(t *testing.T, s sides) {
	a, b, other := s.holder(), s.waiter(), s.waiter()
	for _, name := range []string{"{tag}:rest", "a{tag}b{other}", "a:b:c:", ":write", "größe 🔒"} {
		name += redistest.Name(t)
		for _, reader := range []actor{a, b} {
			lock(t, reader.as("read"), name, testTimeout)
		}
		other.as("write").tryInVain(t, name)
		unlock(t, a.as("read"), name)
		require.True(t, w.watch.exists(t, name))
		unlock(t, b.as("read"), name)
		require.False(t, w.watch.exists(t, name), name)
		for range 2 {
			lock(t, a.as("write"), name, testTimeout)
		}
		b.as("read").tryInVain(t, name)
		b.as("write").tryInVain(t, name)
		for range 2 {
			unlock(t, a.as("write"), name)
		}
		require.False(t, w.watch.exists(t, name), name)
	}
}

// A writer that reads and then unlocks the write side is a reader for the other side, too. Ours tells the readers that wait; after
// Redisson's, one that comes is let in.
func (w *world) downgrade(t *testing.T) {
	name := redistest.Name(t)
	java := w.java.thread()
	goes := w.watch.RWMutex(name)
	ctx, _ := enter(t, context.Background(), goes.Write())
	in := w.rwWaits(t, java.as("read"), name)
	began := time.Now()
	_, leave, err := goes.Downgrade(ctx)
	require.NoError(t, err)
	requireIn(t, soon, began, await(t, in, testTimeout))
	other := w.java.thread()
	other.as("write").tryInVain(t, name)
	require.NoError(t, leave())
	other.as("write").tryInVain(t, name)
	unlock(t, java.as("read"), name)
	require.False(t, w.watch.exists(t, name))

	lock(t, java.as("write"), name, 0)
	lock(t, java.as("read"), name, 0)
	newGoActor(w.watch.Client).as("read").tryInVain(t, name)
	unlock(t, java.as("write"), name)
	_, leave, err = goes.Read().TryLock(context.Background(), 0)
	require.NoError(t, err)
	unlock(t, java.as("read"), name)
	newGoActor(w.watch.Client).as("write").tryInVain(t, name)
	require.NoError(t, leave())
	require.False(t, w.watch.exists(t, name))

	// A reader of ours that may upgrade, beside one of Redisson's, which leaves.
	lock(t, java.as("read"), name, 0)
	up := goes.Upgradeable()
	reader, end := enter(t, context.Background(), up)
	upgrade := lockAsync(t, upgrading{up, reader})
	sleep(200 * time.Millisecond)
	upgrade.stillWaits(t)
	unlock(t, java.as("read"), name)
	upgrade.cancel() // Redisson tells nobody that one reader is left
	require.Error(t, upgrade.get(t, soon).err)
	writer, down, err := up.Upgrade(reader)
	require.NoError(t, err)
	require.NoError(t, writer.Err())
	java.as("read").tryInVain(t, name)
	require.NoError(t, down())
	lock(t, java.as("read"), name, 0)
	require.NoError(t, end())
	unlock(t, java.as("read"), name)
	require.False(t, w.watch.exists(t, name))
}

func (w *world) rwForced(t *testing.T) {
	java := w.quickJava.thread()
	goes := newGoActor(w.quickGo)
	for _, side := range []string{"read", "write"} {
		name := redistest.Name(t) + side
		lost := newGoActor(w.quickGo)
		await(t, lost.startOn(t, mutexOf(w.quickGo, side, name)), testTimeout)
		in := w.rwWaits(t, goes.as("write"), name)
		require.Equal(t, "true", java.ask(t, "force", wordOf(side, name)))
		await(t, in, soon)
		redistest.Within(t, shortLease, lost.ctx().Done(), "it is told")
		require.ErrorIs(t, lost.unlock(t, name).err, rlock.ErrLost)
		unlock(t, goes.as("write"), name)

		lock(t, java.as(side), name, testTimeout)
		answer(mutexOf(w.quickGo, map[string]string{"read": "write", "write": "read"}[side], name).ForceUnlock(context.Background())).is(t, false)
		other := w.quickJava.thread()
		in = w.rwWaits(t, other.as("write"), name)
		answer(mutexOf(w.quickGo, side, name).ForceUnlock(context.Background())).is(t, true)
		await(t, in, soon)
		require.Error(t, java.as(side).unlock(t, name).err)
		unlock(t, other.as("write"), name)
		require.False(t, w.watch.exists(t, name))
	}
}

// Readers of both sides outlive the watchdog time beside each other, a writer of each alone.
func (w *world) rwWatchdog(t *testing.T) {
	name, second := redistest.Name(t), redistest.Name(t)+"w"
	java := w.quickJava.thread()
	lock(t, java.as("read"), name, 0)
	ctx, leave := enter(t, context.Background(), w.quickGo.RWMutex(name).Read())
	wctx, end := enter(t, context.Background(), w.quickGo.RWMutex(second).Write())
	inside, leaveInside := enter(t, wctx, w.quickGo.RWMutex(second).Read())
	sleep(shortLease + shortLease/2)
	require.NoError(t, ctx.Err())
	require.NoError(t, inside.Err())
	w.quickJava.thread().as("read").tryInVain(t, second)
	require.NoError(t, leave())
	newGoActor(w.watch.Client).as("write").tryInVain(t, name)
	unlock(t, java.as("read"), name)
	require.False(t, w.watch.exists(t, name))
	require.NoError(t, leaveInside())
	require.NoError(t, end())
	require.False(t, w.watch.exists(t, second))
}

// A fixed lease ends, of each side to each side.
func (w *world) rwExpiry(t *testing.T) {
	const short = 2 * time.Second
	for _, who := range ways(w.watch.Client, w.java) {
		for _, s := range [][2]string{{"write", "read"}, {"read", "write"}} {
			t.Run(who.way+" to "+s[0], func(t *testing.T) {
				t.Parallel()
				holder, waiter, name := who.holder().as(s[0]), who.waiter().as(s[1]), redistest.Name(t)
				lock(t, holder, name, short)
				await(t, waiter.start(t, name, testTimeout), short+soon)
				require.Error(t, holder.unlock(t, name).err)
				unlock(t, waiter, name)
				require.False(t, w.watch.exists(t, name))
			})
		}
	}
}

// A reader of ours with a lease that is longer than the watchdog time, beside one of Redisson's, whose renewals set the expiry that both
// share, and which leaves then, or is killed: no writer is in before ours knows.
func (w *world) rwGoLastsLonger(t *testing.T) {
	const long = 3 * shortLease
	for _, end := range []string{"unlock", "kill"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			java := w.quickJava
			if end == "kill" {
				java = w.startJava(t, shortLease)
			}
			reader, name := java.thread(), redistest.Name(t)
			began := time.Now()
			ctx, leave := enter(t, context.Background(), w.quickGo.RWMutex(name, rlock.WithLease(long)).Read())
			entered := time.Now()
			lock(t, reader.as("read"), name, 0)
			sleep(shortLease + shortLease/2) // renewed
			if end == "kill" {
				java.kill()
			} else {
				unlock(t, reader.as("read"), name)
			}
			write := w.watch.RWMutex(name).Write()
			redistest.Eventually(t, testTimeout, func() bool {
				_, done, err := write.TryLock(context.Background(), 0)
				if errors.Is(err, rlock.ErrNotAcquired) {
					return false
				}
				require.NoError(t, err)
				in := time.Now()
				requireLostBy(t, ctx, in)
				require.GreaterOrEqual(t, in.Sub(began), long, "not before the lease ends")
				requireIn(t, late, entered.Add(long), event{ended: in})
				require.NoError(t, done())
				return true
			}, "the writer is in")
			require.ErrorIs(t, leave(), rlock.ErrLost)
		})
	}
}

// Our reader, which lasts longest, leaves, and another one's lease ends: a writer of either side, which was told of ours, is in then.
func (w *world) rwLongestLeaves(t *testing.T) {
	const short = endingLease * 2 / 3 // less than half of what the writer was told: it is told again
	for _, who := range ways(w.watch.Client, w.java) {
		for what, dies := range map[string]actor{"Go": newGoActor(w.quickGo), "Java": w.quickJava.thread()} {
			t.Run(what+"'s lease ends, and "+strings.TrimSuffix(who.way, " holds")+" does not wait", func(t *testing.T) {
				t.Parallel()
				name := redistest.Name(t)
				writer := who.waiter().as("write")
				lock(t, dies.as("read"), name, short)
				began := time.Now()
				_, leave := enter(t, context.Background(), w.watch.RWMutex(name).Read())
				in := w.rwWaits(t, writer, name)
				left := time.Now()
				require.NoError(t, leave())
				requireIn(t, late, later(left, began.Add(short)), await(t, in, testTimeout))
				unlock(t, writer, name)
			})
		}
	}
}

func (w *world) fair(t *testing.T) {
	w.bothWays(t, "wake-up", fairly(w.fairWakeUp))
	w.bothWays(t, "order", fairly(w.fairOrder))
	w.bothWays(t, "give-up", fairly(w.fairGiveUp))
	w.bothWays(t, "names", fairly(w.names))
}

// entries are those of the queue.
func (w *world) entries(t testing.TB, name string) []string {
	t.Helper()
	all := answer(w.watch.do(t, "LRANGE", fairKey("redisson_lock_queue", name), "0", "-1").AsStrSlice()).ok(t)
	return all
}

func fairKey(prefix, name string) string {
	return prefix + unlockChannel(name)[len("redisson_lock__channel"):]
}

func (w *world) awaitEntries(t testing.TB, name string, n int) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return len(w.entries(t, name)) == n }, "in the queue")
}

func (w *world) requireNothingLeft(t testing.TB, name string) {
	t.Helper()
	for _, key := range []string{name, fairKey("redisson_lock_queue", name), fairKey("redisson_lock_timeout", name)} {
		redistest.Eventually(t, testTimeout, func() bool { return !w.watch.exists(t, key) }, key+" is gone")
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
		await(t, in[i], testTimeout)
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
	const patience = 8 * time.Second // until then all stand in line
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
		replies[i] = java[i].send(t, "trylock", wordOf("fair", name), ms(patience))
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
	await(t, inA, testTimeout)
	requireWaiting(t, inB)
	unlock(t, a, name)
	await(t, inB, testTimeout)
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
		await(t, q.inGo, testTimeout)
		unlock(t, q.goes, q.name)
	}
	keeps, loses := stand("trylock", ms(time.Minute)), stand("trylock.s", "60")
	redistest.Eventually(t, testTimeout, func() bool { return w.entries(t, loses.name)[0] != loses.field }, "Go's waiter has passed")
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
