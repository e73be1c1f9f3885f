package rlock_test

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"slices"
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
			open := locked(t, b.Mutex(b.name+":3", rlock.WithLinger(long)))
			ended := async(func() error { return end(b.Client) })
			redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) && !b.exists(t, b.name+":2") }, "given up")
			require.NoError(t, open.unlock())
			require.NoError(t, within(t, ended, testTimeout))
			require.False(t, b.exists(t, b.name+":3"))
			require.Zero(t, b.Stats().Idle)
		})
	}
}

// G1, G2: the next renewal notices that a kept lock was unlocked by force. No loss is reported, since nobody was
// inside.
func TestLingerIsForcedOpen(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog, Trace: &rlock.Trace{
			Lost: func(context.Context, rlock.LostInfo) { t.Error("a loss was reported") },
		}})
		m := b.Mutex(b.name, rlock.WithLinger(long))
		keep(t, b.Client, m)
		other := newClient(t, b.rdb).Mutex(b.name)
		held, err := other.ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, held)
		a := locked(t, tryFor{other, 0})
		redistest.Eventually(t, shortWatchdog/3+soon, func() bool { return b.Stats().Idle == 0 }, "noticed")
		refusalOf(t, m, 0)
		require.NoError(t, a.unlock())
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
		began := time.Now()
		got := locked(t, past.Mutex(past.name))
		requireTookAtMost(t, shortWatchdog+time.Millisecond, began, got.at) // Redis keeps a key for the millisecond in which it ends
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
		c, proxy, b := behindProxy(t, anyWay)
		m := c.Mutex(b.name, rlock.WithLinger(long))
		keep(t, c, m)
		owner := slices.Collect(maps.Keys(b.fields(t, b.name)))[0]
		proxy.CutAll()
		redistest.Eventually(t, soon, func() bool { return b.fields(t, b.name)[owner] == 0 }, "given up")
		keep(t, c, m)
		lockAsync(t, b.Mutex(b.name)).getAndUnlock(t, soon)
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

// G4: a waiter of any kind in another process gets the lock at once. For a while after that, the lock is not kept.
func TestLingerIsAskedFor(t *testing.T) {
	for kind, of := range lockHandles {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			b := newFixture(t)
			m := b.Mutex(b.name, rlock.WithLinger(long))
			keep(t, b.Client, m)
			began := time.Now()
			got := lockAsync(t, of(newClient(t, b.rdb), b.name)).gets(t, testTimeout)
			requireTookAtMost(t, 20*time.Millisecond, began, got.at)
			require.Zero(t, b.Stats().Idle)
			require.NoError(t, got.unlock())
			if kind == "lingers" {
				return
			}
			redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "free")
			lockAndUnlock(t, m)
			require.False(t, b.exists(t, b.name), "just after a request, the lock must not be kept")
		})
	}
}

// No message announces a waiter that came before the process had the lock: the process looks for it.
func TestLingerFindsThoseWhoWaitedBefore(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name, rlock.WithLinger(long))
		keep(t, b.Client, b.Mutex(b.name+":ear", rlock.WithLinger(long)))
		a := locked(t, newClient(t, b.rdb).Mutex(b.name))
		first := lockAsync(t, m)
		b.awaitPlace(t, b.name)
		second := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
		redistest.Eventually(t, testTimeout, func() bool {
			n, err := b.do(t, "ZCARD", "rlock_queue:{"+b.name+"}").AsInt64()
			return err == nil && n == 2
		}, "both waiters must be in line")
		require.NoError(t, a.unlock())
		got := first.gets(t, soon)
		sleep(1100 * time.Millisecond) // longer than a recent wait counts
		second.stillWaits(t)
		require.NoError(t, got.unlock())
		second.getAndUnlock(t, soon)
	})
}

// A kept lock costs a waiter two round trips more than a free lock. It costs a third if the lock is handed over while the waiter, now
// listening, asks again: it cannot tell which came first.
func TestLingerCostsAWaiterTwoRoundTrips(t *testing.T) {
	redistest.OnlyVirtual(t, "round trips are told apart by their time alone", func(t *testing.T) {
		const oneWay = 200 * time.Millisecond
		s := redistest.Start(t)
		near, far := redistest.StartProxy(t, s.Addr()), redistest.StartProxy(t, s.Addr())
		keeper, other := newClient(t, redistest.Dial(t, near.Addr(), oneConn)), newClient(t, redistest.Dial(t, far.Addr(), oneConn))
		past := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		past.Client = newClient(t, past.rdb)
		m := keeper.Mutex(past.name, rlock.WithLinger(long))
		keep(t, keeper, m)
		// A waiter for another lock keeps other's connection for messages open, so that no round trip is for a new one.
		a := locked(t, past.Mutex(past.name+":2"))
		listens := lockAsync(t, other.Mutex(past.name+":2"))
		redistest.Settle(t)

		near.Delay(oneWay)
		far.Delay(oneWay)
		began := time.Now()
		got := locked(t, other.Mutex(past.name))
		require.LessOrEqual(t, got.at.Sub(began), (1+3)*2*oneWay, "one round trip for a free lock, and three more")
		near.Delay(0)
		far.Delay(0)
		require.NoError(t, got.unlock())
		require.NoError(t, a.unlock())
		listens.getAndUnlock(t, soon)
	})
}

// Waiters that cannot ask, such as Redisson, wait for d at most.
func TestLingerBesideThoseWhoCannotAsk(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		const d = 2 * time.Second
		keep(t, b.Client, b.Mutex(b.name, rlock.WithLinger(d)))
		last, told := time.Now(), make(chan struct{}, 1)
		listensOutside(t, b.rdb, unlockChannelOf("", b.name), func() { told <- struct{}{} })
		redistest.Within(t, d+soon, told, "told")
		requireTookAtMost(t, d, last, time.Now())
	})
}

// The same, however often the process uses the lock meanwhile.
func TestLingerInUseBesideThoseWhoCannotAsk(t *testing.T) {
	for kind, of := range map[string]func(*rlock.Client, string, ...rlock.Option) *rlock.Mutex{
		"mutex": (*rlock.Client).Mutex, "fenced": (*rlock.Client).FencedMutex,
	} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			const watchdog = 3 * time.Second
			b := newFixture(t, rlock.Options{WatchdogTimeout: watchdog})
			m := of(b.Client, b.name, rlock.WithLinger(long))
			keep(t, b.Client, m)
			var told atomic.Bool
			listensOutside(t, b.rdb, unlockChannelOf("", b.name), func() { told.Store(true) })
			for began := time.Now(); !told.Load(); sleep(time.Millisecond) {
				lockAndUnlock(t, m)
				requireTookAtMost(t, watchdog/3+100*time.Millisecond, began, time.Now())
			}
		})
	}
}

// G4: a run of hand-offs ends for kept locks, too: competing processes take turns.
func TestLingerTakesTurns(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		clients := []*rlock.Client{b.Client, newClient(t, b.rdb)}
		for _, c := range clients {
			keep(t, c, c.Mutex(redistest.Name(t), rlock.WithLinger(long)))
		}
		var inside [2]int
		until := time.Now().Add(2 * time.Second)
		var all sync.WaitGroup
		for i, c := range clients {
			m := c.Mutex(b.name, rlock.WithLinger(long))
			for range 4 {
				all.Go(func() {
					for time.Now().Before(until) {
						err := m.Do(context.Background(), func(context.Context) error {
							inside[i]++
							sleep(time.Millisecond)
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		require.Greater(t, min(inside[0], inside[1])*4, max(inside[0], inside[1]), "%v", inside)
	})
}
