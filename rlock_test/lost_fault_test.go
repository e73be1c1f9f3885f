package rlock_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// excluded requires that others don't get the lock.
func (r *proxied) excluded(t testing.TB) {
	t.Helper()
	refusalOf(t, r.other.Mutex(r.name), 0)
}

// free requires that others get the lock at once.
func (r *proxied) free(t testing.TB) {
	t.Helper()
	require.False(t, r.exists(t, r.name))
	require.NoError(t, r.other.Mutex(r.name).TryDo(context.Background(), 0, nothing))
}

// forLonger is a handle whose lease is so long that each re-entry sends a command.
func (r *proxied) forLonger() *rlock.Mutex { return r.Client.Mutex(r.name, rlock.WithLease(time.Hour)) }

// G1, G5, G6: each call of a section in turn is lost before or after Redis has run it, with its connection or in silence, or the server is
// not ready. Each call succeeds, once, and others are kept out until the last unlock.
func TestLostCalls(t *testing.T) {
	for _, call := range lostCalls {
		for loss, strike := range map[string]struct {
			leg    string
			action redistest.Action
		}{
			"request lost": {"request", redistest.Cut}, "reply lost": {"reply", redistest.Cut}, "silence": {"reply", redistest.Drop},
			"LOADING":  {"request", redistest.Fail("LOADING Redis is loading the dataset in memory")},
			"BUSY":     {"request", redistest.Fail("BUSY Redis is busy running a script.")},
			"READONLY": {"request", redistest.Fail("READONLY You can't write against a read only replica.")},
		} {
			redistest.RunVirtual(t, call.what+"/"+loss, func(t *testing.T) {
				call.isLost(t, strike.leg, strike.action, rlock.DefaultWatchdogTimeout)
			})
		}
	}
}

// The server in memory does not speak RESP3. How long a hold with a lost renewal lasts is tested there all the same.
func TestLostCallsOverRESP3(t *testing.T) {
	redistest.Parallel(t)
	for _, call := range lostCalls {
		t.Run(call.what, func(t *testing.T) {
			redistest.Parallel(t)
			call.isLost(t, "reply", redistest.Cut, 9*time.Second)
		})
	}
}

// lostCall is a call of a section, by the number of its script call; it is a renewal only where the test waits for one.
type lostCall struct {
	what string
	n    int64
}

var lostCalls = []lostCall{{"acquire", 1}, {"re-entry for longer", 2}, {"count", 3}, {"unlock", 4}, {"renewal", 3}}

// isLost runs a section in which that call is lost.
func (call lostCall) isLost(t *testing.T, leg string, action redistest.Action, watchdog time.Duration) {
	t.Helper()
	r := newProxied(t, rlock.Options{WatchdogTimeout: watchdog, UnlockTimeout: testTimeout})
	var calls atomic.Int64
	legs[leg](r.proxy, func(cmd []string) redistest.Action {
		if cmd[0] != "EVALSHA" || cmd[3] != r.name {
			return redistest.Pass
		}
		if calls.Add(1) == call.n {
			return action
		}
		return redistest.Pass
	})
	ctx, unlock := enter(t, context.Background(), r.Client.Mutex(r.name))
	require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, r.fields(t, r.name))
	r.excluded(t)
	m := r.forLonger()
	if call.what == "renewal" {
		m = r.Client.Mutex(r.name)
	}
	inner, unlockInner := enter(t, ctx, m)
	r.awaitFields(t, r.name, map[string]int64{rlock.Owner(ctx): 2})
	switch {
	case call.what != "renewal":
	case redistest.IsVirtual(t):
		for range 15 {
			sleep(watchdog / 10)
			require.Positive(t, r.pttl(t, r.name))
		}
	default:
		redistest.Eventually(t, watchdog, func() bool { return calls.Load() > call.n }, "it is repeated")
	}
	require.NoError(t, unlockInner())
	require.Error(t, inner.Err())
	require.ErrorIs(t, unlockInner(), rlock.ErrNotHeld)
	r.awaitFields(t, r.name, map[string]int64{rlock.Owner(ctx): 1})
	r.excluded(t)
	require.NoError(t, ctx.Err())
	require.NoError(t, unlock())
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
	r.free(t)
	require.GreaterOrEqual(t, calls.Load(), call.n)
}

// G2, G8: no renewal succeeds. The holder's ctx is cancelled no later than its lease ends, counted from the last renewal that was answered.
// Its unlock reports the loss, and neither that nor a late renewal harms the next hold.
func TestRenewalsFail(t *testing.T) {
	const watchdog = 6 * time.Second
	for name, fails := range map[string]func(r *proxied, renewal string){
		"unanswered":   func(r *proxied, renewal string) { r.proxy.OnReply(redistest.Each(renewal, redistest.Drop)) },
		"replies lost": func(r *proxied, renewal string) { r.proxy.OnReply(redistest.Each(renewal, redistest.Cut)) },
		"late":         func(r *proxied, renewal string) { r.proxy.OnRequest(redistest.Each(renewal, redistest.Hold)) },
		"refused": func(r *proxied, renewal string) {
			r.proxy.OnRequest(redistest.Each(renewal, redistest.Fail("LOADING Redis is loading the dataset in memory")))
		},
		"black hole": func(r *proxied, _ string) { r.proxy.BlackHole(true) },
		"no network": func(r *proxied, _ string) { r.proxy.Refuse(true); r.proxy.CutAll() },
		"stopped": func(r *proxied, _ string) {
			r.server.Pause()
			time.AfterFunc(2*watchdog, r.server.Resume)
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newProxied(t, rlock.Options{WatchdogTimeout: watchdog})
			held := locked(t, r.Client.Mutex(r.name))
			next := lockAsync(t, newClient(t, r.rdb).Mutex(r.name))
			r.awaitSubscribers(t, r.name, 1)
			redistest.Eventually(t, watchdog, func() bool { return r.pttl(t, r.name) < watchdog*3/4 }, "time passes")
			redistest.Eventually(t, watchdog, func() bool { return r.pttl(t, r.name) > watchdog*3/4 }, "renewed")
			began := time.Now().Add(r.pttl(t, r.name) - watchdog)
			fails(r, "EVALSHA "+r.load(t, "renew"))
			<-held.ctx.Done()
			requireTookAtMost(t, watchdog+time.Millisecond, began, time.Now()) // PTTL has whole ones
			err := held.unlock()
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			got := next.gets(t, testTimeout)
			requireLostBy(t, held.ctx, got.at)
			require.LessOrEqual(t, got.at.Sub(began), 3*watchdog)
			r.proxy.Release()
			sleep(watchdog / 2)
			r.held(t, got, 1)
			require.NoError(t, got.unlock())
			require.False(t, r.exists(t, r.name))
		})
	}
}

// G2: a pause of Redis that is shorter than the lease costs no hold, and an unlock takes as long as the pause.
func TestRedisPausesForLessThanTheLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog, pause = 4 * time.Second, 1200 * time.Millisecond
		r := newProxied(t, rlock.Options{WatchdogTimeout: watchdog})
		ctx, unlock := enter(t, context.Background(), r.Client.Mutex(r.name))
		next := lockAsync(t, r.other.Mutex(r.name))
		for range 3 {
			r.server.Pause()
			sleep(pause)
			r.server.Resume()
			sleep(watchdog / 3)
			require.NoError(t, ctx.Err())
			next.stillWaits(t)
		}
		r.server.Pause()
		unlocked, began := async(unlock), time.Now()
		time.AfterFunc(pause, r.server.Resume)
		require.NoError(t, within(t, unlocked, testTimeout))
		requireTook(t, pause, began, time.Now())
		next.getAndUnlock(t, soon)
	})
}

// G2, G4, G8: Redis loses its data. The holder is told by its next renewal or call, or when its fixed lease is over. Its waiters ask once
// they have subscribed again, and don't wait for the lease that is lost.
func TestRedisLosesItsData(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog, lease = 12 * time.Second, 8 * time.Second
		r := newProxied(t, rlock.Options{WatchdogTimeout: watchdog})
		holds := make(map[string]lockResult)
		began := time.Now()
		for name, m := range map[string]*rlock.Mutex{
			"renewed": r.Client.Mutex(r.name), "fixed": r.Client.Mutex("fixed", rlock.WithLease(lease)), "called": r.Client.Mutex("called", rlock.WithLease(lease)),
		} {
			holds[name] = lockAsync(t, m).get(t, soon)
			require.NoError(t, holds[name].err)
		}
		var waits []pendingLock
		for range 8 {
			waits = append(waits, lockAsync(t, newClient(t, r.server.Client(t)).Mutex(r.name)))
		}
		r.awaitSubscribers(t, r.name, len(waits))
		r.server.Kill()
		r.server.Restart()
		redistest.Eventually(t, soon, func() bool { return r.do(t, "PING").Error() == nil }, "connected again")
		requireLockFails(t, holds["called"].ctx, r.Client.Mutex("called", rlock.WithLease(time.Hour)), rlock.ErrLost)
		for range waits {
			var got lockResult
			redistest.Eventually(t, 2*time.Second, func() bool { // a second between attempts to connect
				for _, p := range waits {
					select {
					case got = <-p.result:
						return true
					default:
					}
				}
				return false
			}, "the next one is in")
			require.NoError(t, got.err)
			require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, r.fields(t, r.name))
			require.NoError(t, got.unlock())
		}
		<-holds["renewed"].ctx.Done()
		requireTookAtMost(t, watchdog/3+time.Second, began, time.Now()) // a call may have to connect
		<-holds["fixed"].ctx.Done()
		requireTookAtMost(t, lease, began, time.Now())
		for name, h := range holds {
			require.ErrorIs(t, context.Cause(h.ctx), rlock.ErrLost, name)
			require.ErrorIs(t, h.unlock(), rlock.ErrLost, name)
		}
	})
}

// G4: a waiter's SUBSCRIBE or its confirmation is lost, with its connection or in silence, or the message that wakes it. It asks once it has
// subscribed again.
func TestWaiterLosesItsSubscription(t *testing.T) {
	for _, what := range []string{"request", "reply", "message"} {
		for _, action := range []redistest.Action{redistest.Cut, redistest.Drop} {
			redistest.RunVirtual(t, what+"/"+string(action), func(t *testing.T) {
				r := newProxied(t)
				_, unlock := enter(t, context.Background(), r.other.Mutex(r.name))
				var lost atomic.Bool
				on := legs[what]
				if what == "message" {
					on = legs["reply"]
				}
				on(r.proxy, func(cmd []string) redistest.Action {
					if lost.Load() || !strings.HasSuffix(cmd[0], map[bool]string{true: "MESSAGE", false: "SUBSCRIBE"}[what == "message"]) {
						return redistest.Pass
					}
					lost.Store(true)
					return action
				})
				waiter := lockAsync(t, r.Client.Mutex(r.name))
				if what == "message" {
					r.awaitSubscribers(t, r.name, 1)
					sleep(time.Second)
					if action == redistest.Drop { // a lost message leaves no hole: the whole connection falls silent
						r.proxy.BlackHole(true)
						time.AfterFunc(10*time.Second, func() { r.proxy.BlackHole(false) })
					}
				} else {
					redistest.Eventually(t, testTimeout, lost.Load, "it is lost")
				}
				began := time.Now()
				require.NoError(t, unlock())
				got := waiter.gets(t, testTimeout)
				requireTookAtMost(t, 12*time.Second, began, got.at) // rueidis keeps a silent connection for 10 s
				require.NoError(t, got.unlock())
				r.clear(t)
			})
		}
	}
}

// G2, G5: the server is not ready for long. Lock and unlock fail after 3 s, with the server's words. When it is ready, the unlock follows.
func TestServerIsNotReadyForLong(t *testing.T) {
	for _, line := range []string{"LOADING Redis is loading the dataset in memory", "BUSY Redis is busy running a script.", "READONLY You can't write against a read only replica."} {
		redistest.RunVirtual(t, strings.Fields(line)[0], func(t *testing.T) {
			r := newProxied(t)
			_, unlock := enter(t, context.Background(), r.Client.Mutex(r.name))
			var ready atomic.Bool
			r.proxy.OnRequest(func(cmd []string) redistest.Action {
				if ready.Load() || !isScript(cmd) {
					return redistest.Pass
				}
				return redistest.Fail(line)
			})
			began, unlocked := time.Now(), async(unlock)
			for _, err := range []error{lockAsync(t, r.Client.Mutex("new")).get(t, testTimeout).err, within(t, unlocked, testTimeout)} {
				require.ErrorIs(t, err, rlock.ErrUnreachable)
				require.ErrorContains(t, err, strings.Fields(line)[0])
				require.NotErrorIs(t, err, rlock.ErrNotAcquired)
				requireTookAtMost(t, 3*time.Second, began, time.Now())
			}
			require.True(t, r.exists(t, r.name))
			ready.Store(true)
			redistest.Eventually(t, 5*time.Second, func() bool { return !r.exists(t, r.name) }, "released in the background")
			r.free(t)
		})
	}
}

// G2: a hold is lost while a Lock in its section waits for Redis: the Lock reports that, and not a cancelled ctx.
func TestReentryMeetsTheLoss(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t)
		ctx, unlock := enter(t, context.Background(), r.Client.Mutex(r.name, rlock.WithLease(2*time.Second)))
		r.proxy.BlackHole(true)
		_, _, err := r.forLonger().Lock(ctx)
		require.ErrorIs(t, err, rlock.ErrLost)
		require.NotErrorIs(t, err, rlock.ErrNotAcquired)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
	})
}

// G5: a server that has no room refuses each connection unasked. If the ctx of a call ends just after rueidis v1.0.79 has dialled for it, and
// the server says something, rueidis panics (pipe.Close). So no call begins at the end of its unlock's time, however long it takes to connect.
// The unlocks are made up for when there is room again.
func TestUnlocksOfAFullServer(t *testing.T) {
	redistest.OnlyVirtual(t, "to connect takes exact times", func(t *testing.T) {
		s := redistest.Start(t)
		proxy := redistest.StartProxy(t, s.Addr())
		var full atomic.Bool
		const clients = 100
		var unlocks [clients]rlock.UnlockFunc
		for i := range unlocks {
			refused := func(o *rueidis.ClientOption) {
				dial := o.DialCtxFn
				o.ClientSetInfo = rueidis.DisableClientSetInfo
				o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
					if !full.Load() {
						return dial(ctx, addr, d, secure)
					}
					select {
					case <-time.After(time.Duration(i) * 5 * time.Millisecond):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					conn, server := net.Pipe()
					go func() { // ends when the client has read it, or hung up
						_, _ = server.Write([]byte("-ERR max number of clients reached\r\n"))
						_ = server.Close()
					}()
					return conn, nil
				}
			}
			c := newClient(t, redistest.Dial(t, proxy.Addr(), refused), rlock.Options{UnlockTimeout: 2 * time.Second})
			var err error
			_, unlocks[i], err = c.Mutex(fmt.Sprint("order:", i)).Lock(context.Background())
			require.NoError(t, err)
		}
		full.Store(true)
		proxy.CutAll()
		var wg sync.WaitGroup
		for _, unlock := range unlocks {
			wg.Go(func() { assert.ErrorIs(t, unlock(), rlock.ErrUnreachable) })
		}
		wg.Wait()
		full.Store(false)
		b := fixture{rdb: s.Client(t)}
		redistest.Eventually(t, testTimeout, func() bool { return b.size(t) == 0 }, "released in the background")
	})
}

// overtaken holds a renewal back until Redis has run the release, and then the answer to the release until the renewer has worked in the
// renewal's.
type overtaken struct {
	rueidis.Client

	renew, release             string // the scripts' names in Redis
	renewing, released, worked chan struct{}
}

func (o *overtaken) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	switch words := cmd.Commands(); {
	case words[0] == "EVALSHA" && words[1] == o.renew && slices.Contains(words, "overtaken") && slices.Contains(words, "beside"):
		close(o.renewing)
		<-o.released
	case words[0] == "EVALSHA" && words[1] == o.release && slices.Contains(words, "overtaken"):
		result := o.Client.Do(ctx, cmd)
		close(o.released)
		<-o.worked
		return result
	}
	return o.Client.Do(ctx, cmd)
}

// G6, G7, G8: a renewal reaches Redis after the release, but its answer arrives first: the hold is gone. The unlock, which released the lock,
// still returns nil.
func TestUnlockIsOvertakenByARenewal(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t)
		o := &overtaken{
			Client: r.rdb, renew: r.load(t, "renew"), release: r.release,
			renewing: make(chan struct{}), released: make(chan struct{}), worked: make(chan struct{}),
		}
		var once sync.Once
		c := newClient(t, o, rlock.Options{Trace: &rlock.Trace{Renewed: func(rlock.RenewedInfo) {
			select {
			case <-o.released:
				once.Do(func() { close(o.worked) })
			default: // an earlier renewal
			}
		}}})
		_, unlockBeside := enter(t, context.Background(), c.Mutex("beside"))
		_, unlock := enter(t, context.Background(), c.Mutex("overtaken"))
		<-o.renewing
		require.NoError(t, unlock())
		require.False(t, r.exists(t, "overtaken"))
		require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
		require.NoError(t, unlockBeside())
	})
}
