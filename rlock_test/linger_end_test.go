package rlock_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G5: Close and Shutdown give up kept locks, and a later unlock keeps none.
func TestLingerEndsWithTheClient(t *testing.T) {
	for name, end := range map[string]func(c *rlock.Client) error{
		"Close":    func(c *rlock.Client) error { c.Close(); return nil },
		"Shutdown": func(c *rlock.Client) error { return c.Shutdown(context.Background()) },
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t)
			keep(t, b.Client, b.Mutex(b.name, rlock.WithLinger(long)))
			keep(t, b.Client, b.FencedMutex(b.name+":2", rlock.WithLinger(long)))
			waiter := lockAsync(t, newClient(t, b.rdb).Mutex(b.name+":3"))
			require.NoError(t, waiter.get(t, testTimeout).err)
			_, unlock, err := b.Mutex(b.name+":4", rlock.WithLinger(long)).Lock(context.Background())
			require.NoError(t, err)
			ended := async(func() error { return end(b.Client) })
			redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) && !b.exists(t, b.name+":2") }, "given up")
			require.NoError(t, unlock())
			require.NoError(t, within(t, ended, testTimeout))
			require.False(t, b.exists(t, b.name+":4"))
			require.Zero(t, b.Stats().Idle)
			require.NoError(t, b.do(t, "DEL", "redisson_lock_token:{"+b.name+":2}", b.name+":3").Error())
		})
	}
}

// G1, G2: the next renewal notices that a kept lock was unlocked by force. No loss is reported, since nobody was
// inside.
func TestLingerIsForcedOpen(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		b.Client = newClient(t, b.rdb, rlock.Options{WatchdogTimeout: shortWatchdog, Trace: &rlock.Trace{
			Lost: func(context.Context, rlock.LostInfo) { t.Error("a loss was reported") },
		}})
		m := b.Mutex(b.name, rlock.WithLinger(long))
		keep(t, b.Client, m)
		other := newClient(t, b.rdb).Mutex(b.name)
		held, err := other.ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, held)
		_, unlock, err := other.TryLock(context.Background(), 0)
		require.NoError(t, err)
		redistest.Eventually(t, shortWatchdog/3+soon, func() bool { return b.Stats().Idle == 0 }, "noticed")
		_, _, err = m.TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.NoError(t, unlock())
		require.Zero(t, b.Stats().Lost)

		// By the Client itself: at once.
		redistest.Eventually(t, testTimeout, func() bool { lockAndUnlock(t, m); return b.Stats().Idle == 1 }, "kept")
		held, err = b.Mutex(b.name).ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, held)
		require.Zero(t, b.Stats().Idle)
		require.False(t, b.exists(t, b.name))
	})
}

// After a kill or a cut connection, others wait for the rest of the lease, as usual. The process's own Lock does not
// use a kept lock that it cannot trust.
func TestLingerOfADeadProcess(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		keeper, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: shortWatchdog})
		m := keeper.Mutex(past.name, rlock.WithLinger(long))
		keep(t, keeper, m)
		proxy.BlackHole(true)
		waiter := lockAsync(t, past.Mutex(past.name))
		got := waiter.get(t, shortWatchdog+soon)
		require.NoError(t, got.err)
		_, _, err := m.TryLock(context.Background(), 0)
		require.Error(t, err, "somebody else has it")
		proxy.BlackHole(false)
		require.NoError(t, got.unlock())
		redistest.Eventually(t, testTimeout, func() bool { return keeper.Stats().Idle == 0 }, "lost")
		require.Zero(t, keeper.Stats().Lost)
	})
}

// While nobody can ask, no lock is kept; afterwards locks are kept again.
func TestLingerWithoutItsEar(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		proxy := redistest.StartProxy(t, s.Addr())
		b.Client = newClient(t, redistest.Dial(t, proxy.Addr()))
		m := b.Mutex(b.name, rlock.WithLinger(long))
		keep(t, b.Client, m)
		owner := b.fields(t, b.name)
		proxy.CutAll()
		redistest.Eventually(t, soon, func() bool {
			for field := range b.fields(t, b.name) {
				if _, same := owner[field]; same {
					return false
				}
			}
			return true
		}, "given up")
		keep(t, b.Client, m)
		got := lockAsync(t, newClient(t, b.rdb).Mutex(b.name)).get(t, soon+time.Second)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
	})
}

// A Client without the right to subscribe keeps no lock, and logs that once. Nor does one without the right to look
// for waiters.
func TestLingerWithoutRights(t *testing.T) {
	redistest.Parallel(t)
	for name, rules := range map[string]string{
		"ear":  "~* &redisson_lock__channel:* +@all",
		"look": "~* &* +@all -zcard",
		"see":  "~* &* +@all -pubsub",
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			s := redistest.Start(t)
			b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
			require.NoError(t, b.do(t, append([]string{"ACL", "SETUSER", "app", "reset", "resetchannels", "on", ">secret"}, strings.Fields(rules)...)...).Error())
			var log bytes.Buffer
			rdb := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" })
			c, err := rlock.New(rdb, rlock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			require.NoError(t, err)
			m := c.Mutex(b.name, rlock.WithLinger(long))
			for range 20 {
				lockAndUnlock(t, m)
				sleep(20 * time.Millisecond)
			}
			redistest.Eventually(t, testTimeout, func() bool { return c.Stats().Idle == 0 && !b.exists(t, b.name) }, "it is given back, long before its time")
			c.Close()
			if name == "ear" {
				require.Equal(t, 1, strings.Count(log.String(), "cannot ask this Client"))
			}
		})
	}
}
