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
	began := time.Now()
	awaitAsked(t, ctx)
	require.Less(t, time.Since(began), shortLease/3+time.Second+late)
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
	const d = 8 * time.Second
	c, name := newClient(t, w.watch.rdb, w.options(0)), redistest.Name(t)
	keep(t, c, c.Mutex(name, rlock.WithLinger(d)))
	last := time.Now()
	java := w.java.thread()
	java.tryInVain(t, name)
	in := w.joins(t, java, name)
	require.Less(t, await(t, in, testTimeout).ended.Sub(last), d+late)
	w.holds(t, name, java.field(t, name), 1)
	unlock(t, java, name)

	name = redistest.Name(t)
	goes := newGoActor(c)
	await(t, goes.startOn(t, c.Mutex(name, rlock.WithLinger(rlock.DefaultWatchdogTimeout))), testTimeout)
	in = w.joins(t, java, name)
	released := unlock(t, goes, name)
	require.Less(t, await(t, in, testTimeout).ended.Sub(released.began), late)
	unlock(t, java, name)
}

// fencedAlong checks that tokens rise: from a lock kept by Go, with tokens in store, over Java's to an adopted one.
func (w *world) fencedAlong(t *testing.T) {
	const d = 3 * time.Second
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
	next := waiter.get(t, testTimeout)
	require.NoError(t, next.err)
	last = token(next.ctx)
	require.Greater(t, last, got)
	ticket, err := rlock.Export(next.ctx)
	require.NoError(t, err)
	require.Equal(t, "false", java.ask(t, "trylock", coded, "0"))
	ctx, unlock, err = c.Adopt(t.Context(), ticket)
	require.NoError(t, err)
	require.Greater(t, token(ctx), last)
	last = token(ctx)
	require.NoError(t, unlock())
	got, err = strconv.ParseInt(java.ask(t, "token", coded), 10, 64)
	require.NoError(t, err)
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
	require.Less(t, await(t, in, testTimeout).ended.Sub(began), late)
	require.NoError(t, java.unlock(t, name).err)
}
