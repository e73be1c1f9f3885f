package rlock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G4: those whose ears are at a node that hangs, however many are asked there, delay no request for a lock that another process keeps.
func TestLingerBesideEarsThatHang(t *testing.T) {
	cluster := redistest.SharedCluster(t)
	redistest.Parallel(t)
	proxy, isAt, holders := earAtANodeThatHangs(t, cluster)
	waiter := newClient(t, cluster.Client(t, redistest.Via(proxy)))
	var names []string
	for i := 0; len(names) < 101; i++ {
		if name := fmt.Sprint(redistest.Name(t), i); !isAt(name) {
			names = append(names, name)
			lockAndUnlock(t, waiter.Mutex(name)) // it knows the scripts, and all nodes
		}
	}
	one, many := names[0], names[1:]
	for _, name := range many {
		keep(t, holders[true], holders[true].Mutex(name, rlock.WithLinger(long)))
	}
	lockAndUnlock(t, waiter.Mutex(one))
	keep(t, holders[false], holders[false].Mutex(one, rlock.WithLinger(long)))
	proxy.BlackHole(true)
	waits := make([]pendingLock, len(many))
	for i, name := range many {
		waits[i] = lockAsync(t, waiter.Mutex(name))
	}
	redistest.Eventually(t, testTimeout, func() bool { return waiter.Stats().Waiting == len(many) }, "they wait")
	began := time.Now()
	got := lockAsync(t, waiter.Mutex(one)).gets(t, testTimeout)
	require.Less(t, redistest.Ran(t, began, got.at), 3*time.Second)
	require.NoError(t, got.unlock())
	proxy.BlackHole(false)
	for _, w := range waits {
		w.getAndUnlock(t, testTimeout)
	}
}

// G4: the other readers of locks that a reader has whose ear is at a node that hangs, however many, are asked for their other locks.
func TestAskedBesideEarsThatHang(t *testing.T) {
	cluster := redistest.SharedCluster(t)
	redistest.Parallel(t)
	proxy, isAt, readers := earAtANodeThatHangs(t, cluster)
	writer := newClient(t, cluster.Client(t, redistest.Via(proxy)))
	var names []string
	for i := 0; len(names) < 201; i++ {
		if name := fmt.Sprint(redistest.Name(t), i); !isAt(name) {
			names = append(names, name)
			lockAndUnlock(t, writer.RWMutex(name).Write()) // it knows the scripts, and all nodes
		}
	}
	one, many := names[0], names[1:]
	var holds []lockResult
	for _, name := range many {
		for _, c := range readers {
			holds = append(holds, locked(t, c.RWMutex(name, rlock.WithAsked()).Read()))
		}
	}
	asked := locked(t, readers[false].RWMutex(one, rlock.WithAsked()).Read())
	proxy.BlackHole(true)
	var waits []pendingLock
	for _, name := range many {
		waits = append(waits, lockAsync(t, writer.RWMutex(name).Write()))
	}
	redistest.Eventually(t, testTimeout, func() bool { return writer.Stats().Waiting == len(many) }, "they wait")
	began := time.Now()
	waits = append(waits, lockAsync(t, writer.RWMutex(one).Write()))
	awaitAsked(t, asked.ctx)
	require.Less(t, redistest.Ran(t, began, time.Now()), 3*time.Second)
	proxy.BlackHole(false)
	for _, h := range append(holds, asked) {
		require.NoError(t, h.unlock())
	}
	for _, w := range waits {
		w.getAndUnlock(t, testTimeout)
	}
}

// earAtANodeThatHangs puts a proxy before a node, which may hang, and makes two Clients, by whether their ears are there.
func earAtANodeThatHangs(t *testing.T, cluster *redistest.Cluster) (
	proxy *redistest.Proxy, isAt func(key string) bool, clients map[bool]*rlock.Client,
) {
	t.Helper()
	hung := cluster.Nodes()[0]
	isAt = func(key string) bool { return cluster.Owner(t, cluster.Slot(t, key)) == hung }
	clients = make(map[bool]*rlock.Client)
	for len(clients) < 2 {
		c := newClient(t, cluster.Client(t))
		clients[isAt(ear(c))] = c
	}
	return redistest.StartProxy(t, hung.Addr()), isAt, clients
}
