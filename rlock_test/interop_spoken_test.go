//go:build interop

package rlock_test

import (
	"context"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Redisson beside Go holders with WithAsked, WithLinger or a ticket, for the kinds not tested by asked, kept and
// takenAlong.

// askedByJava waits until a holder learns that Redisson waits, which takes two looks.
func askedByJava(t *testing.T, ctx context.Context, in <-chan event) {
	t.Helper()
	began := time.Now()
	awaitAsked(t, ctx)
	require.Less(t, time.Since(began), shortLease/3+time.Second+late)
	requireWaiting(t, in)
}

// fencedAlong checks that tokens rise: from a lock kept by Go, with tokens in store, over Java's to an adopted one.
func (w *world) fencedAlong(t *testing.T) {
	const d = 3 * time.Second
	c, name, java := w.watch.Client, redistest.Name(t), w.java.thread()
	m, coded := c.FencedMutex(name, rlock.WithLinger(d)), "fenced/"+url.QueryEscape(name)
	keep(t, c, m)
	token := func(ctx context.Context) int64 {
		n, ok := rlock.FencingToken(ctx, name)
		require.True(t, ok)
		return n
	}
	ctx, unlock, err := m.Lock(t.Context())
	require.NoError(t, err)
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

// asked is world.asked for a Go writer with waiting Java readers, and for a Go reader with a waiting Java writer.
func (w rwWorld) asked(t *testing.T) {
	for side, other := range map[string]string{"write": "read", "read": "write"} {
		t.Run(side, func(t *testing.T) {
			java, name := rwThread{w.quickJava.thread()}, redistest.Name(t)
			ctx, unlock, err := rwOf(w.quickGo, side, name, rlock.WithAsked()).Lock(t.Context())
			require.NoError(t, err)
			java.tryInVain(t, other, name)
			in := w.rwWaits(t, java, other, name)
			askedByJava(t, ctx, in)
			require.NoError(t, unlock())
			await(t, in, testTimeout)
			rwUnlock(t, java, other, name)
		})
	}
}

// alongWrite checks that Java sees a writer throughout, also between Export and Adopt.
func (w rwWorld) alongWrite(t *testing.T) {
	java, other, name := rwThread{w.java.thread()}, rwThread{w.java.thread()}, redistest.Name(t)
	ctx, unlock, err := w.watch.RWMutex(name).Write().Lock(t.Context())
	require.NoError(t, err)
	in := w.rwWaits(t, java, "read", name)
	ticket, err := rlock.Export(ctx, rlock.WithTicketTime(time.Hour))
	require.NoError(t, err)
	require.NoError(t, unlock())
	for _, side := range []string{"read", "write"} {
		other.tryInVain(t, side, name)
	}
	requireWaiting(t, in)
	_, unlock, err = newClient(t, w.watch.rdb, w.options(0)).Adopt(t.Context(), ticket)
	require.NoError(t, err)
	other.tryInVain(t, "read", name)
	requireWaiting(t, in)
	began := time.Now()
	require.NoError(t, unlock())
	require.Less(t, await(t, in, testTimeout).ended.Sub(began), late)
	rwUnlock(t, java, "read", name)
}

// asked is world.asked for fair locks: Redisson's waiters are in the queue, so one look finds them.
func (w *fairWorld) asked(t *testing.T) {
	java, name := &fairJava{javaThread: w.quickJava.thread()}, redistest.Name(t)
	ctx, unlocks, err := w.quickGo.FairMutex(name, rlock.WithAsked()).Lock(t.Context())
	require.NoError(t, err)
	java.tryInVain(t, name)
	in := w.queueUp(t, java, name)
	askedByJava(t, ctx, in)
	require.NoError(t, unlocks())
	await(t, in, testTimeout)
	unlock(t, java, name)
}
