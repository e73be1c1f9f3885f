package rlock_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/ticket"
	"github.com/go-rlock/rlock/rlock"
)

// openLate returns a Client that has not connected yet, and the number of its attempts.
func openLate(t *testing.T, addr string, hold ...<-chan struct{}) (c *rlock.Client, dials *atomic.Int32) {
	t.Helper()
	dials = new(atomic.Int32)
	o := rueidis.ClientOption{InitAddress: []string{addr}}
	redistest.Connects(t, &o)
	dial := o.DialCtxFn
	if dial == nil { // in the real world
		dial = func(ctx context.Context, to string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", to)
		}
	}
	o.DialCtxFn = func(ctx context.Context, to string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		dials.Add(1)
		for _, h := range hold {
			<-h
		}
		return dial(ctx, to, d, config)
	}
	began := time.Now()
	c = answer(rlock.OpenWith(o, unhurried(t, rlock.Options{ConnectOnUse: true}))).ok(t)
	requireTook(t, 0, began, time.Now())
	t.Cleanup(c.Close)
	return c, dials
}

// usesRedis are the calls that may be the first one of a Client, and so connect it.
var usesRedis = map[string]func(ctx context.Context, c *rlock.Client) error{
	"Mutex": func(ctx context.Context, c *rlock.Client) error { return c.Mutex("x").Do(ctx, nothingToDo) },
	"TryLock": func(ctx context.Context, c *rlock.Client) error {
		return c.FencedMutex("x").TryDo(ctx, 0, nothingToDo)
	},
	"FairMutex": func(ctx context.Context, c *rlock.Client) error { return c.FairMutex("x").Do(ctx, nothingToDo) },
	"Read":      func(ctx context.Context, c *rlock.Client) error { return c.RWMutex("x").Read().Do(ctx, nothingToDo) },
	"Write": func(ctx context.Context, c *rlock.Client) error {
		return c.FencedRWMutex("x").Write().Do(ctx, nothingToDo)
	},
	"Upgradeable": func(ctx context.Context, c *rlock.Client) error {
		return c.RWMutex("x").Upgradeable().Do(ctx, nothingToDo)
	},
	"WithAsked": func(ctx context.Context, c *rlock.Client) error {
		return c.Mutex("x", rlock.WithAsked()).Do(ctx, nothingToDo)
	},
	"WithLinger": func(ctx context.Context, c *rlock.Client) error {
		return c.Mutex("x", rlock.WithLinger(time.Minute)).Do(ctx, nothingToDo)
	},
	"All": func(ctx context.Context, c *rlock.Client) error {
		return rlock.All(c.Mutex("x"), c.FencedMutex("y")).Do(ctx, nothingToDo)
	},
	"All of one": func(ctx context.Context, c *rlock.Client) error {
		return rlock.All(c.FairMutex("x")).Do(ctx, nothingToDo)
	},
	"Adopt": func(ctx context.Context, c *rlock.Client) error {
		_, _, err := c.Adopt(ctx, ticket.New('m', "0b8e7ee1-7cb7-4e06-a34f-a0ab2bb0d6a2", "x").String())
		return err
	},
	"IsLocked":    func(ctx context.Context, c *rlock.Client) error { return errorOf(c.Mutex("x").IsLocked(ctx)) },
	"TTL":         func(ctx context.Context, c *rlock.Client) error { return errorOf(c.FairMutex("x").TTL(ctx)) },
	"Info":        func(ctx context.Context, c *rlock.Client) error { return errorOf(c.FencedMutex("x").Info(ctx)) },
	"ForceUnlock": func(ctx context.Context, c *rlock.Client) error { return errorOf(c.FencedMutex("x").ForceUnlock(ctx)) },
	"Ask":         func(ctx context.Context, c *rlock.Client) error { return errorOf(c.Ask(ctx, "x")) },
	"semaphore": func(ctx context.Context, c *rlock.Client) error {
		return errorOf(c.Semaphore("s").TrySetPermits(ctx, 1))
	},
	"Release":   func(ctx context.Context, c *rlock.Client) error { return c.Semaphore("s").Release(ctx, 1) },
	"Available": func(ctx context.Context, c *rlock.Client) error { return errorOf(c.Semaphore("s").Available(ctx)) },
	"Delete":    func(ctx context.Context, c *rlock.Client) error { return errorOf(c.Semaphore("s").Delete(ctx)) },
	"permits":   func(ctx context.Context, c *rlock.Client) error { return c.PermitSemaphore("p").SetPermits(ctx, 1) },
	"Acquired":  func(ctx context.Context, c *rlock.Client) error { return errorOf(c.PermitSemaphore("p").Acquired(ctx)) },
	"latch": func(ctx context.Context, c *rlock.Client) error {
		return errorOf(c.CountDownLatch("l").TrySetCount(ctx, 1))
	},
	"CountDown": func(ctx context.Context, c *rlock.Client) error { return c.CountDownLatch("l").CountDown(ctx) },
	"Await":     func(ctx context.Context, c *rlock.Client) error { return c.CountDownLatch("open").Await(ctx) },
	"Count":     func(ctx context.Context, c *rlock.Client) error { return errorOf(c.CountDownLatch("l").Count(ctx)) },
}

func errorOf[T any](_ T, err error) error { return err }

// Any call may be the first. It connects, and does what it does on a Client that is connected. Without a Redis its error is
// ErrUnreachable, and the next call tries again. After Close, all are as on any other Client.
func TestConnectOnUse(t *testing.T) {
	for name, use := range usesRedis {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			s := redistest.Start(t)
			want := use(t.Context(), newClient(t, s.Client(t)))
			require.NoError(t, newBareFixtureOf(t, s).do(t, "FLUSHALL").Error())
			c, dials := openLate(t, s.Addr())
			require.Zero(t, dials.Load())
			requireSame(t, want, use(t.Context(), c))
			require.NoError(t, newBareFixtureOf(t, s).do(t, "FLUSHALL").Error())
			requireSame(t, want, use(t.Context(), c))
			c.Close()

			c, dials = openLate(t, s.Addr())
			s.Stop()
			for range 2 {
				before := dials.Load()
				err := use(t.Context(), c)
				require.ErrorIs(t, err, rlock.ErrUnreachable)
				require.NotErrorIs(t, err, rlock.ErrPending, "nothing was sent")
				require.ErrorContains(t, err, "cannot connect to Redis at "+s.Addr()+": ")
				require.ErrorContains(t, err, "(start Redis there, or correct the address)")
				require.Equal(t, 1, strings.Count(err.Error(), "connection refused"), err)
				require.NotContains(t, err.Error(), "\n")
				require.Greater(t, dials.Load(), before)
			}
			s.Restart()
			requireSame(t, want, use(t.Context(), c))

			c, dials = openLate(t, s.Addr())
			closed := newClient(t, s.Client(t))
			c.Close()
			closed.Close()
			if want := use(t.Context(), closed); want != nil { // some work after Close as well, on a connection that is there
				require.Error(t, use(t.Context(), c))
			}
			require.Zero(t, dials.Load())
		})
	}
}

// newBareFixtureOf is a fixture of a server, without a lock client.
func newBareFixtureOf(t *testing.T, s *redistest.Server) fixture { return fixture{rdb: s.Client(t)} }

// requireSame requires the same kind of error, or none.
func requireSame(t *testing.T, want, is error) {
	t.Helper()
	require.Equal(t, want == nil, is == nil, "%v, want %v", is, want)
	if want != nil {
		require.Equal(t, want.Error(), is.Error())
	}
}

// Those who come first together share an attempt, and those who fail together the next ones.
func TestConnectOnUseIsShared(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const callers = 50
		s := redistest.Start(t)
		open := make(chan struct{})
		c, dials := openLate(t, s.Addr(), open)
		var all sync.WaitGroup
		lock := func(wants bool) {
			for i := range callers {
				all.Go(func() {
					err := c.Mutex(strings.Repeat("x", i+1)).Do(context.Background(), nothingToDo)
					if (err == nil) != wants {
						t.Error(err)
					}
				})
			}
		}
		s.Stop()
		lock(false)
		<-time.After(time.Second / 2)
		require.EqualValues(t, 1, dials.Load())
		close(open)
		all.Wait()
		s.Restart()
		before := dials.Load()
		lock(true)
		all.Wait()
		require.LessOrEqual(t, dials.Load(), before+4, "one attempt, and rueidis's own connections")
	})
}

// A Lock does not wait longer for an attempt than for anything else. Close waits for it, and so does the next Lock.
func TestConnectOnUseIsLeft(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		open := make(chan struct{})
		c, dials := openLate(t, s.Addr(), open)
		m := c.Mutex("x")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, _, err := m.Lock(ctx)
		requireTook(t, 100*time.Millisecond, began, time.Now())
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		began = time.Now()
		_, _, err = m.TryLock(t.Context(), 0)
		requireTook(t, time.Second, began, time.Now())
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		next := lockAsync(t, m)
		sleep(time.Second)
		next.stillWaits(t)
		close(open)
		next.getAndUnlock(t, testTimeout)
		require.LessOrEqual(t, dials.Load(), int32(2), "one attempt, and a connection that rueidis may add")
	})
	redistest.RunVirtual(t, "Close", func(t *testing.T) {
		s := redistest.Start(t)
		open := make(chan struct{})
		c, _ := openLate(t, s.Addr(), open)
		waiter := lockAsync(t, c.Mutex("x"))
		sleep(time.Second)
		waiter.stillWaits(t)
		closed := async(func() error { c.Close(); return nil })
		require.ErrorIs(t, waiter.get(t, time.Second).err, rlock.ErrClosed)
		close(open)
		require.NoError(t, within(t, closed, time.Second))
	})
	redistest.RunVirtual(t, "Close gives up", func(t *testing.T) {
		s := redistest.Start(t)
		open := make(chan struct{})
		c, _ := openLate(t, s.Addr(), open)
		waiter := lockAsync(t, c.Mutex("x"))
		sleep(time.Second)
		closed := async(func() error { c.Close(); return nil })
		require.ErrorIs(t, waiter.get(t, time.Second).err, rlock.ErrClosed)
		require.NoError(t, within(t, closed, 6*time.Second))
		close(open) // the connection is closed: no goroutine is left
	})
}

// A program that starts long before its Redis.
func TestConnectOnUseWaits(t *testing.T) {
	redistest.OnlyVirtual(t, "it waits for long", func(t *testing.T) {
		s := redistest.Start(t)
		s.Stop()
		one, _ := openLate(t, s.Addr())
		two, _ := openLate(t, s.Addr())
		on := rlock.WithWaitForRedis()
		var waiters []pendingLock
		for _, l := range []rlock.Locker{
			one.Mutex("a", on), rlock.All(one.Mutex("b", on), one.Mutex("c")), rlock.All(one.Mutex("d"), two.FairMutex("e", on)),
			one.RWMutex("f", on).Upgradeable(),
		} {
			waiters = append(waiters, lockAsync(t, l))
		}
		sleep(time.Hour)
		s.Restart()
		for _, w := range waiters {
			w.getAndUnlock(t, 5*time.Second)
		}
	})
}

// A Client that connects late finds out what it is connected to. Handles made before know it.
func TestConnectOnUseOfDeployments(t *testing.T) {
	cluster, sentinels := redistest.SharedCluster(t), redistest.SharedSentinel(t)
	redistest.Parallel(t)
	s := redistest.Start(t)
	for name, url := range map[string]string{
		"a server":  "redis://" + s.Addr(),
		"a node":    "redis://" + cluster.Addrs()[0],
		"nodes":     "redis://127.0.0.1:1?addr=" + strings.Join(cluster.Addrs(), "&addr="),
		"sentinels": "redis://127.0.0.1:1?master_set=" + redistest.MasterSet + "&addr=" + strings.Join(sentinels.Addrs(), "&addr="),
	} {
		t.Run(name, func(t *testing.T) {
			c := withPatience(t, answer(rlock.Open(patiently(url), unhurried(t, rlock.Options{ConnectOnUse: true}))).ok(t))
			defer c.Close()
			now := withPatience(t, answer(rlock.Open(patiently(url), unhurried(t))).ok(t))
			defer now.Close()
			prefix := redistest.Name(t)
			var members []rlock.Locker
			for _, odd := range []string{"%s:a", "%s:b", "%s:c", "{%s}:1", "{%s}:2"} {
				members = append(members, c.FencedMutex(fmt.Sprintf(odd, prefix)))
			}
			all, misfit := rlock.All(members...), c.FairMutex("a{}b")
			alone, same := c.Mutex(prefix+":alone"), now.Mutex(prefix+":alone")
			apart := c.FencedMutex(prefix + ":apart")
			early := rlock.All(c.Mutex(prefix+":f"), misfit)

			want := rlock.All(now.Mutex(prefix+":f"), now.FairMutex("a{}b")).Do(t.Context(), nothingToDo)
			requireSame(t, want, early.Do(t.Context(), nothingToDo))
			require.NoError(t, all.Do(t.Context(), nothingToDo))
			want = now.FairMutex("a{}b").Do(t.Context(), nothingToDo)
			requireSame(t, want, misfit.Do(t.Context(), nothingToDo))
			require.Equal(t, name == "a node" || name == "nodes", want != nil)
			require.NoError(t, apart.Do(t.Context(), nothingToDo))

			_, unlock := enter(t, t.Context(), alone)
			waiter := lockAsync(t, same)
			redistest.Eventually(t, testTimeout, func() bool { return now.Stats().Waiting == 1 }, "it waits")
			require.NoError(t, unlock())
			waiter.getAndUnlock(t, rlock.DefaultWatchdogTimeout/2) // they agree on the channel
		})
	}
	for name, first := range map[string]func(c *rlock.Client) error{
		"Lock": func(c *rlock.Client) error { return c.FairMutex("a{}b").Do(t.Context(), nothingToDo) },
		"Info": func(c *rlock.Client) error { return errorOf(c.FairMutex("a{}b").Info(t.Context())) },
		"All": func(c *rlock.Client) error {
			return rlock.All(c.FairMutex("a{}b"), c.Mutex(redistest.Name(t))).Do(t.Context(), nothingToDo)
		},
	} {
		t.Run("a wrong name first, "+name, func(t *testing.T) {
			c := answer(rlock.Open(patiently("redis://"+cluster.Addrs()[1]), rlock.Options{ConnectOnUse: true})).ok(t)
			defer c.Close()
			require.ErrorContains(t, first(c), "on a cluster the name of such a lock may have braces only around what is hashed")
		})
	}
}

// Refusals are no outages, and Open still reports what it can know.
func TestConnectOnUseReports(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t, "--requirepass", "secret")
	c, err := rlock.Open(patiently("redis://"+s.Addr()), rlock.Options{ConnectOnUse: true})
	require.NoError(t, err)
	defer c.Close()
	for range 2 {
		_, _, err := c.Mutex("x", rlock.WithWaitForRedis()).Lock(t.Context())
		require.ErrorContains(t, err, "NOAUTH")
		require.ErrorContains(t, err, "(look at the user and the password)")
		require.NotErrorIs(t, err, rlock.ErrUnreachable)
	}
	_, err = rlock.Open("http://x", rlock.Options{ConnectOnUse: true})
	require.ErrorContains(t, err, "not a Redis URL")
	_, err = rlock.OpenWith(rueidis.ClientOption{}, rlock.Options{ConnectOnUse: true})
	require.ErrorContains(t, err, "set InitAddress")
	_, err = rlock.OpenWith(rueidis.ClientOption{InitAddress: []string{s.Addr()}, PipelineMultiplex: 100}, rlock.Options{ConnectOnUse: true})
	require.ErrorIs(t, err, rueidis.ErrWrongPipelineMultiplex)
	require.NotErrorIs(t, err, rlock.ErrUnreachable)
	_, err = rlock.Open("redis://"+s.Addr(), rlock.Options{ConnectOnUse: true, UnlockTimeout: 1})
	require.ErrorContains(t, err, "UnlockTimeout")
}
