package rlock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G4: a waiter of any kind in another process gets the lock at once. For a while after that, the lock is not kept.
func TestLingerIsAskedFor(t *testing.T) {
	waiters := map[string]func(c *rlock.Client, name string) rlock.Locker{
		"mutex":     func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) },
		"lingering": func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithLinger(long)) },
		"fenced":    func(c *rlock.Client, name string) rlock.Locker { return c.FencedMutex(name) },
		"lease":     func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithLease(time.Minute)) },
		"fair":      func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) },
		"all":       func(c *rlock.Client, name string) rlock.Locker { return rlock.All(c.Mutex(name), c.Mutex(name+":2")) },
	}
	for kind, of := range waiters {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
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
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name, rlock.WithLinger(long))
		keep(t, b.Client, m)
		_, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		waiter := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
		b.awaitPlace(t, b.name)
		waiter.stillWaits(t)
		require.NoError(t, unlock())
		waiter.getAndUnlock(t, soon)
	})
}

// No message announces a waiter that came before the process had the lock: the process looks for it.
func TestLingerFindsThoseWhoWaitedBefore(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
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
		one := func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 } // no round trips for further connections
		keeper, other := newClient(t, redistest.Dial(t, near.Addr(), one)), newClient(t, redistest.Dial(t, far.Addr(), one))
		past := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		past.Client = newClient(t, past.rdb)
		m := keeper.Mutex(past.name, rlock.WithLinger(long))
		keep(t, keeper, m)
		// A waiter for another lock keeps other's connection for messages open, so that no round trip is for a new one.
		_, unlock, err := past.Mutex(past.name + ":2").Lock(context.Background())
		require.NoError(t, err)
		listens := lockAsync(t, other.Mutex(past.name+":2"))
		redistest.Settle(t)

		near.Delay(oneWay)
		far.Delay(oneWay)
		began := time.Now()
		got := lockAsync(t, other.Mutex(past.name)).get(t, testTimeout)
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at.Sub(began), (1+3)*2*oneWay, "one round trip for a free lock, and three more")
		near.Delay(0)
		far.Delay(0)
		require.NoError(t, got.unlock())
		require.NoError(t, unlock())
		listens.getAndUnlock(t, soon)
	})
}

// Waiters that cannot ask, such as Redisson, wait for d at most.
func TestLingerBesideThoseWhoCannotAsk(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
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
	})
}

// The same, however often the process uses the lock meanwhile.
func TestLingerInUseBesideThoseWhoCannotAsk(t *testing.T) {
	for kind, of := range map[string]func(c *rlock.Client, name string) rlock.Locker{
		"mutex":  func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name, rlock.WithLinger(long)) },
		"fenced": func(c *rlock.Client, name string) rlock.Locker { return c.FencedMutex(name, rlock.WithLinger(long)) },
	} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			b := newBareFixture(t)
			const watchdog = 3 * time.Second
			c := newClient(t, b.rdb, rlock.Options{WatchdogTimeout: watchdog})
			m := of(c, b.name)
			keep(t, c, m)
			listener, cancel := b.rdb.Dedicate()
			defer cancel()
			told := make(chan string, 100)
			listener.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) { told <- m.Message }})
			require.NoError(t, listener.Do(context.Background(), listener.B().Subscribe().Channel("redisson_lock__channel:{"+b.name+"}").Build()).Error())
			for began := time.Now(); ; {
				select {
				case text := <-told:
					require.Equal(t, "0", text)
					return
				case <-time.After(time.Millisecond):
				}
				lockAndUnlock(t, m)
				require.LessOrEqual(t, time.Since(began), watchdog/3+soon, "not told")
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
