package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TestOnCluster: any node's address is enough to see all nodes' locks and waiters.
func TestOnCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	addrs := cluster.Addrs()
	holds, waits := newLocks(t, cluster.Client(t)), newLocks(t, cluster.Client(t))
	unlocks := make(map[string]rlock.UnlockFunc)
	for _, name := range []string{"a", "b", "c", "{d}"} {
		ctx, unlock := lock(t.Context(), t, holds.Mutex(name))
		unlocks[name] = unlock
		v, _ := showJSON(t, addrs[0], name)
		require.Equal(t, rlock.Owner(ctx), v.Holders[0].Owner)
	}
	waitFor(t, waits, waits.Mutex("b"))
	redistest.Eventually(t, patience, func() bool {
		v, _ := showJSON(t, addrs[0], "b")
		return v.Processes == 1 && len(v.Queue) == 1
	}, "one waits")
	require.Regexp(t, `^b\t1\tmutex\t`+holds.ID(), call(t, addrs[2], "top").out)

	const all = `^a\t.*\nb\t.*\nc\t.*\n\{d\}\tmutex\t.*\n$`
	r := call(t, addrs[1], "ls")
	require.Regexp(t, all, r.out)
	require.Empty(t, r.err)

	var sharded []string
	for _, f := range diagnosis(t, call(t, addrs[0], "doctor", "-json")) {
		require.Len(t, f.Servers, 3, f)
		require.NotEqual(t, "bad", f.Status, f)
		if f.Found == "sharded" {
			sharded = f.Servers
		}
	}
	require.ElementsMatch(t, addrs[:3], sharded)

	// watch cannot listen on a sharded channel: it only polls.
	w := start(t, nil, "watch", "-redis", addrs[0], "-every", "50ms", "a")
	w.saw("held by " + holds.ID())
	require.NoError(t, unlocks["a"]())
	w.saw("released by " + holds.ID())
	w.signal(syscall.SIGINT)
	require.Zero(t, w.rest().code)
	require.Zero(t, call(t, addrs[0], "unlock", "-force", "-yes", "c").code)

	// A node that is down does not affect the others.
	cluster.Nodes()[3].Kill()
	require.Regexp(t, `^b\t.*\n\{d\}\tmutex\t.*\n$`, call(t, addrs[1], "ls").out)
	require.Regexp(t, `^b\t1\tmutex\t`+holds.ID(), call(t, addrs[2], "top").out)
	require.Zero(t, call(t, addrs[1], "doctor").code)
}

// A cluster can have plain locks with braces in the name that other kinds cannot use. They are shown and freed.
func TestOddBracesOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	addr := cluster.Addrs()[0]
	holds, waits := newLocks(t, cluster.Client(t)), newLocks(t, cluster.Client(t))
	for _, name := range []string{"a{", "{}x", "}{", "{a"} {
		require.Equal(t, exitFree, call(t, addr, "show", name).code, name)
		ctx, unlock := lock(t.Context(), t, holds.Mutex(name))
		waits := waitFor(t, waits, waits.Mutex(name))
		v, code := showJSON(t, addr, name)
		require.Zero(t, code, name)
		require.Equal(t, rlock.Owner(ctx), v.Holders[0].Owner)
		require.Equal(t, -1, v.Processes, "its channel is in another slot, which is not queried")
		w := start(t, nil, "watch", "-redis", addr, "-every", "50ms", name)
		w.saw("held by " + rlock.Owner(ctx))
		w.signal(syscall.SIGINT)
		require.Zero(t, w.rest().code)
		require.Equal(t, "0\n", call(t, addr, "token", name).out)
		r := call(t, addr, "unlock", "-force", "-yes", name)
		require.Zero(t, r.code, r.err)
		require.Contains(t, r.out, rlock.Owner(ctx))
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		<-waits
	}
}
