//go:build interop

package rlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Java sees a lock kept by Go as held. It cannot ask for the lock, so it is woken when the option's time is over. If it
// already waits at the first unlock, it is woken at once.
func (w *world) kept(t *testing.T) {
	const d = 5 * time.Second
	c, name := w.watch.Client, redistest.Name(t)
	keep(t, c, c.Mutex(name, rlock.WithLinger(d)))
	last := time.Now()
	java := w.java.thread()
	java.tryInVain(t, name)
	in := w.startWaiting(t, java, name)
	requireWaiting(t, in)
	require.Less(t, await(t, in, testTimeout).ended.Sub(last), d+late)
	w.holds(t, name, java.field(t, name), 1)
	unlock(t, java, name)

	name = redistest.Name(t)
	goes := newGoActor(c)
	await(t, goes.startOn(t, c.Mutex(name, rlock.WithLinger(rlock.DefaultWatchdogTimeout))), testTimeout)
	in = w.startWaiting(t, java, name)
	released := unlock(t, goes, name)
	require.Less(t, await(t, in, testTimeout).ended.Sub(released.began), late)
	unlock(t, java, name)
}
