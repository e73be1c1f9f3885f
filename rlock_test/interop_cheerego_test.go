//go:build interop

package rlock_test

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// TestInteropCheerego proves what docs/beside-other-libraries.md says of cheerego/go-redisson.
func TestInteropCheerego(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]func(t *testing.T, w *world, cheerego *javaThread, name string){
		"it holds, Go sleeps until the lease ends": cheeregoHolds,
		"Go holds, it gives up":                    cheeregoWaits,
		"inner unlock":                             cheeregoInnerUnlock,
		"mutex":                                    cheeregoMutex,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newGoWorld(t, settings(t)[0]) // its own, since refusals are counted
			test(t, w, w.startCheerego(t).thread(), redistest.Name(t))
		})
	}
}

func (w *world) startCheerego(t testing.TB) *redisson {
	t.Helper()
	program := filepath.Join("others", "cheerego", "target", "cheerego")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: %s", err, makeInterop)
	}
	return startPeer(t, "cheerego", exec.Command(program, w.addrs...))
}

// takes gets cheerego's lock in one attempt.
func (j *javaThread) takes(t testing.TB, name string, lease time.Duration) {
	t.Helper()
	require.Equal(t, "true", j.ask(t, "trylock", url.QueryEscape(name), "0", ms(lease)))
}

// Its unlock is announced on another channel.
func cheeregoHolds(t *testing.T, w *world, cheerego *javaThread, name string) {
	waiter := newGoActor(w.watch.Client)
	began := time.Now()
	cheerego.takes(t, name, shortLease)
	waiter.tryInVain(t, name)
	in := w.startWaiting(t, waiter, name)
	ends := time.Now().Add(w.watch.pttl(t, name))
	require.NoError(t, cheerego.unlock(t, name).err)
	took := await(t, in, shortLease+5*time.Second).ended
	require.Greater(t, took.Sub(began), shortLease-100*time.Millisecond)
	require.Less(t, took.Sub(ends), late)
	unlock(t, waiter, name)
}

// Its waiters ask again only when a message arrives on that channel, so they never get a lock that another library unlocked.
func cheeregoWaits(t *testing.T, w *world, cheerego *javaThread, name string) {
	holder := newGoActor(w.watch.Client)
	lock(t, holder, name, 0)
	cheerego.tryInVain(t, name)
	require.Equal(t, "false", cheerego.ask(t, "trylock", url.QueryEscape(name), "-1"), "which is its Lock")
	before := w.refusals(t)
	in := cheerego.of.send(t, cheerego.name, "trylock", url.QueryEscape(name), "3000")
	redistest.Eventually(t, 10*time.Second, func() bool { return w.refusals(t) > before }, "it was refused")
	unlock(t, holder, name)
	require.False(t, w.watch.exists(t, name))
	require.Equal(t, "false", cheerego.of.await(t, in).value)
	require.False(t, w.watch.exists(t, name))
}

// It gives nanoseconds to Redis, which wants milliseconds.
func cheeregoInnerUnlock(t *testing.T, w *world, cheerego *javaThread, name string) {
	for range 2 {
		cheerego.takes(t, name, time.Minute)
	}
	require.NoError(t, cheerego.unlock(t, name).err)
	require.Greater(t, w.watch.pttl(t, name), 347*24*time.Hour)
	newGoActor(w.watch.Client).tryInVain(t, name)
	require.NoError(t, cheerego.unlock(t, name).err)
	require.False(t, w.watch.exists(t, name))
}

// Its Mutex is a text, which is no lock for this library, and its unlock deletes any key.
func cheeregoMutex(t *testing.T, w *world, cheerego *javaThread, name string) {
	require.Equal(t, "true", cheerego.ask(t, "mutex.trylock", url.QueryEscape(name), "0", "60000"))
	_, _, err := w.watch.Mutex(name).TryLock(t.Context(), 0)
	require.ErrorContains(t, err, "not a lock")
	require.NoError(t, cheerego.do(t, "mutex.unlock", url.QueryEscape(name)).err)

	holder := newGoActor(w.watch.Client)
	lock(t, holder, name, 0)
	require.Equal(t, "false", cheerego.ask(t, "mutex.trylock", url.QueryEscape(name), "0", "60000"))
	require.NoError(t, cheerego.do(t, "mutex.unlock", url.QueryEscape(name)).err)
	require.False(t, w.watch.exists(t, name))
	holder.requireNotHeld(t, holder.unlock(t, name).err)
}
