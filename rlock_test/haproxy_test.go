//go:build servers

package rlock_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/conformance"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// These tests need HAProxy on PATH, so they have a build tag; make test-servers runs them with SERVERS=haproxy.

// G1 to G9, as far as a single lock can show them, for each kind of lock behind HAProxy.
func TestHAProxyConformance(t *testing.T) {
	redistest.Parallel(t)
	conform(t, standalone(haproxy(t, redistest.Start(t))), conformance.PlainLock)
}

// haproxy returns the address of a HAProxy that has checked the servers: until then it leads to each in turn.
func haproxy(t *testing.T, servers ...*redistest.Server) (addr string) {
	addr = redistest.StartHAProxy(t, servers...)
	redistest.Eventually(t, testTimeout, func() bool {
		for range 2 * len(servers) {
			c, err := rlock.Open("redis://"+addr, unhurried(t))
			if err != nil {
				return false
			}
			err = c.Mutex("checked").TryDo(t.Context(), 0, nothing)
			c.Close()
			if err != nil {
				return false
			}
		}
		return true
	}, "HAProxy leads to a master")
	return addr
}

// G1, G2 and G4 over an orderly failover: HAProxy ends the sessions of the former master, so the holder and the waiters of rueidis clients
// follow. The hold stays, nobody else gets in, and the waiters are woken by the unlock.
func TestHAProxyFailover(t *testing.T) {
	redistest.Parallel(t)
	one, two := redistest.Start(t), redistest.Start(t)
	do := func(of rueidis.Client, cmd ...string) string {
		text := answer(of.Do(t.Context(), of.B().Arbitrary(cmd...).Build()).ToString()).ok(t)
		return text
	}
	replicates := func(of rueidis.Client, says string) func() bool {
		return func() bool { return strings.Contains(do(of, "INFO", "replication"), says) }
	}
	first, second := one.Client(t), two.Client(t)
	host, port, _ := net.SplitHostPort(one.Addr())
	do(second, "REPLICAOF", host, port)
	redistest.Eventually(t, testTimeout, replicates(first, "state=online"), "the replica is there")
	addr := haproxy(t, one, two)
	a, b := newClient(t, redistest.Dial(t, addr)), newClient(t, redistest.Dial(t, addr))
	handles := func(c *rlock.Client) map[string]rlock.Locker {
		rw := c.RWMutex("rw")
		return map[string]rlock.Locker{
			"plain": c.Mutex("plain"), "fenced": c.FencedMutex("fenced"), "fair": c.FairMutex("fair"), "write": rw.Write(),
		}
	}
	held, waits := make(map[string]lockResult), make(map[string]pendingLock)
	for kind, l := range handles(a) {
		held[kind] = locked(t, l)
	}
	for kind, l := range handles(b) {
		waits[kind] = lockAsync(t, l)
	}
	listens := func(to rueidis.Client) func() bool {
		return func() bool { return strings.Contains(do(to, "CLIENT", "LIST", "TYPE", "PUBSUB"), "name=rlock:"+b.ID()) }
	}
	redistest.Eventually(t, testTimeout, listens(first), "they wait")

	do(first, "FAILOVER")
	redistest.Eventually(t, testTimeout, replicates(second, "role:master"), "failover")
	redistest.Eventually(t, testTimeout, listens(second), "they listen to the new master")
	require.False(t, listens(first)())
	redistest.Eventually(t, testTimeout, func() bool {
		_, _, err := a.Mutex("other").TryLock(t.Context(), time.Second)
		return err == nil
	}, "the holder's client follows, too")
	for kind, a := range held {
		require.NoError(t, a.ctx.Err(), kind)
		waits[kind].stillWaits(t)
		require.NoError(t, a.unlock(), kind)
	}
	for _, wait := range waits {
		wait.getAndUnlock(t, wakeTimeout)
	}
}
