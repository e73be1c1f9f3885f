package rlock_test

import (
	"bytes"
	"context"
	"log/slog"
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
	redistest.Parallel(t)
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
}

// A kept lock is renewed.
func TestLingerIsRenewed(t *testing.T) {
	redistest.Parallel(t)
	b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
	m := b.Mutex(b.name, rlock.WithLinger(long))
	keep(t, b.Client, m)
	sleep(shortWatchdog + shortWatchdog/3)
	require.True(t, b.exists(t, b.name))
	kept := b.Stats().Kept
	lockAndUnlock(t, m)
	require.Equal(t, kept+1, b.Stats().Kept)
}

// G4: a waiter of any kind in another process gets the lock at once. For a while after that, the lock is not kept.
func TestLingerIsAskedFor(t *testing.T) {
	redistest.Parallel(t)
	waiters := map[string]func(c *rlock.Client, name string) rlock.Locker{
		"mutex":     func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) },
		"lingering": func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithLinger(long)) },
		"fenced":    func(c *rlock.Client, name string) rlock.Locker { return c.FencedMutex(name) },
		"lease":     func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithLease(time.Minute)) },
		"fair":      func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) },
		"all":       func(c *rlock.Client, name string) rlock.Locker { return rlock.All(c.Mutex(name), c.Mutex(name+":2")) },
	}
	for kind, of := range waiters {
		t.Run(kind, func(t *testing.T) {
			redistest.Parallel(t)
			b := newFixture(t)
			m := b.Mutex(b.name, rlock.WithLinger(long))
			keep(t, b.Client, m)
			other := of(newClient(t, b.rdb), b.name)
			got := lockAsync(t, other).get(t, soon+time.Second)
			require.NoError(t, got.err)
			require.Zero(t, b.Stats().Idle)
			require.NoError(t, got.unlock())
			if kind == "lingering" {
				return
			}
			redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "free")
			lockAndUnlock(t, m)
			require.False(t, b.exists(t, b.name), "just after a request, the lock must not be kept")
			if kind == "fenced" {
				require.NoError(t, b.do(t, "DEL", "redisson_lock_token:{"+b.name+"}").Error())
			}
		})
	}
}

// Somebody may ask while a section is open: its unlock gives the lock up.
func TestLingerIsAskedForInASection(t *testing.T) {
	redistest.Parallel(t)
	b := newFixture(t)
	m := b.Mutex(b.name, rlock.WithLinger(long))
	keep(t, b.Client, m)
	_, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)
	waiter := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
	b.awaitPlace(t, b.name)
	waiter.stillWaits(t)
	require.NoError(t, unlock())
	got := waiter.get(t, soon)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
}

// No message announces a waiter that came before the process had the lock: the process looks for it.
func TestLingerFindsThoseWhoWaitedBefore(t *testing.T) {
	redistest.Parallel(t)
	b := newFixture(t)
	m := b.Mutex(b.name, rlock.WithLinger(long))
	keep(t, b.Client, b.Mutex(b.name+":ear", rlock.WithLinger(long)))
	_, unlock, err := newClient(t, b.rdb).Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	first := lockAsync(t, m)
	b.awaitPlace(t, b.name)
	second := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
	redistest.Eventually(t, testTimeout, func() bool {
		n, err := b.do(t, "ZCARD", "rlock_queue:{"+b.name+"}").AsInt64()
		return err == nil && n == 2
	}, "both waiters must be in line")
	require.NoError(t, unlock())
	got := first.get(t, soon)
	require.NoError(t, got.err)
	sleep(1100 * time.Millisecond) // longer than a recent wait counts
	second.stillWaits(t)
	require.NoError(t, got.unlock())
	next := second.get(t, soon)
	require.NoError(t, next.err)
	require.NoError(t, next.unlock())
}

// A kept lock costs a waiter two round trips more than a free one. It costs a third one if the lock is handed over
// while the waiter, now listening, asks again: it cannot tell which was first.
func TestLingerCostsAWaiterTwoRoundTrips(t *testing.T) {
	redistest.Parallel(t)
	const oneWay = 200 * time.Millisecond
	s := redistest.Start(t)
	near, far := redistest.StartProxy(t, s.Addr()), redistest.StartProxy(t, s.Addr())
	one := func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 } // no round trips for further connections
	keeper, other := newClient(t, redistest.Dial(t, near.Addr(), one)), newClient(t, redistest.Dial(t, far.Addr(), one))
	past := fixture{rdb: s.Client(t), name: redistest.Name(t)}
	past.Client = newClient(t, past.rdb)
	m := keeper.Mutex(past.name, rlock.WithLinger(long))
	keep(t, keeper, m)
	// It has its connection for messages.
	_, unlock, err := past.Mutex(past.name + ":2").Lock(context.Background())
	require.NoError(t, err)
	listens := lockAsync(t, other.Mutex(past.name+":2"))
	past.awaitSubscribers(t, past.name+":2", 1)
	require.NoError(t, unlock())
	got := listens.get(t, soon)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())

	near.Delay(oneWay)
	far.Delay(oneWay)
	began := time.Now()
	got = lockAsync(t, other.Mutex(past.name)).get(t, testTimeout)
	require.NoError(t, got.err)
	require.Less(t, got.at.Sub(began), (1+3)*2*oneWay+oneWay, "one round trip for a free lock, and three more")
	near.Delay(0)
	far.Delay(0)
	require.NoError(t, got.unlock())
}

// Waiters that cannot ask (Redisson, older versions) wait for d at most.
func TestLingerBesideThoseWhoCannotAsk(t *testing.T) {
	redistest.Parallel(t)
	b := newFixture(t)
	const d = 2 * time.Second
	m := b.Mutex(b.name, rlock.WithLinger(d))
	keep(t, b.Client, m)
	last := time.Now()
	listener, cancel := b.rdb.Dedicate()
	defer cancel()
	told := make(chan string, 1)
	listener.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) { told <- m.Message }})
	require.NoError(t, listener.Do(context.Background(), listener.B().Subscribe().Channel("redisson_lock__channel:{"+b.name+"}").Build()).Error())
	select {
	case text := <-told:
		require.Equal(t, "0", text)
	case <-time.After(d + soon):
		require.FailNow(t, "not told")
	}
	require.Less(t, time.Since(last), d+soon)
}

// The same, however often the process uses the lock meanwhile.
func TestLingerInUseBesideThoseWhoCannotAsk(t *testing.T) {
	redistest.Parallel(t)
	b := newFixture(t)
	for kind, of := range map[string]func(c *rlock.Client, name string) rlock.Locker{
		"mutex":  func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithLinger(long)) },
		"fenced": func(c *rlock.Client, name string) rlock.Locker { return c.FencedMutex(name, rlock.WithLinger(long)) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const watchdog = 3 * time.Second
			name := b.name + ":" + kind
			c := newClient(t, b.rdb, rlock.Options{WatchdogTimeout: watchdog})
			m := of(c, name)
			keep(t, c, m)
			listener, cancel := b.rdb.Dedicate()
			defer cancel()
			told := make(chan string, 100)
			listener.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) { told <- m.Message }})
			require.NoError(t, listener.Do(context.Background(), listener.B().Subscribe().Channel("redisson_lock__channel:{"+name+"}").Build()).Error())
			for began := time.Now(); ; {
				select {
				case text := <-told:
					require.Equal(t, "0", text)
					return
				case <-time.After(time.Millisecond):
				}
				lockAndUnlock(t, m)
				require.Less(t, time.Since(began), watchdog/3+soon, "not told")
			}
		})
	}
}

// A TryLock without a wait announces that it was refused, and the next one finds the lock free.
func TestLingerAndTryLock(t *testing.T) {
	redistest.Parallel(t)
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
}

// Other handles of the same name in the process get the kept lock on their own terms.
func TestLingerAndOtherHandles(t *testing.T) {
	redistest.Parallel(t)
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
		t.Run(kind, func(t *testing.T) {
			redistest.Parallel(t)
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
			got := waiter.get(t, testTimeout)
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
			if kind == "fenced" {
				require.NoError(t, b.do(t, "DEL", "redisson_lock_token:{"+b.name+"}").Error())
			}
		})
	}
}

// WithLinger conflicts with other options for the duration of a lock.
func TestLingerRefusesOtherTerms(t *testing.T) {
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
}

// With WithAsked as well, a waiter of another process gets the kept lock, and a hold learns of the waiter.
func TestLingerAndAsked(t *testing.T) {
	redistest.Parallel(t)
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
	got := waiter.get(t, soon)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
}

// G8: tokens rise from hold to hold across processes, and each is used once.
func TestLingerTokensRise(t *testing.T) {
	redistest.Parallel(t)
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
					sleep(time.Millisecond)
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
}

// G5: Close and Shutdown give up kept locks, and a later unlock keeps none.
func TestLingerEndsWithTheClient(t *testing.T) {
	redistest.Parallel(t)
	for name, end := range map[string]func(c *rlock.Client) error{
		"Close":    func(c *rlock.Client) error { c.Close(); return nil },
		"Shutdown": func(c *rlock.Client) error { return c.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
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
	redistest.Parallel(t)
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
}

// After a kill or a cut connection, others wait for the rest of the lease, as usual. The process's own Lock does not
// use a kept lock that it cannot trust.
func TestLingerOfADeadProcess(t *testing.T) {
	redistest.Parallel(t)
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
}

// While nobody can ask, no lock is kept; afterwards locks are kept again.
func TestLingerWithoutItsEar(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
	b.Client = newClient(t, s.Client(t))
	m := b.Mutex(b.name, rlock.WithLinger(long))
	keep(t, b.Client, m)
	owner := b.fields(t, b.name)
	b.do(t, "CLIENT", "KILL", "TYPE", "pubsub")
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
			require.Zero(t, c.Stats().Idle)
			require.False(t, b.exists(t, b.name))
			c.Close()
			if name == "ear" {
				require.Equal(t, 1, strings.Count(log.String(), "cannot ask this Client"))
			}
		})
	}
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

// G4: a run of hand-offs ends for kept locks, too: competing processes take turns.
func TestLingerTakesTurns(t *testing.T) {
	redistest.Parallel(t)
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
}
