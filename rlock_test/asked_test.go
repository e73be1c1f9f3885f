package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// awaitAsked waits until a waiter has asked the hold that ctx carries.
func awaitAsked(t testing.TB, ctx context.Context) {
	t.Helper()
	asked := rlock.Asked(ctx)
	require.NotNil(t, asked, "the hold was taken with WithAsked")
	select {
	case <-asked:
	case <-time.After(testTimeout):
		require.FailNow(t, "no waiter has asked")
	}
}

// notAsked requires that no waiter has asked so far.
func notAsked(t testing.TB, ctx context.Context) {
	t.Helper()
	asked := rlock.Asked(ctx)
	require.NotNil(t, asked, "the hold was taken with WithAsked")
	select {
	case <-asked:
		require.FailNow(t, "a waiter has asked")
	default:
	}
}

// ear returns the channel on which a Client receives messages from other Clients.
func ear(c *rlock.Client) string { return "rlock_client:{" + c.ID() + "}" }

// earsOf waits until the Clients listen on their channels.
func (b fixture) earsOf(t testing.TB, all ...*rlock.Client) {
	t.Helper()
	for _, c := range all {
		awaitEar(t, b.rdb, c)
	}
}

// awaitEar waits until one connection, to any node, has subscribed to the channel of c.
func awaitEar(t testing.TB, rdb rueidis.Client, c *rlock.Client) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool {
		n := int64(0)
		for _, node := range rdb.Nodes() {
			for _, kind := range []string{"NUMSUB", "SHARDNUMSUB"} {
				if counts, err := node.Do(context.Background(), node.B().Arbitrary("PUBSUB", kind, ear(c)).Build()).AsIntMap(); err == nil {
					n += counts[ear(c)]
				}
			}
		}
		return n == 1
	}, "the Client listens on its channel")
}

// awaitQueued waits until somebody is in the queue of a lock in Redis.
func (b fixture) awaitQueued(t testing.TB, name string) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_queue:{"+name+"}") }, "somebody is in the queue of "+name)
}

// A writer that waits for readers of several processes asks all of them, also those that have joined another one.
func TestAskedOfReaders(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		clients := []*rlock.Client{b.Client, newClient(t, b.rdb), newClient(t, b.rdb)}
		var readers []lockResult
		for _, c := range clients {
			for range 2 { // the second reader joins the first
				readers = append(readers, locked(t, c.RWMutex(b.name, rlock.WithAsked()).Read()))
			}
		}
		b.earsOf(t, clients...)
		for _, r := range readers {
			notAsked(t, r.ctx)
		}
		writer := lockAsync(t, newClient(t, b.rdb).RWMutex(b.name).Write())
		for _, r := range readers {
			awaitAsked(t, r.ctx)
			require.NoError(t, r.unlock())
		}
		got := writer.get(t, testTimeout)
		require.NoError(t, got.err)
		require.Nil(t, rlock.Asked(got.ctx), "the writer has no WithAsked")
		require.NoError(t, got.unlock())
	})
}

// Readers of one process do not ask each other. A writer asks them, and is asked by the next reader.
func TestAskedOfReadersAndWriters(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		rw := newFixture(t).RWMutex(redistest.Name(t), rlock.WithAsked())
		one, two := locked(t, rw.Read()), locked(t, rw.Read())
		notAsked(t, one.ctx)
		require.NoError(t, two.unlock())
		writer := lockAsync(t, rw.Write())
		awaitAsked(t, one.ctx)
		require.NoError(t, one.unlock())
		w := writer.get(t, testTimeout)
		require.NoError(t, w.err)
		notAsked(t, w.ctx)
		reader := lockAsync(t, rw.Read())
		awaitAsked(t, w.ctx)
		require.NoError(t, w.unlock())
		reader.getAndUnlock(t, testTimeout)
	})
}

// A reader that waits to become the writer asks the other readers, and never itself, even if it finds its own traces when it polls for
// waiters.
func TestAskedByAnUpgrade(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		up := b.RWMutex(b.name, rlock.WithAsked()).Upgradeable()
		hold, other := locked(t, up), locked(t, newClient(t, b.rdb).RWMutex(b.name, rlock.WithAsked()).Read())
		notAsked(t, hold.ctx)
		upgraded := async(func() error { return up.UpgradeDo(hold.ctx, nothing) })
		awaitAsked(t, other.ctx)
		redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "the upgrade is noted in Redis")
		sleep(shortWatchdog/3 + 2*time.Second) // time for the holder to poll
		notAsked(t, hold.ctx)
		require.NoError(t, other.unlock())
		require.NoError(t, within(t, upgraded, testTimeout))
		another := lockAsync(t, up)
		awaitAsked(t, hold.ctx)
		require.NoError(t, hold.unlock())
		another.getAndUnlock(t, testTimeout)
	})
}

// A section that holds several locks, one with a fixed lease, is asked as soon as a waiter wants any of them, at each of its levels.
func TestAskedForOneOfSeveral(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		other := newClient(t, b.rdb)
		all := rlock.All(
			b.Mutex(b.name+":1", rlock.WithAsked()), b.FairMutex(b.name+":2", rlock.WithAsked()),
			b.Mutex(b.name+":3", rlock.WithAsked(), rlock.WithLease(time.Hour)), b.Mutex(b.name+":4"),
		)
		for _, l := range []*rlock.Mutex{other.Mutex(b.name + ":1"), other.FairMutex(b.name + ":2"), other.Mutex(b.name + ":3")} {
			section := locked(t, all)
			inner := locked(t, under{section.ctx, b.Mutex(b.name + ":5")})
			b.earsOf(t, b.Client)
			notAsked(t, section.ctx)
			notAsked(t, inner.ctx)
			waiter := lockAsync(t, l)
			awaitAsked(t, section.ctx)
			awaitAsked(t, inner.ctx)
			require.NoError(t, inner.unlock())
			require.NoError(t, section.unlock())
			waiter.getAndUnlock(t, testTimeout)
		}
	})
}

// A waiter that gives up leaves its place in the queue to one like it. One with WithAsked takes a place of its own, and can be asked.
func TestAskedInheritsNoPlace(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		hold := locked(t, newClient(t, b.rdb).Mutex(b.name))
		first := lockAsync(t, b.Mutex(b.name))
		b.awaitQueued(t, b.name)
		second := lockAsync(t, b.Mutex(b.name, rlock.WithAsked()))
		redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 2 }, "both wait")
		first.cancel()
		require.ErrorIs(t, first.get(t, testTimeout).err, context.Canceled)
		b.awaitQueued(t, b.name)
		require.NoError(t, hold.unlock())
		got := second.get(t, testTimeout)
		require.NoError(t, got.err)
		notAsked(t, got.ctx)
		require.NoError(t, got.unlock())
	})
}

// Either all members of a quorum can be asked, or none. Permits cannot be asked for.
func TestAskedNeedsItsLock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		two, three := newClient(t, b.rdb), newClient(t, b.rdb)
		_, _, err := rlock.Quorum(b.Mutex("q1", rlock.WithAsked()), two.Mutex("q2"), three.Mutex("q3")).Lock(t.Context())
		require.ErrorContains(t, err, "give it to all members")
		_, _, err = b.PermitSemaphore("p", rlock.WithAsked()).Acquire(t.Context())
		require.ErrorContains(t, err, "WithAsked is for locks")
	})
}
