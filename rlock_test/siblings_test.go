package rlock_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Siblings are goroutines inside one section: they share the ctx of its hold. These tests let their calls for the lock meet.

// A sibling's Lock that needs a longer lease, and the unlock of the last level, wait for such a call that is under way.
// Whichever goes first, the section ends and the Lock competes: it gets the lock, unless it does not wait, and nothing
// left of the former hold ends it.
func TestSiblingMeetsTheLastUnlock(t *testing.T) {
	for name, wait := range map[string]time.Duration{"Lock": -1, "TryLock(0)": 0, "TryLock(wait)": testTimeout} {
		t.Run(name, func(t *testing.T) {
			redistest.OnlyVirtual(t, "only there it is known that the sibling waits", func(t *testing.T) {
				c, proxy, b := behindProxy(t, anyWay)
				b.Client = c
				ctx, unlock := enter(t, context.Background(), b.Mutex(b.name))
				m := b.Mutex(b.name, rlock.WithLease(time.Hour))

				proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
				gone, leave := context.WithCancel(ctx)
				first := lockAsync(t, under{gone, m})
				redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "a call is under way")
				leave() // the caller gives up, the call stays
				require.ErrorIs(t, first.get(t, testTimeout).err, context.Canceled)

				var l locker = m
				if wait >= 0 {
					l = tryFor{m, wait}
				}
				sibling := lockAsync(t, under{context.WithoutCancel(ctx), l})
				redistest.Settle(t) // it waits for that call
				unlocked := async(unlock)
				<-ctx.Done()
				proxy.Release()
				require.NoError(t, within(t, unlocked, testTimeout))
				a := sibling.get(t, testTimeout)
				if wait == 0 && a.err != nil { // Redis got its call before the one of the unlock
					require.ErrorIs(t, a.err, rlock.ErrNotAcquired)
					require.False(t, b.exists(t, b.name))
					return
				}
				require.NoError(t, a.err)
				b.awaitFields(t, b.name, map[string]int64{rlock.Owner(a.ctx): 1})
				for end := time.Now().Add(longestPause); time.Now().Before(end); sleep(10 * time.Millisecond) {
					require.Equal(t, map[string]int64{rlock.Owner(a.ctx): 1}, b.fields(t, b.name))
					require.NoError(t, a.ctx.Err())
				}
				require.NoError(t, a.unlock())
				require.False(t, b.exists(t, b.name))
			})
		})
	}
}

// longestPause covers the first tries to release a field in doubt.
const longestPause = 2500 * time.Millisecond

// under is a locker that replaces the ctx passed to Lock by its own.
type under struct {
	ctx context.Context
	locker
}

func (u under) Lock(context.Context) (context.Context, rlock.UnlockFunc, error) {
	return u.locker.Lock(u.ctx)
}

// Two Locks under one outer hold compete for another lock. The clean-up after an unanswered call of the first harms
// neither the second Lock nor the unlock before it.
func TestSweepingSparesTheNextHold(t *testing.T) {
	for name, fail := range map[string]func(t *testing.T, b fixture, proxy *redistest.Proxy, m *rlock.Mutex, ctx context.Context){
		"an acquire is lost, and its caller gives up": func(t *testing.T, b fixture, proxy *redistest.Proxy, m *rlock.Mutex, ctx context.Context) {
			_, unlockOther := enter(t, context.Background(), newClient(t, b.rdb).Mutex(b.name))
			proxy.OnRequest(redistest.Nth(1, "EVALSHA", redistest.Cut))
			gone, leave := context.WithCancel(ctx)
			first := lockAsync(t, under{gone, m})
			b.awaitSubscribers(t, b.name, 1)
			leave()
			require.ErrorIs(t, first.get(t, testTimeout).err, rlock.ErrNotAcquired)
			require.NoError(t, unlockOther())
		},
		"an unlock fails": func(t *testing.T, _ fixture, proxy *redistest.Proxy, m *rlock.Mutex, ctx context.Context) {
			_, unlock := enter(t, ctx, m)
			proxy.Refuse(true)
			proxy.CutAll()
			require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
			proxy.Refuse(false)
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			c, proxy, b := behindProxy(t, anyWay)
			b.Client = c
			ctx, unlockAround := enter(t, context.Background(), b.Mutex(b.name+":around"))
			m := b.Mutex(b.name)
			fail(t, b, proxy, m, ctx)
			a := lockAsync(t, under{ctx, m}).gets(t, testTimeout)
			for end := time.Now().Add(longestPause); time.Now().Before(end); sleep(10 * time.Millisecond) {
				require.Equal(t, map[string]int64{rlock.Owner(a.ctx): 1}, b.fields(t, b.name))
				require.NoError(t, a.ctx.Err())
			}
			require.NoError(t, a.unlock())
			require.False(t, b.exists(t, b.name))
			require.NoError(t, unlockAround())
		})
	}
}

// G9: the clean-up after an unanswered acquire goes on for as long as its lease would last, and no longer just because
// its owner also had a place in the queue, which the first answer removes.
func TestSweepingEndsWithTheLease(t *testing.T) {
	redistest.OnlyVirtual(t, "it ends at that moment", func(t *testing.T) {
		const watchdog = time.Second
		c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: watchdog})
		_, unlockOther := enter(t, context.Background(), past.Mutex(past.name))
		proxy.OnRequest(redistest.Nth(1, "EVALSHA", redistest.Cut))
		first := lockAsync(t, c.Mutex(past.name))
		past.awaitSubscribers(t, past.name, 1)
		first.cancel()
		require.ErrorIs(t, first.get(t, testTimeout).err, rlock.ErrNotAcquired)
		began, sweeps := time.Now(), 0
		var last time.Duration
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if isScript(cmd) {
				sweeps, last = sweeps+1, time.Since(began)
			}
			return redistest.Pass
		})
		sleep(10 * watchdog)
		require.Greater(t, sweeps, 1)
		require.Less(t, last, 2*watchdog, "of pauses that double, the last one began under the lease")
		require.NoError(t, unlockOther())
	})
}

// G5: a field that Redis refuses to release is tried again and again. What other calls have left is released at once all the same.
func TestSweepingBesideARefusal(t *testing.T) {
	redistest.OnlyVirtual(t, "it says when what is swept", func(t *testing.T) {
		c, proxy, past := behindProxy(t, anyWay)
		bad := past.name + ":bad"
		_, unlock := enter(t, context.Background(), c.Mutex(bad))
		past.do(t, "DEL", bad)
		past.do(t, "SET", bad, "not a lock")
		require.ErrorIs(t, unlock(), rlock.ErrPending)

		swept := make(chan struct{}, 100)
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if isScript(cmd) && slices.Contains(cmd, bad) {
				swept <- struct{}{}
			}
			return redistest.Pass
		})
		sleep(10 * time.Second)
		for len(swept) > 0 {
			<-swept
		}
		<-swept
		redistest.Settle(t) // the next one comes after the longest pause
		h := &leavingCallers{past, proxy}
		h.Client = c
		p := h.asks(t, c.Mutex(past.name))
		p.cancel()
		require.ErrorIs(t, p.get(t, soon).err, rlock.ErrNotAcquired)
		began := time.Now()
		proxy.CutAll()
		redistest.Eventually(t, testTimeout, func() bool { return !past.exists(t, past.name) }, "swept")
		require.Less(t, time.Since(began), 500*time.Millisecond)
		past.do(t, "DEL", bad)
	})
}

// layers locks three names in nested sections, each with siblings inside that lock the next ones, always in one order,
// so that nothing deadlocks.
type layers struct {
	clients []*rlock.Client
	names   [3]string
	in      [3]ledger
	unlock  func(error) // gets the result of each unlock
}

// run locks one of the names from index from on. Under the ctx of a section it re-enters that name's hold, and competes for the others.
func (l *layers) run(ctx context.Context, client, depth, from int) {
	if rand.N(3) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rand.N(20*time.Millisecond))
		defer cancel()
	}
	i := from + rand.N(len(l.names)-from)
	m := l.clients[client].Mutex(l.names[i])
	if rand.N(4) == 0 {
		m = l.clients[client].Mutex(l.names[i], rlock.WithLease(testTimeout))
	}
	var how locker = m
	switch rand.N(3) {
	case 0:
		how = tryFor{m, 0}
	case 1:
		how = tryFor{m, rand.N(10 * time.Millisecond)}
	}
	bounded, cancel := context.WithTimeout(ctx, 2*time.Second) // bounds the section, too
	defer cancel()
	locked, unlock, err := how.Lock(bounded)
	if err != nil {
		return
	}
	l.in[i].enter(locked)
	sleep(rand.N(time.Millisecond))
	var inside sync.WaitGroup
	if depth < 3 {
		for range rand.N(4) {
			inside.Go(func() { l.run(locked, client, depth+1, i) })
		}
	}
	early := rand.N(3) == 0 // the siblings inside then outlive the section
	if !early {
		inside.Wait()
	}
	l.in[i].leave(locked)
	l.unlock(unlock())
	inside.Wait()
}

// ledger records the callers inside the sections of a lock.
type ledger struct {
	mu       sync.Mutex // guards the following
	live     map[context.Context]string
	overlaps int
}

func (l *ledger) enter(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	me := rlock.Owner(ctx)
	for other, owner := range l.live {
		if owner != me && other.Err() == nil && ctx.Err() == nil {
			l.overlaps++
		}
	}
	if l.live == nil {
		l.live = make(map[context.Context]string)
	}
	l.live[ctx] = me
}

func (l *ledger) leave(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.live, ctx)
}

// G1 and G5 for many owners with siblings at every level, some of them cancelled, early to leave, or cut off from Redis.
func TestNestedSiblings(t *testing.T) {
	for name, cut := range map[string]bool{"calm": false, "connections are cut": true} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			s := redistest.Start(t)
			proxy := redistest.StartProxy(t, s.Addr())
			b := fixture{rdb: s.Client(t)}
			l := layers{names: [3]string{"a", "b", "c"}, unlock: func(err error) {
				assert.NotErrorIs(t, err, rlock.ErrLost)
			}}
			for range 2 {
				c := newClient(t, redistest.Dial(t, proxy.Addr()))
				enginetest.Patient(c) // an unlock may need three seconds, where a lock that was handed over is lost after two
				l.clients = append(l.clients, c)
			}
			var owners sync.WaitGroup
			for i := range 8 {
				owners.Go(func() {
					for range 10 {
						l.run(context.Background(), i%2, 0, 0)
					}
				})
			}
			ended := async(func() error { owners.Wait(); return nil })
			for cut && len(ended) == 0 {
				sleep(rand.N(10 * time.Millisecond))
				proxy.CutAll()
			}
			require.NoError(t, within(t, ended, testTimeout), "nobody is stuck")
			for i := range l.in {
				require.Zero(t, l.in[i].overlaps, l.names[i])
				require.Empty(t, l.in[i].live)
			}
			redistest.Eventually(t, 20*time.Second, func() bool {
				n, err := b.do(t, "DBSIZE").AsInt64()
				return err == nil && n == 0
			}, "no keys")
			for _, c := range l.clients {
				c.Close()
			}
			redistest.Eventually(t, 5*time.Second, func() bool {
				channels, err := b.do(t, "PUBSUB", "CHANNELS").AsStrSlice()
				return err == nil && len(channels) == 0
			}, "no channels")
		})
	}
}

// Close at any moment of nested sections with siblings: every unlock works, even for a section opened during Close, and
// afterwards nothing is left.
func TestCloseAmongSiblings(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		b := fixture{rdb: s.Client(t)}
		rdb := s.Client(t)
		for range 10 {
			c := newClient(t, rdb)
			l := layers{clients: []*rlock.Client{c}, names: [3]string{"a", "b", "c"}, unlock: func(err error) {
				assert.NoError(t, err)
			}}
			var owners sync.WaitGroup
			for range 6 {
				owners.Go(func() {
					for range 5 {
						l.run(context.Background(), 0, 0, 0)
					}
				})
			}
			sleep(rand.N(15 * time.Millisecond))
			c.Close()
			owners.Wait()
			redistest.Eventually(t, 5*time.Second, func() bool {
				n, err := b.do(t, "DBSIZE").AsInt64()
				return err == nil && n == 0
			}, "no keys")
		}
	})
}
