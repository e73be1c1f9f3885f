package rlock_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// long is a WithLinger that does not end within a test.
const long = rlock.DefaultWatchdogTimeout * 10

// lockAndUnlock locks and unlocks.
func lockAndUnlock(t testing.TB, l locker) (ctx context.Context) {
	t.Helper()
	ctx, unlock := enter(t, context.Background(), l)
	require.NoError(t, unlock())
	return ctx
}

// keep locks and unlocks until the Client keeps the lock: it does once its ear listens, if nobody has just asked for
// the lock.
func keep(t testing.TB, c *rlock.Client, l rlock.Locker) {
	t.Helper()
	before := c.Stats().Idle
	redistest.Eventually(t, testTimeout, func() bool {
		lockAndUnlock(t, l)
		return c.Stats().Idle > before
	}, "it is kept")
}

// lockHandles are handles of all kinds, and with options, on a lock of one owner at a time.
var lockHandles = map[string]func(c *rlock.Client, name string) rlock.Locker{
	"mutex":   func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) },
	"fenced":  func(c *rlock.Client, name string) rlock.Locker { return c.FencedMutex(name) },
	"fair":    func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) },
	"lease":   func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithLease(time.Minute)) },
	"maxhold": func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithMaxHold(time.Minute)) },
	"minhold": func(c *rlock.Client, name string) rlock.Locker {
		return c.Mutex(name, rlock.WithMinHold(time.Millisecond))
	},
	"grace":   func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithGrace(time.Minute)) },
	"asked":   func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithAsked()) },
	"lingers": func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithLinger(long)) },
	"all":     func(c *rlock.Client, name string) rlock.Locker { return rlock.All(c.Mutex(name), c.Mutex(name+":2")) },
}

// A kept lock costs no command, and belongs to the process in Redis. It is free d after its last use.
func TestLinger(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		var paths []rlock.Path
		b.Client = newClient(t, s.Client(t), rlock.Options{Trace: &rlock.Trace{
			Acquired: func(_ context.Context, info rlock.AcquiredInfo) { paths = append(paths, info.Path) },
		}})
		const d = time.Second
		m := b.Mutex(b.name, rlock.WithLinger(long))
		keep(t, b.Client, m)
		require.True(t, b.exists(t, b.name))
		before, kept := redistest.Commands(t, b.rdb), b.Stats().Kept
		for range 49 {
			lockAndUnlock(t, m)
		}
		last := locked(t, m)
		owner := rlock.Owner(last.ctx)
		require.NoError(t, last.unlock())
		after := redistest.Commands(t, b.rdb)
		require.Equal(t, before["evalsha"], after["evalsha"], "a kept lock must cost no command")
		require.Equal(t, kept+50, b.Stats().Kept)
		require.Equal(t, rlock.PathKept, paths[len(paths)-1])
		require.Equal(t, map[string]int64{owner: 1}, b.fields(t, b.name))
		require.Zero(t, b.Stats().Holds)
		require.Equal(t, 1, b.Stats().Idle)
		lockAndUnlock(t, b.Mutex(b.name, rlock.WithLinger(d))) // the last handle decides for how long
		began := time.Now()
		redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "it ends")
		require.GreaterOrEqual(t, time.Since(began), d-d/10)
		redistest.Eventually(t, testTimeout, func() bool { return b.Stats().Idle == 0 }, "Stats().Idle must return to 0")
	})
}

// A kept lock is renewed.
func TestLingerIsRenewed(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		m := b.Mutex(b.name, rlock.WithLinger(long))
		keep(t, b.Client, m)
		sleep(shortWatchdog + shortWatchdog/3)
		require.True(t, b.exists(t, b.name))
		kept := b.Stats().Kept
		lockAndUnlock(t, m)
		require.Equal(t, kept+1, b.Stats().Kept)
	})
}

// A TryLock without a wait announces that it was refused, and the next one finds the lock free.
func TestLingerAndTryLock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name, rlock.WithLinger(long))
		keep(t, b.Client, m)
		a := locked(t, tryFor{m, 0}) // its own process has it
		other := newClient(t, b.rdb).Mutex(b.name)
		refusalOf(t, other, 0)
		sleep(3 * time.Second) // a holder does not learn of every try
		require.NoError(t, a.unlock())
		require.True(t, b.exists(t, b.name), "that was when somebody was inside")
		refusalOf(t, other, 0)
		redistest.Eventually(t, soon, func() bool { return !b.exists(t, b.name) }, "given up")
		lockAndUnlock(t, other)
	})
}

// Other handles of the same name in the process get the kept lock on their own terms.
func TestLingerAndOtherHandles(t *testing.T) {
	handles := maps.Clone(lockHandles)
	handles["reader"] = func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Read() }
	handles["writer"] = func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Write() }
	handles["all of a lingering one"] = func(c *rlock.Client, name string) rlock.Locker {
		return rlock.All(c.Mutex(name, rlock.WithLinger(long)), c.Mutex(name+":2"))
	}
	for kind, of := range handles {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			b := newFixture(t)
			keep(t, b.Client, b.Mutex(b.name, rlock.WithLinger(long)))
			_, unlock, err := of(b.Client, b.name).TryLock(context.Background(), 0)
			require.NoError(t, err, "it is the process's own")
			waiter := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
			if kind != "reader" && kind != "writer" && kind != "fair" { // which wake no mutex
				b.awaitPlace(t, b.name)
			}
			waiter.stillWaits(t)
			require.NoError(t, unlock())
			waiter.getAndUnlock(t, testTimeout)
		})
	}
}

// WithLinger needs a time, and queues. TestOptionsInPairs has the options and kinds that it conflicts with.
func TestLingerRefusesOtherTerms(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		linger := rlock.WithLinger(time.Second)
		other, third := newClient(t, b.rdb), newClient(t, b.rdb)
		withoutLines := newClient(t, b.rdb, rlock.Options{HandOff: rlock.HandOff{Most: -1}})
		for want, l := range map[string]rlock.Locker{
			"WithLinger is 0s, want at least 1ms":           b.Mutex(b.name, rlock.WithLinger(0)),
			"WithLinger is -1ns, want at least 1ms":         b.Mutex(b.name, rlock.WithLinger(-1)),
			"cannot be kept when nobody holds it":           rlock.All(b.FairMutex(b.name, linger)),
			"WithLinger keeps a lock on the usual terms":    b.FencedMutex(b.name, linger, rlock.WithGrace(time.Second)),
			"has an option that is for locks of one server": rlock.Quorum(b.Mutex(b.name, linger), other.Mutex(b.name), third.Mutex(b.name)),
			"with Options.HandOff.Most of 0 or more":        withoutLines.Mutex(b.name, linger),
			"without Options.Replicas":                      newClient(t, b.rdb, rlock.Options{Replicas: 1}).Mutex(b.name, linger),
		} {
			_, _, err := l.Lock(context.Background())
			require.ErrorContains(t, err, want)
		}
		for _, o := range []rlock.Option{rlock.WithoutReentry(), rlock.WithAsked()} {
			keep(t, b.Client, b.Mutex(redistest.Name(t), linger, o))
		}
	})
}

// With WithAsked as well, a waiter of another process gets the kept lock, and a hold learns of the waiter.
func TestLingerAndAsked(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name, rlock.WithLinger(long), rlock.WithAsked())
		keep(t, b.Client, m)
		a := locked(t, m)
		notAsked(t, a.ctx)
		other := newClient(t, b.rdb).Mutex(b.name)
		refusalOf(t, other, 0)
		waiter := lockAsync(t, other)
		awaitAsked(t, a.ctx)
		waiter.stillWaits(t)
		require.NoError(t, a.unlock())
		waiter.getAndUnlock(t, soon)
	})
}

func TestLingerOnOtherServers(t *testing.T) {
	onDeployments(t, func(t *testing.T, rdb rueidis.Client, o rlock.Options) {
		b := fixture{rdb: rdb, name: redistest.Name(t)}
		b.Client = newClient(t, b.rdb, o)
		other := newClient(t, rdb, o)
		for _, of := range []func(*rlock.Client, string, ...rlock.Option) *rlock.Mutex{(*rlock.Client).Mutex, (*rlock.Client).FencedMutex} {
			for i := range 3 {
				name := fmt.Sprint(b.name, i)
				keep(t, b.Client, of(b.Client, name, rlock.WithLinger(long)))
				lockAsync(t, of(other, name)).getAndUnlock(t, soon)
			}
			sleep(time.Second) // until the names are requested again
		}
	})
}
