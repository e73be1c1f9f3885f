//go:build interop

package rlock_test

import (
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TestInteropFailover: locks and waiters of both sides survive a replica's promotion, if it had the locks, and the unlock wakes the other side.
func TestInteropFailover(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	w := &world{setting: setting{cluster: true, version: settings(t)[0].version}, addrs: cluster.Addrs()}
	rdb := cluster.Client(t)
	w.watch = fixture{Client: newClient(t, rdb, w.options(0)), rdb: rdb}
	w.java = w.startJava(t, rlock.DefaultWatchdogTimeout)

	name := "{tag}" + redistest.Name(t)
	slot := cluster.Slot(t, name)
	type pair struct {
		name, channel  string // the channel is the one that Java listens to
		holder, waiter actor
		in             <-chan event
	}
	var pairs []*pair
	for _, kind := range []string{"", "fair"} {
		for _, s := range ways(w.watch.Client, w.java) {
			p := &pair{name: name + kind + s.way[:2], holder: s.as(kind).holder(), waiter: s.as(kind).waiter()}
			lock(t, p.holder, p.name, 0)
			p.in = w.joins(t, p.waiter, p.name)
			p.channel = unlockChannel(p.name)
			if kind == "fair" {
				p.channel += ":" + w.entries(t, p.name)[0]
			}
			pairs = append(pairs, p)
		}
	}
	former := cluster.Owner(t, slot)
	require.NoError(t, single(t, former).Dedicated(func(c rueidis.DedicatedClient) error {
		require.NoError(t, c.Do(t.Context(), c.B().Set().Key("{tag}").Value("").Build()).Error())
		answer(c.Do(t.Context(), c.B().Wait().Numreplicas(1).Timeout(testTimeout.Milliseconds()).Build()).AsInt64()).is(t, 1, "its replica has all")
		return nil
	}))
	former.Kill()
	cluster.AwaitOK(t)
	now := single(t, cluster.Owner(t, slot))
	for _, p := range pairs {
		if javaOf(p.waiter) != nil { // it misses what is published before
			redistest.Eventually(t, testTimeout, func() bool {
				got := answer(now.Do(t.Context(), now.B().PubsubShardnumsub().Channel(p.channel).Build()).ToArray()).ok(t)
				return answer(got[1].AsInt64()).ok(t) > 0
			}, "it is subscribed again")
		}
		unlocked := unlock(t, p.holder, p.name)
		requireIn(t, soon, unlocked.began, await(t, p.in, testTimeout), p.name)
		unlock(t, p.waiter, p.name)
	}
}

// single is a client of one server of a cluster.
func single(t testing.TB, s *redistest.Server) rueidis.Client {
	t.Helper()
	return s.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
}
