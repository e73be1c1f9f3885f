package main

import (
	"context"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
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

	// It hears of a forced unlock, by any node.
	var nodes []rueidis.Client // replicas, too: the program may listen there
	for _, s := range cluster.Nodes() {
		nodes = append(nodes, s.Client(t, redistest.Single))
	}
	patterns := func() (all int64) {
		for _, node := range nodes {
			n, err := node.Do(t.Context(), node.B().PubsubNumpat().Build()).AsInt64()
			require.NoError(t, err)
			all += n
		}
		return all
	}
	redistest.Eventually(t, patience, func() bool { return patterns() == 0 }, "the last one has gone")
	w = start(t, nil, "watch", "-redis", addrs[0], "-every", "50ms", "c")
	w.saw("held by " + holds.ID())
	redistest.Eventually(t, patience, func() bool { return patterns() > 0 }, "it listens")
	require.Zero(t, call(t, addrs[0], "unlock", "-force", "-yes", "c").code)
	w.saw("forced open: no longer held by " + holds.ID())
	w.signal(syscall.SIGINT)
	require.Zero(t, w.rest().code)

	// A node that is down does not affect the others.
	cluster.Nodes()[3].Kill()
	require.Regexp(t, `^b\t.*\n\{d\}\tmutex\t.*\n$`, call(t, addrs[1], "ls").out)
	require.Regexp(t, `^b\t1\tmutex\t`+holds.ID(), call(t, addrs[2], "top").out)
	require.Zero(t, call(t, addrs[1], "doctor").code)
}

// With cluster-require-full-coverage no, a cluster says that it is well without a master: what is missing is said, and is a failure.
func TestAPartOfAClusterIsNoWhole(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "5000")
	stays, dies := cluster.Nodes()[0], cluster.Nodes()[2]
	at := func(s *redistest.Server) string {
		for i := 0; ; i++ {
			if name := "job" + strconv.Itoa(i); cluster.Owner(t, cluster.Slot(t, name)) == s {
				return name
			}
		}
	}
	c := cluster.Client(t)
	for _, s := range []*redistest.Server{stays, dies} {
		name := at(s)
		require.NoError(t, c.Do(t.Context(), c.B().Hset().Key(name).FieldValue().FieldValue("285475da-9152-4c83-822a-67ee2f116a79:54", "1").Build()).Error())
		require.NoError(t, c.Do(t.Context(), c.B().Pexpire().Key(name).Milliseconds(3_600_000).Build()).Error())
	}
	subscribe(t, stays, "redisson_lock__channel:{"+at(stays)+"}")
	addr := stays.Addr()
	require.Len(t, strings.Split(call(t, addr, "ls").out, "\n"), 2+1)
	dies.Kill()
	says := func(what string) {
		t.Helper()
		for _, args := range [][]string{{"ls"}, {"ls", "-json"}, {"top"}, {"top", "-json"}, {"deadlocks"}} {
			r := call(t, addr, args...)
			require.Equal(t, exitInternal, r.code, args)
			require.Contains(t, r.err, what, args)
			require.Regexp(t, `^(rlock: [^\n]*\n)+$`, r.err)
			require.Equal(t, args[0] != "deadlocks", strings.Contains(r.out, at(stays)), r.out)
			require.NotContains(t, r.err, addr+": ", "it answers")
		}
		// Of a lock at a node that answers, only the waiters are unknown.
		require.Zero(t, call(t, addr, "show", at(stays)).code)
		r := call(t, addr, "show", "{"+at(stays)+"}free")
		require.Equal(t, exitFree, r.code, r.err)
		require.Contains(t, r.out, "\nprocesses    unknown\n")
		r = call(t, addr, "doctor", "-json")
		require.Equal(t, exitFailed, r.code)
		all := diagnosis(t, r)
		found := foundBy("cluster", all)
		require.Len(t, found, 1)
		require.Equal(t, "bad", found[0].Status)
		require.Equal(t, "no master answers for 5462 of the 16384 slots", found[0].Found)
		require.Equal(t, []string{dies.Addr()}, found[0].Servers)
		for _, f := range foundBy("nodes", all) {
			require.Equal(t, []string{dies.Addr()}, f.Servers)
		}
	}
	says("missing: ")
	c = stays.Client(t, redistest.Single)
	redistest.Eventually(t, patience, func() bool {
		text, err := c.Do(t.Context(), c.B().ClusterInfo().Build()).ToString()
		return err == nil && strings.Contains(text, "cluster_state:ok") && strings.Contains(text, "cluster_slots_fail:5462")
	}, "the others notice, and call it ok")
	says("missing: the locks in 5462 of the cluster's 16384 slots")
}

// A silent node takes no time from what the others say.
func TestASilentNodeDoesNotSilenceTheOthers(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		all := []node{{"silent:1", nil}, {"b:1", nil}, {"c:1", nil}}
		failed := each(t.Context(), all, func(ctx context.Context, i int) error {
			if i == 0 {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		require.Len(t, failed, 1)
		require.EqualError(t, failed[0], "silent:1: no answer within "+nodeTime.String())
		require.Equal(t, "silent:1: no answer within "+nodeTime.String(), (&target{where: []string{"seed:1"}}).at(failed[0]).Error())
	})
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
