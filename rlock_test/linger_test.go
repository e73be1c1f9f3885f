package rlock_test

import (
	"bytes"
	"context"
	"fmt"
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

// A kept lock is renewed, also for less than a grant lasts.
func TestLingerIsRenewed(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		for _, watchdog := range []time.Duration{shortWatchdog, time.Second} {
			b.name = redistest.Name(t)
			m := b.Mutex(b.name, rlock.WithLinger(long), rlock.WithWatchdog(watchdog))
			keep(t, b.Client, m)
			sleep(watchdog + watchdog/3)
			require.True(t, b.exists(t, b.name))
			kept := b.Stats().Kept
			lockAndUnlock(t, m)
			require.Equal(t, kept+1, b.Stats().Kept)
		}
	})
}

// A TryLock without a wait announces that it was refused, and the next one finds the lock free.
func TestLingerAndTryLock(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
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
		runVirtual(t, kind, func(t *testing.T, b fixture) {
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
	virtual(t, func(t *testing.T, b fixture) {
		linger := rlock.WithLinger(long)
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
	virtual(t, func(t *testing.T, b fixture) {
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
		for kind, of := range map[string]func(*rlock.Client, string, ...rlock.Option) *rlock.Mutex{
			"plain": (*rlock.Client).Mutex, "fenced": (*rlock.Client).FencedMutex,
		} {
			for i := range 3 {
				name := fmt.Sprint(b.name, kind, i) // a name that was just asked for is not kept
				keep(t, b.Client, of(b.Client, name, rlock.WithLinger(long)))
				lockAsync(t, of(other, name)).getAndUnlock(t, soon)
			}
		}
	})
}

// G5: Close and Shutdown give up kept locks, and a later unlock keeps none.
func TestLingerEndsWithTheClient(t *testing.T) {
	for name, end := range map[string]func(c *rlock.Client) error{
		"Close":    func(c *rlock.Client) error { c.Close(); return nil },
		"Shutdown": func(c *rlock.Client) error { return c.Shutdown(context.Background()) },
	} {
		runVirtual(t, name, func(t *testing.T, b fixture) {
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
		answer(other.ForceUnlock(context.Background())).is(t, true)
		a := locked(t, tryFor{other, 0})
		redistest.Eventually(t, shortWatchdog/3+soon, func() bool { return b.Stats().Idle == 0 }, "noticed")
		refusalOf(t, m, 0)
		require.NoError(t, a.unlock())
		require.Zero(t, b.Stats().Lost)

		// By the Client itself: at once.
		redistest.Eventually(t, testTimeout, func() bool { lockAndUnlock(t, m); return b.Stats().Idle == 1 }, "kept")
		answer(b.Mutex(b.name).ForceUnlock(context.Background())).is(t, true)
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
			c := newClient(t, rdb, rlock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
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
		runVirtual(t, kind, func(t *testing.T, b fixture) {
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
	virtual(t, func(t *testing.T, b fixture) {
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
	virtual(t, func(t *testing.T, b fixture) {
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
	virtual(t, func(t *testing.T, b fixture) {
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
