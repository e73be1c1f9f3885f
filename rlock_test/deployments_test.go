package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Locks are renewed, re-entered and passed on to waiters on Sentinel and on a cluster, also with names that contain braces.
func TestSentinelAndCluster(t *testing.T) {
	sentinel, cluster := redistest.SharedSentinel(t), redistest.SharedCluster(t)
	redistest.Parallel(t)
	for name, dial := range map[string]func(*testing.T) rueidis.Client{
		"sentinel":                   func(t *testing.T) rueidis.Client { return sentinel.Client(t) },
		"cluster":                    func(t *testing.T) rueidis.Client { return cluster.Client(t) },
		"cluster with plain pub/sub": func(t *testing.T) rueidis.Client { return cluster.Client(t) },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			rdb := dial(t)
			b, plain := fixture{rdb: rdb, name: redistest.Name(t)}, strings.Contains(name, "plain")
			one := newClient(t, rdb, rlock.Options{WatchdogTimeout: 15 * time.Second, PlainPubSub: plain})
			two := newClient(t, rdb, rlock.Options{PlainPubSub: plain})
			var keys []string
			for _, odd := range []string{"%s:a", "%s:b", "%s:c", "%s:d", "{tag}%s", "x{}%s", "{%s", "}{%s", "%s}"} {
				keys = append(keys, fmt.Sprintf(odd, b.name))
			}
			var holds, levels []lockResult
			var waiters []pendingLock
			for i, key := range keys {
				holds = append(holds, locked(t, one.Mutex(key)))
				levels = append(levels, locked(t, under{holds[i].ctx, one.Mutex(key)}))
				waiters = append(waiters, lockAsync(t, two.Mutex(key)))
				redistest.Eventually(t, 10*time.Second, func() bool { return waiting(t) == i+1 }, "the goroutine waits")
			}
			if !plain { // by which renewals differ in nothing
				b.awaitRenewals(t, keys...)
			}
			for i, key := range keys {
				require.NoError(t, holds[i].ctx.Err(), key)
				waiters[i].stillWaits(t)
				require.NoError(t, levels[i].unlock(), key)
				require.NoError(t, holds[i].unlock(), key)
				waiters[i].getAndUnlock(t, soon)
				locked, err := one.Mutex(key).IsLocked(context.Background())
				require.NoError(t, err, key)
				require.False(t, locked, key)
			}
		})
	}
}

// The first Lock on a cluster asks for the version of Redis first. If it is cancelled meanwhile, it returns the same errors as any
// other Lock.
func TestFirstLockOnAClusterIsCancelled(t *testing.T) {
	cluster := redistest.SharedCluster(t)
	redistest.Parallel(t)
	name := redistest.Name(t)
	proxies := proxiesOf(t, cluster)
	c := newHastyClient(t, cluster.Client(t, redistest.Via(proxies...)))
	asks := make(chan error, 1)
	var silent atomic.Bool
	silent.Store(true)
	for _, p := range proxies {
		p.OnRequest(func(cmd []string) redistest.Action {
			if !silent.Load() {
				return redistest.Pass
			}
			if cmd[0] == "HELLO" { // says the version
				select {
				case asks <- nil:
				default:
				}
			}
			return redistest.Drop
		})
	}
	p := lockAsync(t, c.Mutex(name))
	require.NoError(t, within(t, asks, testTimeout), "the first Lock asks for the version")
	p.cancel()
	err := p.get(t, soon).err
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.ErrorIs(t, err, context.Canceled)

	_, _, err = c.Mutex(name).TryLock(context.Background(), 100*time.Millisecond)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's ctx has no deadline")
	silent.Store(false)
	for _, p := range proxies {
		p.CutAll()
	}
	redistest.Eventually(t, 20*time.Second, func() bool {
		return c.Mutex(name).Do(context.Background(), nothing) == nil
	}, "Lock works once the network does")
}

// From the first call on, a lock needs only the node of its slot.
func TestFirstLockOnAClusterWithADeadNode(t *testing.T) {
	redistest.Parallel(t)
	// Otherwise the live nodes refuse all commands once they notice the dead one, after 1.5 s.
	cluster := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	rdb := cluster.Client(t)
	nodes := cluster.Nodes()
	name := redistest.Name(t)
	for cluster.Owner(t, cluster.Slot(t, name)) != nodes[0] {
		name = redistest.Name(t)
	}
	nodes[1].Pause()
	defer nodes[1].Resume()
	for range 8 { // a Client that asked a random node would hit the dead one with probability 1 - (2/3)^8
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		require.NoError(t, newClient(t, rdb).Mutex(name).Do(ctx, nothing))
		cancel()
	}
}

// A fenced lock and a fenced writer have two keys. A name that would put these keys in different slots is refused.
func TestFencedNamesOnACluster(t *testing.T) {
	cluster := redistest.SharedCluster(t)
	redistest.Parallel(t)
	c := newClient(t, cluster.Client(t))
	for odd, fits := range map[string]bool{"%s": true, "a:{%s}:c": true, "a{%s": false, "{%s": false, "a{}%s": false} {
		name := fmt.Sprintf(odd, redistest.Name(t))
		for _, m := range []*rlock.Mutex{c.FencedMutex(name), c.FencedRWMutex(name).Write()} {
			err := m.Do(context.Background(), nothing)
			if fits {
				require.NoError(t, err, name)
			} else {
				require.ErrorContains(t, err, "another slot", name)
				_, _, err = m.TryLock(context.Background(), 0)
				require.ErrorContains(t, err, "another slot", name)
			}
			answer(m.IsLocked(context.Background())).is(t, false, name)
		}
		for kind, m := range map[string]*rlock.Mutex{
			"plain": c.Mutex(name), "fenced": c.FencedMutex(name), "fair": c.FairMutex(name), "read": c.RWMutex(name).Read(),
			"fenced write": c.FencedRWMutex(name).Write(),
		} {
			_, err := m.Info(context.Background())
			_, err2 := m.ForceUnlock(context.Background())
			if fits || kind == "plain" {
				require.NoError(t, errors.Join(err, err2), kind+" "+name)
			} else {
				require.ErrorContains(t, err, "another slot", kind+" "+name)
				require.ErrorContains(t, err2, "another slot", kind+" "+name)
			}
		}
	}
}

// balancer leads each new connection to the current target, and leaves old ones alone, as a Kubernetes Service does.
func balancer(t *testing.T, first string) (addr string, lead func(to string)) {
	var target atomic.Pointer[string]
	target.Store(&first)
	l := answer(net.Listen("tcp4", "127.0.0.1:0")).ok(t)
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
		text := answer(of.Do(context.Background(), of.B().Arbitrary(cmd...).Build()).ToString()).ok(t)
		return text
	}
	first, second := one.Client(t), two.Client(t)
	host, port, _ := net.SplitHostPort(one.Addr())
	do(second, "REPLICAOF", host, port)
	redistest.Eventually(t, testTimeout, func() bool {
		return strings.Contains(do(first, "INFO", "replication"), "state=online")
	}, "the replica is there")
	addr, lead := balancer(t, one.Addr())
	c, err := rlock.Open(patiently("redis://"+addr), unhurried(t))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	nothing := func(context.Context) error { return nil }
	var all sync.WaitGroup
	for i := range 200 { // so that rueidis has all its connections
		all.Go(func() { _ = c.Mutex(fmt.Sprint("warm:", i)).Do(context.Background(), nothing) })
	}
	all.Wait()
	_, _, err = newClient(t, first).Mutex("taken", rlock.WithLease(time.Hour)).Lock(context.Background())
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
	answer(newClient(t, second).Mutex("taken").ForceUnlock(context.Background())).is(t, true)
	require.NoError(t, within(t, waits, wakeTimeout))
}
