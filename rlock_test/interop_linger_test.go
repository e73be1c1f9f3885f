//go:build interop

package rlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A lock that Go keeps is held as far as Java can see. It cannot ask, so it waits for the time of the option, and is woken then; unless it waits already
// when Go keeps the lock for the first time.
func (w *world) kept(t *testing.T) {
	const d = 5 * time.Second
	c, name := w.watch.Client, redistest.Name(t)
	keep(t, c, c.Mutex(name, rlock.WithLinger(d)))
	last := time.Now()
	java := w.java.thread()
	java.tryInVain(t, name)
	in := w.startWaiting(t, java, name)
	requireWaiting(t, in)
	require.Less(t, await(t, in, atMost).ended.Sub(last), d+late)
	w.holds(t, name, java.field(t, name), 1)
	unlock(t, java, name)

	name = redistest.Name(t)
	goes := newGoActor(c)
	await(t, goes.startOn(t, c.Mutex(name, rlock.WithLinger(rlock.DefaultWatchdogTimeout))), atMost)
	in = w.startWaiting(t, java, name)
	released := unlock(t, goes, name)
	require.Less(t, await(t, in, atMost).ended.Sub(released.began), late)
	unlock(t, java, name)
}
