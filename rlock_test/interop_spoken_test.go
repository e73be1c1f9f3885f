//go:build interop

package rlock_test

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Redisson beside Go holders with WithAsked, WithLinger or a ticket.

// asked checks that a Go holder with WithAsked learns of a waiting Redisson: it looks every third of the watchdog time, and again a second
// later. Of fair locks one look finds Redisson's waiters in the queue. Redisson sees an ordinary owner.
func (w *world) asked(t *testing.T, goes, javas string) {
	java, name := w.quickJava.thread().as(javas), redistest.Name(t)
	ctx, unlocks := enter(t, context.Background(), mutexOf(w.quickGo, goes, name, rlock.WithAsked()))
	java.tryInVain(t, name)
	if goes != "fair" { // an old Redisson's attempt passes through the queue
		notAsked(t, ctx)
	}
	in := w.joins(t, java, name)
	redistest.Within(t, shortLease/3+time.Second+late, rlock.Asked(ctx), "it is asked")
	requireWaiting(t, in)
	require.NoError(t, unlocks())
	await(t, in, testTimeout)
	if goes == "" {
		waiter := lockAsync(t, w.quickGo.Mutex(name, rlock.WithAsked()))
		w.awaitSubscriber(t, name)
		unlock(t, java, name)
		waiter.getAndUnlock(t, testTimeout)
		return
	}
	unlock(t, java, name)
}

// Java sees a lock kept by Go as held. It cannot ask for the lock, so it is woken when the option's time is over. If it
// already waits at the first unlock, it is woken at once.
func (w *world) kept(t *testing.T) {
	const d = endingLease
	c, name := newClient(t, w.watch.rdb, w.options(0)), redistest.Name(t)
	keep(t, c, c.Mutex(name, rlock.WithLinger(d)))
	last := time.Now()
	java := w.java.thread()
	java.tryInVain(t, name)
	in := w.joins(t, java, name)
	requireIn(t, late, last.Add(d), await(t, in, testTimeout))
	w.holds(t, name, java.field(t, name), 1)
	unlock(t, java, name)

	name = redistest.Name(t)
	goes := newGoActor(c)
	await(t, goes.startOn(t, c.Mutex(name, rlock.WithLinger(rlock.DefaultWatchdogTimeout))), testTimeout)
	in = w.joins(t, java, name)
	released := unlock(t, goes, name)
	requireIn(t, soon, released.began, await(t, in, testTimeout))
	unlock(t, java, name)
}

// fencedAlong checks that tokens rise: from a lock kept by Go, with tokens in store, over Java's to an adopted one.
func (w *world) fencedAlong(t *testing.T) {
	const d = endingLease
	c, name, java := w.watch.Client, redistest.Name(t), w.java.thread()
	m, coded := c.FencedMutex(name, rlock.WithLinger(d)), wordOf("fenced", name)
	keep(t, c, m)
	token := func(ctx context.Context) int64 {
		n, ok := rlock.FencingToken(ctx, name)
		require.True(t, ok)
		return n
	}
	ctx, unlock := enter(t, t.Context(), m)
	last := token(ctx)
	require.NoError(t, unlock())
	require.Equal(t, "false", java.ask(t, "trylock", coded, "0"))
	got, err := strconv.ParseInt(java.ask(t, "token", coded), 10, 64) // returns when Go no longer keeps the lock
	require.NoError(t, err)
	require.Greater(t, got, last)

	waiter := lockAsync(t, c.FencedMutex(name))
	w.awaitSubscriber(t, name)
	require.NoError(t, java.do(t, "unlock", coded).err)
	next := waiter.gets(t, testTimeout)
	last = token(next.ctx)
	require.Greater(t, last, got)
	ticket := answer(rlock.Export(next.ctx)).ok(t)
	require.Equal(t, "false", java.ask(t, "trylock", coded, "0"))
	ctx, unlock, err = c.Adopt(t.Context(), ticket)
	require.NoError(t, err)
	require.Greater(t, token(ctx), last)
	last = token(ctx)
	require.NoError(t, unlock())
	got = answer(strconv.ParseInt(java.ask(t, "token", coded), 10, 64)).ok(t)
	require.Greater(t, got, last)
	require.NoError(t, java.do(t, "unlock", coded).err)
}

// alongWrite checks that Java sees a writer throughout, also between Export and Adopt.
func (w *world) alongWrite(t *testing.T) {
	java, other, name := w.java.thread().as("read"), w.java.thread(), redistest.Name(t)
	ctx, unlock := enter(t, t.Context(), w.watch.RWMutex(name).Write())
	in := w.joins(t, java, name)
	ticket, err := rlock.Export(ctx, rlock.WithTicketTime(time.Hour))
	require.NoError(t, err)
	require.NoError(t, unlock())
	for _, side := range []string{"read", "write"} {
		other.as(side).tryInVain(t, name)
	}
	requireWaiting(t, in)
	_, unlock, err = newClient(t, w.watch.rdb, w.options(0)).Adopt(t.Context(), ticket)
	require.NoError(t, err)
	other.as("read").tryInVain(t, name)
	requireWaiting(t, in)
	began := time.Now()
	require.NoError(t, unlock())
	requireIn(t, soon, began, await(t, in, testTimeout))
	require.NoError(t, java.unlock(t, name).err)
}

// multi is the name of a MultiLock.
func multi(names ...string) string {
	word := "multi/"
	for i, name := range names {
		if i > 0 {
			word += ","
		}
		word += url.QueryEscape(name)
	}
	return word
}

// Goroutines that take All of two locks, and threads that take a MultiLock of them in the opposite order, exclude each other, and
// holders of one of them. Both sides get in all the time.
func (w *world) allInOppositeOrders(t *testing.T) {
	const long = 5 * time.Second
	names := []string{redistest.Name(t) + ":a", redistest.Name(t) + ":b"}
	both, one := numberFile(t), numberFile(t)
	var inJava []<-chan reply
	for _, job := range [][2]string{{multi(names[1], names[0]), both}, {multi(names[1], names[0]), both}, {wordOf("", names[1]), one}} {
		inJava = append(inJava, w.java.thread().send(t, "hammer", job[0], url.QueryEscape(job[1]), ms(long)))
	}
	m := rlock.All(w.watch.Mutex(names[0]), w.watch.Mutex(names[1]))
	var inGo, longest atomic.Int64
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	for end, g := time.Now().Add(long), 0; g < 2; g++ {
		wg.Go(func() {
			for time.Now().Before(end) {
				began := time.Now()
				assert.NoError(t, m.Do(ctx, func(context.Context) error {
					longest.Store(max(longest.Load(), int64(time.Since(began))))
					inGo.Add(1)
					return errors.Join(addOne(both), addOne(one)) // the holder of both has each
				}))
			}
		})
	}
	wg.Wait()
	var counts [3]int64
	for i := range counts {
		counts[i] = w.java.sum(t, inJava[i:i+1])
		require.Positive(t, counts[i])
	}
	answer(readNumber(both)).is(t, inGo.Load()+counts[0]+counts[1], "an addition was lost")
	answer(readNumber(one)).is(t, inGo.Load()+counts[2], "an addition was lost")
	t.Logf("%d sections in Go, the longest wait was %v; %v in Java: two of both locks, and one of one", inGo.Load(), time.Duration(longest.Load()), counts)
}

// A MultiLock wakes All and the other way round, and so does the holder of one lock.
func (w *world) allWakesAndIsWoken(t *testing.T) {
	alone(t)
	var all wakeUps
	for i := range 80 {
		base, javaHolds := redistest.Name(t), i%2 == 0
		names := []string{base + ":a", base + ":b", base + ":c"}
		java, held := w.java.thread(), multi(names[2], names[1], names[0])
		first := map[bool]string{true: names[0], false: names[2]}[javaHolds] // is waited for
		if i%4 > 1 {
			held, first = wordOf("", names[1]), names[1]
		}
		waits := func() {
			redistest.Eventually(t, testTimeout, func() bool { return w.subscribers(t, first) > 0 }, "it waits")
		}
		m := rlock.All(w.watch.Mutex(names[0]), w.watch.Mutex(names[1]), w.watch.Mutex(names[2]))
		if javaHolds {
			java.ask(t, "lock", held, ms(testTimeout))
			p := lockAsync(t, m)
			waits()
			unlocked := java.do(t, "unlock", held)
			require.NoError(t, unlocked.err)
			got := p.gets(t, soon)
			all.add(t, unlocked.event, event{ended: got.at}, unlocked.event)
			require.NoError(t, got.unlock())
			continue
		}
		_, unlock := enter(t, context.Background(), m)
		in := java.startOp(t, "lock", held, ms(testTimeout))
		waits()
		began := time.Now()
		require.NoError(t, unlock())
		unlocked := event{began: began, ended: time.Now()}
		all.add(t, unlocked, await(t, in, soon), unlocked)
		java.ask(t, "unlock", held)
	}
	all.requirePrompt(t, 0)
}
