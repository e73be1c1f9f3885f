package rlock_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// long is a WithLinger that does not end within a test.
const long = rlock.DefaultWatchdogTimeout * 10

// lockAndUnlock locks and unlocks.
func lockAndUnlock(t testing.TB, l rlock.Locker) (ctx context.Context) {
	t.Helper()
	ctx, unlock, err := l.Lock(context.Background())
	require.NoError(t, err)
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
		owner := ""
		for range 50 {
			require.NoError(t, m.Do(context.Background(), func(ctx context.Context) error {
				owner = rlock.Owner(ctx)
				return nil
			}))
		}
		after := redistest.Commands(t, b.rdb)
		require.Equal(t, before["evalsha"], after["evalsha"], "a kept lock must cost no command")
		require.Equal(t, kept+50, b.Stats().Kept)
		require.Equal(t, rlock.PathKept, paths[len(paths)-1])
		require.Equal(t, map[string]int64{owner: 1}, b.fields(t, b.name))
		require.Zero(t, b.Stats().Holds)
		require.Equal(t, 1, b.Stats().Idle)
		lockAndUnlock(t, b.Mutex(b.name, rlock.WithLinger(d))) // the last handle decides for how long
		last := time.Now()
		redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "it ends")
		require.GreaterOrEqual(t, time.Since(last), d-d/10)
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
		_, unlock, err := m.TryLock(context.Background(), 0)
		require.NoError(t, err, "its own process has it")
		other := newClient(t, b.rdb).Mutex(b.name)
		_, _, err = other.TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		sleep(3 * time.Second) // a holder does not learn of every try
		require.NoError(t, unlock())
		require.True(t, b.exists(t, b.name), "that was when somebody was inside")
		_, _, err = other.TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		redistest.Eventually(t, soon, func() bool { return !b.exists(t, b.name) }, "given up")
		lockAndUnlock(t, other)
	})
}

// Other handles of the same name in the process get the kept lock on their own terms.
func TestLingerAndOtherHandles(t *testing.T) {
	for kind, of := range map[string]func(c *rlock.Client, name string) rlock.Locker{
		"mutex":   func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) },
		"fenced":  func(c *rlock.Client, name string) rlock.Locker { return c.FencedMutex(name) },
		"lease":   func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithLease(time.Minute)) },
		"maxhold": func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithMaxHold(time.Minute)) },
		"minhold": func(c *rlock.Client, name string) rlock.Locker {
			return c.Mutex(name, rlock.WithMinHold(time.Millisecond))
		},
		"grace":  func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithGrace(time.Minute)) },
		"asked":  func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithAsked()) },
		"fair":   func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) },
		"reader": func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Read() },
		"writer": func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Write() },
		"all":    func(c *rlock.Client, name string) rlock.Locker { return rlock.All(c.Mutex(name), c.Mutex(name+":2")) },
		"allkeeps": func(c *rlock.Client, name string) rlock.Locker {
			return rlock.All(c.Mutex(name, rlock.WithLinger(long)), c.Mutex(name+":2"))
		},
	} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			b := newFixture(t)
			keep(t, b.Client, b.Mutex(b.name, rlock.WithLinger(long)))
			other := of(b.Client, b.name)
			_, unlock, err := other.TryLock(context.Background(), 0)
			require.NoError(t, err, "it is the process's own")
			waiter := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
			if kind != "reader" && kind != "writer" && kind != "fair" { // which wake no mutex
				b.awaitPlace(t, b.name)
			}
			waiter.stillWaits(t)
			require.NoError(t, unlock())
			waiter.getAndUnlock(t, testTimeout)
			if kind == "fenced" {
				require.NoError(t, b.do(t, "DEL", "redisson_lock_token:{"+b.name+"}").Error())
			}
		})
	}
}

// WithLinger conflicts with other options for the duration of a lock.
func TestLingerRefusesOtherTerms(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		linger := rlock.WithLinger(time.Second)
		kept, terms := "cannot be kept when nobody holds it", "WithLinger keeps a lock on the usual terms"
		for _, row := range []struct {
			l    rlock.Locker
			want string
		}{
			{b.Mutex(b.name, rlock.WithLinger(0)), "WithLinger is 0s, want at least 1ms"},
			{b.Mutex(b.name, rlock.WithLinger(-1)), "WithLinger is -1ns, want at least 1ms"},
			{b.FairMutex(b.name, linger), kept},
			{b.RWMutex(b.name, linger).Read(), kept},
			{b.RWMutex(b.name, linger).Write(), kept},
			{b.RWMutex(b.name, linger).Upgradeable(), kept},
			{b.Mutex(b.name, linger, rlock.WithLease(time.Second)), terms},
			{b.Mutex(b.name, rlock.WithMaxHold(time.Second), linger), terms},
			{b.Mutex(b.name, linger, rlock.WithMinHold(time.Second)), terms},
			{b.FencedMutex(b.name, linger, rlock.WithGrace(time.Second)), terms},
			{rlock.All(b.FairMutex(b.name, linger)), kept},
			{
				rlock.Quorum(b.Mutex(b.name, linger), newClient(t, b.rdb).Mutex(b.name, linger), newClient(t, b.rdb).Mutex(b.name, linger)),
				"has an option that is for locks of one server",
			},
			{newClient(t, b.rdb, rlock.Options{HandOff: rlock.HandOff{Most: -1}}).Mutex(b.name, linger), "with Options.HandOff.Most of 0 or more"},
			{newClient(t, b.rdb, rlock.Options{Replicas: 1}).Mutex(b.name, linger), "without Options.Replicas"},
		} {
			_, _, err := row.l.Lock(context.Background())
			require.ErrorContains(t, err, row.want)
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
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		notAsked(t, ctx)
		other := newClient(t, b.rdb).Mutex(b.name)
		_, _, err = other.TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		waiter := lockAsync(t, other)
		awaitAsked(t, ctx)
		require.NoError(t, unlock())
		waiter.getAndUnlock(t, soon)
	})
}

// G8: tokens rise from hold to hold across processes, and each is used once.
func TestLingerTokensRise(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		clients := []*rlock.Client{b.Client, newClient(t, b.rdb)}
		var (
			last   int64
			inside sync.Mutex // for the race detector: the lock itself keeps others out
			all    sync.WaitGroup
		)
		keep(t, b.Client, b.FencedMutex(b.name, rlock.WithLinger(long)))
		for _, c := range clients {
			m := c.FencedMutex(b.name, rlock.WithLinger(long))
			all.Go(func() {
				for until := time.Now().Add(4 * time.Second); time.Now().Before(until); {
					err := m.Do(context.Background(), func(ctx context.Context) error {
						token, _ := m.FencingToken(ctx)
						if !inside.TryLock() {
							t.Error("two are inside")
							return nil
						}
						defer inside.Unlock()
						if token <= last {
							t.Errorf("token %d after %d", token, last)
						}
						last = token
						return nil
					})
					if err != nil {
						t.Error(err)
					}
					if c == b.Client {
						sleep(20 * time.Millisecond)
					} else {
						sleep(1500 * time.Millisecond)
					}
				}
			})
		}
		all.Wait()
		require.Positive(t, b.Stats().Kept)
		_, unlock, err := newClient(t, b.rdb).FencedMutex(b.name).Lock(context.Background())
		require.NoError(t, err)
		require.NoError(t, unlock())
		require.NoError(t, b.do(t, "DEL", "redisson_lock_token:{"+b.name+"}").Error())
	})
}

// Over RESP2, on a cluster with either kind of pub/sub, and with a sentinel.
func TestLingerOnOtherServers(t *testing.T) {
	redistest.Parallel(t)
	for name, dial := range map[string]func(t *testing.T) func() rueidis.Client{
		"RESP2": func(t *testing.T) func() rueidis.Client {
			return func() rueidis.Client { return redistest.Dial(t, redistest.Shared(t), protocol(true)) }
		},
		"sentinel": func(t *testing.T) func() rueidis.Client {
			s := redistest.StartSentinel(t)
			return func() rueidis.Client { return s.Client(t) }
		},
		"cluster": func(t *testing.T) func() rueidis.Client {
			s := redistest.StartCluster(t, 3, 0)
			return func() rueidis.Client { return s.Client(t) }
		},
		"cluster with plain pub/sub": func(t *testing.T) func() rueidis.Client {
			s := redistest.StartCluster(t, 3, 0)
			return func() rueidis.Client { return s.Client(t) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			rdb := dial(t)
			o := rlock.Options{PlainPubSub: strings.Contains(name, "plain")}
			b := fixture{rdb: rdb(), name: redistest.Name(t)}
			b.Client = newClient(t, b.rdb, o)
			other := newClient(t, rdb(), o)
			for _, of := range []func(*rlock.Client, string, ...rlock.Option) *rlock.Mutex{(*rlock.Client).Mutex, (*rlock.Client).FencedMutex} {
				for i := range 3 {
					name := b.name + string(rune('a'+i))
					keep(t, b.Client, of(b.Client, name, rlock.WithLinger(long)))
					got := lockAsync(t, of(other, name)).get(t, soon+time.Second)
					require.NoError(t, got.err)
					require.NoError(t, got.unlock())
				}
				sleep(time.Second) // until the names are requested again
			}
		})
	}
}
