package rlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// In these tests a connection of rueidis expires, falls silent, or leads to a node that is no longer the master, while
// commands are under way.

// isScript reports whether a command seen by a proxy is a script call.
func isScript(cmd []string) bool { return strings.HasPrefix(cmd[0], "EVAL") }

// nthScript applies action to the nth script call.
func nthScript(n int32, action redistest.Action) redistest.Hook {
	var seen atomic.Int32
	return func(cmd []string) redistest.Action {
		if isScript(cmd) && seen.Add(1) == n {
			return action
		}
		return redistest.Pass
	}
}

// expiring is a client behind a proxy, with connections that live for 3 s.
type expiring struct {
	fixture // bypasses the proxy
	proxy   *redistest.Proxy
	lock    *rlock.Client // through the proxy
	ends    time.Time     // when the first connection expires
}

func newExpiring(t *testing.T, wrap func(rueidis.Client) rueidis.Client) expiring {
	t.Helper()
	const life = 3 * time.Second
	s := redistest.Start(t)
	e := expiring{fixture: fixture{rdb: s.Client(t), name: redistest.Name(t)}, proxy: redistest.StartProxy(t, s.Addr())}
	e.Client = newClient(t, e.rdb)
	e.ends = time.Now().Add(life)
	e.lock = newClient(t, wrap(redistest.Dial(t, e.proxy.Addr(), func(o *rueidis.ClientOption) {
		o.ConnLifetime, o.PipelineMultiplex, o.AlwaysPipelining = life, -1, true
	})), rlock.Options{UnlockTimeout: testTimeout}) // it may begin too late, on the next connection, and last until that expires
	loadScripts(t, e.lock)
	return e
}

// bare is a client as rueidis makes it.
func bare(rdb rueidis.Client) rueidis.Client { return rdb }

// embedded is a client in a struct, as wrappers for tracing are.
func embedded(rdb rueidis.Client) rueidis.Client { return struct{ rueidis.Client }{rdb} }

// inTime is a client that gives each command a ctx of its own.
type inTime struct{ rueidis.Client }

func limited(rdb rueidis.Client) rueidis.Client { return &inTime{rdb} }

func (l *inTime) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	own, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return l.Client.Do(own, cmd)
}

// awaitExpiry returns shortly before the connection expires, so that a reply held back from then on is late.
func (e expiring) awaitExpiry() { sleep(time.Until(e.ends.Add(-200 * time.Millisecond))) }

// With ConnLifetime, rueidis resends an unlock or a hand-off if its reply is late when the connection expires. Nobody
// else had the hold, so the unlock must not report a loss.
func TestExpiredConnectionRepeatsTheUnlock(t *testing.T) {
	for _, how := range []string{"release", "hand-off"} {
		for name, wrap := range map[string]func(rueidis.Client) rueidis.Client{"": bare, ", wrapped": embedded, ", with a ctx of its own": limited} {
			redistest.RunVirtual(t, how+name, func(t *testing.T) {
				e := newExpiring(t, wrap)
				m := e.lock.Mutex(e.name)
				_, unlock := enter(t, context.Background(), m)
				var next pendingLock
				if how == "hand-off" {
					next = lockAsync(t, m)
					e.awaitSubscribers(t, e.name, 1)
				}
				e.awaitExpiry()
				e.proxy.OnReply(nthScript(1, redistest.Hold))
				require.NoError(t, within(t, async(unlock), testTimeout))
				e.proxy.Release()
				if how == "hand-off" {
					next.getAndUnlock(t, testTimeout)
				}
				redistest.Eventually(t, testTimeout, func() bool { return !e.exists(t, e.name) }, "free")
			})
		}
	}
}

// The first copy of such an unlock arrives while the same goroutine's next hold is live. It ends nothing, since each
// hold has an owner of its own.
func TestLateCopyOfAnUnlockSparesTheNextHold(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newExpiring(t, bare)
		outer, unlockOuter := enter(t, context.Background(), e.lock.Mutex(e.name+":outer"))
		m := e.lock.Mutex(e.name)
		_, unlock := enter(t, outer, m)
		e.awaitExpiry()
		e.proxy.OnRequest(nthScript(1, redistest.Hold))
		require.NoError(t, within(t, async(unlock), testTimeout))
		again, unlock := enter(t, outer, m)
		e.proxy.Release()
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); sleep(10 * time.Millisecond) {
			require.Equal(t, map[string]int64{rlock.Owner(again): 1}, e.fields(t, e.name))
		}
		_, _, err := e.Mutex(e.name).TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired, "G1")
		require.NoError(t, again.Err())
		require.NoError(t, unlock())
		require.NoError(t, unlockOuter())
	})
}

// A real loss is not mistaken for a resent unlock: with connections that do not expire, an unlock reports that the lock
// was forced open, however late its answer.
func TestSlowUnlockTellsOfALoss(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		_, unlock := enter(t, context.Background(), c.Mutex(b.name))
		b.do(t, "DEL", b.name)
		proxy.OnReply(nthScript(1, redistest.Hold))
		unlocked := async(unlock)
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "under way")
		sleep(1200 * time.Millisecond)
		proxy.Release()
		require.ErrorIs(t, within(t, unlocked, testTimeout), rlock.ErrLost)
	})
}

// Nor is a lock that was forced open taken for released because the unlock had to dial, came after Close, or was refused at first with the
// line in Redis, or because a wrapper of the client gives each command a ctx of its own.
func TestOtherUnlocksTellOfALoss(t *testing.T) {
	for name, row := range map[string]struct {
		wrap func(rueidis.Client) rueidis.Client
		life time.Duration
	}{
		"bare": {wrap: bare}, "with lifetime": {wrap: bare, life: time.Hour},
		"wrapped": {wrap: embedded}, "with a ctx of its own": {wrap: limited},
	} {
		for what, happens := range map[string]func(*redistest.Proxy, *rlock.Client){
			"nothing": func(*redistest.Proxy, *rlock.Client) {},
			"dials": func(p *redistest.Proxy, _ *rlock.Client) {
				p.CutAll()
				sleep(time.Second) // rueidis has noticed
			},
			"refused": func(p *redistest.Proxy, _ *rlock.Client) {
				p.OnRequest(nthScript(1, redistest.Fail("OOM command not allowed")))
			},
			"closed": func(_ *redistest.Proxy, c *rlock.Client) { c.Close() },
		} {
			redistest.RunVirtual(t, name+", "+what, func(t *testing.T) {
				s := redistest.Start(t)
				proxy := redistest.StartProxy(t, s.Addr())
				past := fixture{rdb: s.Client(t), name: redistest.Name(t)}
				c := newClient(t, row.wrap(redistest.Dial(t, proxy.Addr(), func(o *rueidis.ClientOption) {
					o.ConnLifetime, o.PipelineMultiplex, o.AlwaysPipelining = row.life, -1, true
				})))
				loadScripts(t, c)
				_, unlock := enter(t, context.Background(), c.Mutex(past.name))
				past.do(t, "DEL", past.name)
				happens(proxy, c)
				require.ErrorIs(t, within(t, async(unlock), testTimeout), rlock.ErrLost)
			})
		}
	}
}

// When rueidis closes the connection to the old master, a command under way gets ErrClosing, although it may have run:
// it counts as a lost reply. Lock succeeds at the new master, and nothing is left at either.
func TestLockDuringASentinelSwitch(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.StartSentinel(t)
	old := s.Master(t)
	proxy := redistest.StartProxy(t, old.Addr())
	rdb := s.Client(t, redistest.Via(proxy), func(o *rueidis.ClientOption) { o.AlwaysPipelining = true })
	c := newClient(t, rdb)
	loadScripts(t, c)
	proxy.OnReply(redistest.Each("EVALSHA", redistest.Hold)) // of the repeats, too, if the switch takes long
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	p := lockAsync(t, under{ctx, c.Mutex("x", rlock.WithWaitForRedis())}) // the switch may take longer than the others wait
	redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() > 0 }, "the command ran, and its answer was held back")
	sentinel := fixture{rdb: s.Sentinels()[0].Client(t, redistest.Single)}
	require.NoError(t, sentinel.do(t, "SENTINEL", "FAILOVER", "mymaster").Error())
	p.getAndUnlock(t, testTimeout)
	redistest.Eventually(t, testTimeout, func() bool {
		n, err := rdb.Do(context.Background(), rdb.B().Exists().Key("x").Build()).AsInt64()
		return err == nil && n == 0
	}, "nothing is left at the new master")
}

// One connection falls silent while Redis is well: the acquire is resent on another connection.
func TestLockOnASilentConnection(t *testing.T) {
	for name, ctx := range map[string]func(*testing.T) context.Context{
		"cancellable":        func(t *testing.T) context.Context { return t.Context() },
		"context.Background": func(*testing.T) context.Context { return context.Background() },
	} {
		t.Run(name, func(t *testing.T) {
			inBothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
				c, proxy, b := behindProxy(t, way)
				proxy.OnReply(nthScript(1, redistest.Drop))
				lockAsync(t, under{ctx(t), c.Mutex(b.name)}).getAndUnlock(t, testTimeout)
			})
		})
	}
}

// The same on a cluster with a hanging master: rueidis finds the new master shortly after the first retry.
func TestLockWhileAClusterSwitches(t *testing.T) {
	redistest.Parallel(t)
	cl := redistest.StartCluster(t, 3, 1)
	c := newClient(t, cl.Client(t, func(o *rueidis.ClientOption) {
		o.AlwaysPipelining, o.ConnWriteTimeout = true, 2*time.Second // after which it leaves a silent connection
	}))
	require.NoError(t, c.Mutex("x").Do(context.Background(), nothing))
	old := cl.Owner(t, cl.Slot(t, "x"))
	old.Pause()
	defer old.Resume()
	lockAsync(t, c.Mutex("x", rlock.WithWaitForRedis())).getAndUnlock(t, testTimeout) // the switch may take longer than the others wait
}

// An unanswered renewal delays neither Close nor the unlock.
func TestUnansweredRenewalHoldsUpNothing(t *testing.T) {
	const watchdog = time.Minute // a sixth of it, 10 s, would be too long
	for _, end := range []string{"Close", "unlock"} {
		redistest.RunVirtual(t, end, func(t *testing.T) {
			c, proxy, _ := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: watchdog, UnlockTimeout: 5 * time.Second})
			_, unlock := enter(t, context.Background(), c.Mutex("x"))
			renewed := make(chan struct{})
			drop := nthScript(1, redistest.Drop)
			proxy.OnRequest(func(cmd []string) redistest.Action {
				action := drop(cmd)
				if action == redistest.Drop {
					close(renewed)
				}
				return action
			})
			<-renewed
			began := time.Now()
			if end == "unlock" {
				require.NoError(t, unlock())
			} else {
				c.Close()
			}
			requireTookAtMost(t, 5*time.Second, began, time.Now()) // the renewal has a sixth of the watchdog time
		})
	}
}

// One connection of four falls silent. Even with the maximum number of calls stuck on it, other calls still go out,
// since Redis still answers this Client's unlocks and renewals.
func TestOneSilentConnectionSparesTheOthers(t *testing.T) {
	for _, answers := range []string{"unlocks", "renewals"} {
		redistest.RunVirtual(t, answers, func(t *testing.T) {
			o := rlock.Options{}
			if answers == "renewals" {
				o.WatchdogTimeout = time.Second
			}
			c, proxy, _ := behindProxy(t, func(o *rueidis.ClientOption) { o.AlwaysPipelining, o.PipelineMultiplex = true, 2 }, o)
			var held []rlock.UnlockFunc
			for i := range 100 {
				grace := rlock.WithGrace(time.Duration(i+1) * time.Millisecond) // different graces, so that no single call renews them all
				_, unlock := enter(t, context.Background(), c.Mutex(fmt.Sprint("held", i), grace))
				held = append(held, unlock)
			}
			redistest.Eventually(t, testTimeout, func() bool { return proxy.Conns() >= 4 }, "four connections")
			proxy.OnReply(nthScript(1, redistest.Hold))
			for left, i := 0, 0; left < 20; i++ {
				ctx, cancel := context.WithTimeout(context.Background(), 60*time.Millisecond)
				_, unlock, err := c.Mutex(fmt.Sprint("n", i)).Lock(ctx)
				cancel()
				if err != nil {
					require.ErrorIs(t, err, rlock.ErrUnreachable)
					left++
				} else {
					go func() { _ = unlock() }() // on the silent connection it ends with its timeout
				}
			}
			sleep(200 * time.Millisecond)
			if answers == "unlocks" {
				over := make(chan struct{})
				defer close(over)
				go func() { // ends with the test, or with the last hold; unlocks on the silent connection get no answer, the others do
					tick := time.NewTicker(50 * time.Millisecond)
					defer tick.Stop()
					for _, unlock := range held {
						async(unlock)
						select {
						case <-over:
							return
						case <-tick.C:
						}
					}
				}()
			}
			fine := 0
			for i := range 32 { // rueidis draws the connection of each
				ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
				_, _, err := c.Mutex(fmt.Sprint("later", i)).Lock(ctx)
				cancel()
				if err == nil {
					fine++
				}
			}
			proxy.Release()
			require.GreaterOrEqual(t, fine, 12, "of 32 Locks: one in four uses the silent connection") // by chance fewer in 1 of 600,000 runs
		})
	}
}

// A Redis that refuses connections is retried until a TryLock's time is over, or for three seconds by a Lock.
func TestRefusedConnectionsTakeTheWholeTime(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newClient(t, s.Client(t))
		loadScripts(t, c)
		s.Stop()
		for _, wait := range []time.Duration{1700 * time.Millisecond, 2 * time.Second, 2500 * time.Millisecond} {
			began := time.Now()
			_, _, err := c.Mutex("x").TryLock(context.Background(), wait)
			require.ErrorIs(t, err, rlock.ErrUnreachable)
			requireTook(t, wait, began, time.Now())
		}
		began := time.Now()
		requireLockFails(t, context.Background(), c.Mutex("x"), rlock.ErrUnreachable)
		requireTook(t, 3*time.Second, began, time.Now())
	})
}

// slowReply is a client that returns its nth script reply late.
type slowReply struct {
	rueidis.Client
	nth  *atomic.Int32 // counts down
	late time.Duration
}

func (s slowReply) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	slow := s.nth.Add(-1) == 0
	r := s.Client.Do(ctx, cmd)
	if slow {
		sleep(s.late) // a plain sleep: any synchronization here would hide a race from the detector
	}
	return r
}

// I1: the unlock of a lost hold reports the loss at once, although a re-entry is under way, and uses the re-entry's
// state only after it has ended.
func TestUnlockOfALostHoldBesideAReentry(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		nth := new(atomic.Int32)
		const late = 600 * time.Millisecond
		c := newClient(t, slowReply{b.rdb, nth, late})
		loadScripts(t, c)
		for range 3 {
			nth.Store(-1)
			ctx, unlock := enter(t, context.Background(), c.Mutex(b.name, rlock.WithLease(200*time.Millisecond)))
			nth.Store(1)
			began := time.Now()
			reentry := lockAsync(t, under{context.WithoutCancel(ctx), c.Mutex(b.name, rlock.WithLease(time.Hour))})
			<-ctx.Done()
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			require.Less(t, redistest.Ran(t, began, time.Now()), late)
			require.Error(t, reentry.get(t, testTimeout).err)
			redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "swept, even if the re-entry has prolonged the lease")
		}
	})
}

// explaining is a client that wraps each error, that of a nil reply included.
type explaining struct{ rueidis.Client }

type explainingConn struct{ rueidis.DedicatedClient }

func explained(r rueidis.RedisResult) rueidis.RedisResult {
	if err := r.Error(); err != nil {
		return rueidis.NewErrorResult(fmt.Errorf("shop's Redis: %w", err))
	}
	return r
}

func (e explaining) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return explained(e.Client.Do(ctx, cmd))
}

func (e explaining) Dedicate() (rueidis.DedicatedClient, func()) {
	conn, giveBack := e.Client.Dedicate()
	return explainingConn{conn}, giveBack
}

func (e explainingConn) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return explained(e.DedicatedClient.Do(ctx, cmd))
}

func (e explainingConn) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	results := e.DedicatedClient.DoMulti(ctx, cmds...)
	for i, r := range results {
		results[i] = explained(r)
	}
	return results
}

// An answer of the server is one, however a wrapper of the client has wrapped it: no connection is given up because of it, and what is refused
// is not tried again.
func TestWrappedAnswers(t *testing.T) {
	redistest.RunVirtual(t, "nil", func(t *testing.T) {
		s := redistest.Start(t)
		proxy := redistest.StartProxy(t, s.Addr())
		b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		c := newClient(t, explaining{redistest.Dial(t, proxy.Addr())})
		hold := locked(t, newClient(t, b.rdb).Mutex(b.name, rlock.WithLease(time.Hour)))
		p := lockAsync(t, c.Mutex(b.name))
		b.awaitSubscribers(t, b.name, 1)
		var subscribed atomic.Int32
		proxy.OnRequest(func(cmd []string) redistest.Action { // it has asked for the connection's name, which has none
			if cmd[0] == "SUBSCRIBE" {
				subscribed.Add(1)
			}
			return redistest.Pass
		})
		sleep(10 * time.Second)
		require.Zero(t, subscribed.Load(), "G3")
		require.NoError(t, hold.unlock())
		p.getAndUnlock(t, testTimeout)
	})
	redistest.RunVirtual(t, "refusal", func(t *testing.T) {
		s := redistest.Start(t)
		proxy := redistest.StartProxy(t, s.Addr())
		b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		c := newClient(t, explaining{redistest.Dial(t, proxy.Addr())})
		proxy.OnRequest(redistest.Each("SUBSCRIBE", redistest.Fail("NOPERM No permissions to access a channel")))
		hold := locked(t, newClient(t, b.rdb).Mutex(b.name))
		_, _, err := c.Mutex(b.name).TryLock(t.Context(), time.Minute)
		require.ErrorContains(t, err, "NOPERM")
		require.NotErrorIs(t, err, rlock.ErrNotAcquired)
		require.NoError(t, hold.unlock())
	})
}
