package rlock_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// balancer leads each new connection to the current target, and leaves old ones alone, as a Kubernetes Service does.
func balancer(t *testing.T, first string) (addr string, lead func(to string)) {
	var target atomic.Pointer[string]
	target.Store(&first)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp4", *target.Load())
			if err != nil {
				_ = client.Close()
				continue
			}
			for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
				go func() { // ends with either connection
					_, _ = io.Copy(to, from)
					_, _ = to.Close(), from.Close()
				}()
			}
		}
	}()
	return l.Addr().String(), func(to string) { target.Store(&to) }
}

// A Client made by Open leaves a master that has become a replica, with its calls and its subscriptions, though all its connections stay.
func TestOpenLeavesAFormerMaster(t *testing.T) {
	redistest.Parallel(t)
	one := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	two := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	do := func(of rueidis.Client, cmd ...string) string {
		text, err := of.Do(context.Background(), of.B().Arbitrary(cmd...).Build()).ToString()
		require.NoError(t, err)
		return text
	}
	first, second := one.Client(t), two.Client(t)
	host, port, _ := net.SplitHostPort(one.Addr())
	do(second, "REPLICAOF", host, port)
	redistest.Eventually(t, testTimeout, func() bool {
		return strings.Contains(do(first, "INFO", "replication"), "state=online")
	}, "the replica is there")
	addr, lead := balancer(t, one.Addr())
	c, err := rlock.Open("redis://"+addr, rlock.Options{})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	nothing := func(context.Context) error { return nil }
	var all sync.WaitGroup
	for i := range 200 { // so that rueidis has all its connections
		all.Go(func() { _ = c.Mutex(fmt.Sprint("warm:", i)).Do(context.Background(), nothing) })
	}
	all.Wait()
	_, _, err = newClient(t, first).Mutex("taken").Lock(context.Background())
	require.NoError(t, err)
	waits := make(chan error, 1)
	go func() { waits <- c.Mutex("taken").Do(context.Background(), nothing) }()
	listens := func(to rueidis.Client) bool {
		return strings.Contains(do(to, "CLIENT", "LIST", "TYPE", "PUBSUB"), "name=rlock:"+c.ID())
	}
	redistest.Eventually(t, testTimeout, func() bool { return listens(first) }, "it waits")

	do(first, "FAILOVER")
	redistest.Eventually(t, testTimeout, func() bool { return strings.Contains(do(second, "INFO", "replication"), "role:master") }, "failover")
	redistest.Eventually(t, testTimeout, func() bool { return strings.Contains(do(first, "INFO", "replication"), "role:slave") }, "demoted")
	lead(two.Addr())
	redistest.Eventually(t, testTimeout, func() bool { return c.Mutex("other").TryDo(context.Background(), 0, nothing) == nil }, "Locks work again")
	redistest.Eventually(t, testTimeout, func() bool { return listens(second) && !listens(first) }, "it listens to the new master")
	forced, err := newClient(t, second).Mutex("taken").ForceUnlock(context.Background())
	require.NoError(t, err)
	require.True(t, forced)
	require.NoError(t, within(t, waits, wakeTimeout))
}
