package rlock_test

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// unlimited is a bound that no test reaches.
var unlimited = rlock.HandOff{Most: math.MaxInt, For: math.MaxInt64}

func same(l locker, n int) []locker {
	var all []locker
	for range n {
		all = append(all, l)
	}
	return all
}

// Each waiter costs one command, and the last unlock one more, whether it waits in line or begins to wait only after the hand-off before.
// Waiters send nothing, and no message is published before the last unlock.
func TestHandOffCosts(t *testing.T) {
	for name, late := range map[string]bool{"in line": false, "in turn": true} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			const n = 20
			r, a := turns(t, rlock.Options{HandOff: unlimited})
			var line []pendingLock
			if !late {
				require.NoError(t, a.unlock())
				r.clear(t)
				a, line = r.line(t, same(r.Mutex(r.name), n)...)
			}
			before := redistest.Commands(t, r.rdb)
			for i := range n {
				if late {
					line = append(line, r.waits(t))
				}
				require.NoError(t, a.unlock())
				a = line[i].gets(t, testTimeout)
			}
			during := redistest.Commands(t, r.rdb)
			for _, command := range []string{"evalsha", "hset", "hdel"} {
				require.EqualValues(t, n, during[command]-before[command], command)
			}
			for _, command := range []string{"eval", "publish", "del", "subscribe", "unsubscribe"} {
				require.Equal(t, before[command], during[command], command)
			}
			require.NoError(t, a.unlock())
			after := redistest.Commands(t, r.rdb)
			require.EqualValues(t, 1, after["evalsha"]-during["evalsha"])
			require.EqualValues(t, 1, after["publish"]-during["publish"])
			r.clear(t)
		})
	}
}

// Options.HandOff bounds the number of hand-offs within a process, and the time that they take, before other processes get a turn.
func TestHandOffBounds(t *testing.T) {
	for name, row := range map[string]struct {
		bound    rlock.HandOff
		hold     time.Duration // how long each section takes
		alone    bool          // no other process listens
		handOffs int64
		releases int64 // releases that free the lock
	}{
		"off":             {bound: rlock.HandOff{Most: -1}, releases: 11},
		"off, far":        {bound: rlock.HandOff{Most: math.MinInt, For: math.MaxInt64}, releases: 11},
		"most 1":          {bound: rlock.HandOff{Most: 1, For: time.Hour}, handOffs: 5, releases: 6},
		"most 1, alone":   {bound: rlock.HandOff{Most: 1, For: time.Hour}, alone: true, handOffs: 10, releases: 1},
		"most 3":          {bound: rlock.HandOff{Most: 3, For: time.Hour}, handOffs: 6, releases: 5}, // only one in a row once the other process is known
		"most 10":         {bound: rlock.HandOff{Most: 10, For: time.Hour}, handOffs: 10, releases: 1},
		"long sections":   {bound: rlock.HandOff{For: time.Millisecond}, hold: 3 * time.Millisecond, handOffs: 5, releases: 6},
		"defaults":        {handOffs: 10, releases: 1, bound: rlock.HandOff{For: time.Hour}},
		"a sum too large": {bound: unlimited, handOffs: 10, releases: 1},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newProxied(t, rlock.Options{HandOff: row.bound})
			stop := func() {}
			if !row.alone {
				stop = listensOutside(t, r.rdb, unlockChannelOf("", r.name), func() {})
			}
			a, line := r.line(t, same(r.Mutex(r.name), 10)...)
			before := redistest.Commands(t, r.rdb)
			for _, p := range line {
				sleep(row.hold)
				require.NoError(t, a.unlock())
				a = r.gets(t, p)
			}
			sleep(row.hold)
			require.NoError(t, a.unlock())
			after := redistest.Commands(t, r.rdb)
			require.Equal(t, row.handOffs, after["hset"]-before["hset"], "hand-offs")
			published := row.releases
			if row.bound.Most >= 0 {
				published += row.releases - 1 // one message to the first waiter in the queue
			}
			require.Equal(t, published, after["publish"]-before["publish"], "releases")
			stop()
			r.clear(t)
		})
	}
}

// With Options.Replicas there are no hand-offs, since replicas must confirm each hold.
func TestNoHandOffWithReplicas(t *testing.T) {
	redistest.Parallel(t)
	master, _ := redistest.StartPair(t)
	r := newProxiedOn(t, master, rlock.Options{Replicas: 1, ReplicaTimeout: 10 * time.Second})
	a, line := r.line(t, same(r.Mutex(r.name), 3)...)
	a, _ = r.takesTurns(t, a, line)
	require.NoError(t, a.unlock())
	require.Zero(t, redistest.Commands(t, r.rdb)["hset"])
	r.clear(t)
}

// turns returns a lock that one of two alternating goroutines holds, while the other does not wait at the moment. The process still
// listens for unlocks, for another half a second, so the next waiter sends nothing.
func turns(t *testing.T, o rlock.Options) (*proxied, lockResult) {
	t.Helper()
	r := newProxied(t, o)
	a, line := r.line(t, r.Mutex(r.name))
	require.NoError(t, a.unlock())
	return r, line[0].gets(t, testTimeout)
}

// waits starts a Lock while another goroutine of its process holds the lock, and checks that it sends nothing.
func (r *proxied) waits(t *testing.T) pendingLock {
	t.Helper()
	before := r.asked.Load()
	p := lockAsync(t, r.Mutex(r.name))
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "the goroutine waits")
	sleep(10 * time.Millisecond)
	require.Equal(t, before, r.asked.Load(), "asked Redis although its own process holds the lock")
	return p
}

// A waiter that has sent nothing is woken at every end of the hold: after an unlock without a hand-off, a forced unlock, a loss
// that the holder notices without any message, a lost connection, and the end of the lease.
func TestWhoDidNotAskIsWoken(t *testing.T) {
	const deletedWatchdog = 6 * time.Second // the next renewal comes after a third of it
	one := rlock.Options{HandOff: rlock.HandOff{Most: 1, For: time.Hour}}
	for name, end := range map[string]struct {
		o      rlock.Options
		f      func(t *testing.T, r *proxied, a lockResult)
		within time.Duration // well before the lease ends
		lost   error
	}{
		"unlocked": {o: one, within: 10 * time.Second, f: func(t *testing.T, _ *proxied, a lockResult) {
			require.NoError(t, a.unlock())
		}, lost: rlock.ErrNotHeld},
		"forced": {o: rlock.Options{HandOff: unlimited}, within: 10 * time.Second, f: func(t *testing.T, r *proxied, _ lockResult) {
			r.forceOpen(t)
		}, lost: rlock.ErrLost},
		"deleted": {
			o: rlock.Options{HandOff: unlimited, WatchdogTimeout: deletedWatchdog}, within: deletedWatchdog / 3,
			f: func(t *testing.T, r *proxied, a lockResult) {
				r.do(t, "DEL", r.name)
				awaitEnd(t, a.ctx)
				require.ErrorIs(t, context.Cause(a.ctx), rlock.ErrLost)
			}, lost: rlock.ErrLost,
		},
		"deaf": {o: one, within: 10 * time.Second, f: func(t *testing.T, r *proxied, a lockResult) { // enough to reconnect
			r.proxy.CutAll()
			require.NoError(t, a.unlock())
		}, lost: rlock.ErrNotHeld},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r, a := turns(t, end.o)
			p := r.waits(t)
			r.held(t, a, 1)
			end.f(t, r, a)
			next := p.gets(t, end.within)
			r.held(t, next, 1)
			require.ErrorIs(t, a.unlock(), end.lost)
			require.NoError(t, next.unlock())
			r.clear(t)
		})
	}

	// The hand-off is slow, so its lease ends later in Redis than the owner's ctx (G2).
	redistest.RunVirtual(t, "the lease ends", func(t *testing.T) {
		const lease, late = 2 * time.Second, time.Second
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		a, line := r.line(t, r.Mutex(r.name, rlock.WithLease(lease)))
		r.proxy.OnRequest(r.nthHandOff(1, redistest.Hold))
		unlocked := r.flying(t, a)
		sleep(late)
		r.proxy.Release()
		require.NoError(t, within(t, unlocked, testTimeout))
		a = line[0].gets(t, testTimeout)
		next := r.waits(t).gets(t, lease+soon)
		require.ErrorIs(t, context.Cause(a.ctx), rlock.ErrLost, "the ctx is cancelled before the next holder gets the lock")
		require.NoError(t, next.unlock())
		require.ErrorIs(t, a.unlock(), rlock.ErrNotHeld)
		r.clear(t)
	})
}

// The hold that a waiter is handed is forced open before the waiter gets the reply. The next Lock does not wait for that hold to
// end.
func TestForcedBeforeTheAnswer(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r, a := turns(t, rlock.Options{HandOff: unlimited})
		p := lockAsync(t, r.Mutex(r.name, rlock.WithLease(time.Hour)))
		redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "the goroutine waits")
		var told atomic.Bool
		r.proxy.OnReply(func(cmd []string) redistest.Action {
			if cmd[0] == "MESSAGE" {
				told.Store(true)
			}
			return r.nthHandOff(1, redistest.Hold)(cmd)
		})
		unlocked := r.flying(t, a)
		r.forceOpen(t)
		redistest.Eventually(t, 10*time.Second, told.Load, "the message is on its way")
		sleep(10 * time.Millisecond) // if the message arrives later, the result is the same
		r.proxy.Release()
		require.NoError(t, within(t, unlocked, testTimeout))
		forced := p.gets(t, testTimeout)
		require.False(t, r.exists(t, r.name))
		lockAsync(t, r.Mutex(r.name)).getAndUnlock(t, soon)
		require.ErrorIs(t, forced.unlock(), rlock.ErrNotHeld)
		r.clear(t)
	})
}

// The process knows that it has released the lock, so its next Lock asks Redis at once, even if the unlock message never arrives.
func TestAfterAnUnlockOneAsks(t *testing.T) {
	for name, o := range map[string]rlock.HandOff{"a run is over": {Most: 1, For: time.Hour}, "nobody waits": unlimited} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r, a := turns(t, rlock.Options{HandOff: o})
			r.proxy.OnReply(redistest.Each("MESSAGE", redistest.Drop))
			require.NoError(t, a.unlock())
			lockAsync(t, r.Mutex(r.name)).getAndUnlock(t, soon)
			r.clear(t)
		})
	}
}

// A TryLock without a wait asks Redis even if its own process holds the lock.
func TestOneAttemptAsksThoughItIsOurs(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r, a := turns(t, rlock.Options{HandOff: unlimited})
		before := redistest.Commands(t, r.rdb)["evalsha"]
		refusalOf(t, r.Mutex(r.name), 0)
		require.Equal(t, before+1, redistest.Commands(t, r.rdb)["evalsha"])
		require.NoError(t, a.unlock())
		r.clear(t)
	})
}

// Hand-offs work on a cluster, with both kinds of pub/sub: before, during and after the move of the slot to another node. A fenced
// lock has two keys, and during the move one may be on the new node and the other not. Such a hand-off is refused, but the release
// that follows succeeds.
func TestHandOffOnACluster(t *testing.T) {
	redistest.Parallel(t)
	c := redistest.StartCluster(t, 3, 0)
	for _, plain := range []bool{false, true} {
		for _, fenced := range []bool{false, true} {
			t.Run(map[bool]string{false: "sharded", true: "plain"}[plain]+"/"+map[bool]string{false: "mutex", true: "fenced"}[fenced], func(t *testing.T) {
				rdb := c.Client(t)
				b := fixture{Client: newClient(t, rdb, rlock.Options{HandOff: unlimited, PlainPubSub: plain}), rdb: c.Client(t), name: redistest.Name(t)}
				m := b.Mutex(b.name, byCall, rlock.WithWaitForRedis()) // a move may take longer than the others wait
				if fenced {
					m = b.FencedMutex(b.name, rlock.WithWaitForRedis())
				}
				handOffs := func() int64 { return redistest.Commands(t, b.rdb)["hset"] }
				token := int64(0)
				inside := 0
				var wg sync.WaitGroup
				stop := make(chan struct{})
				for range 6 {
					wg.Go(func() {
						for {
							select {
							case <-stop:
								return
							default:
							}
							err := m.Do(context.Background(), func(ctx context.Context) error {
								inside++
								if fenced {
									got, _ := rlock.FencingToken(ctx, b.name)
									assert.Greater(t, got, token)
									token = got
								}
								return nil
							})
							assert.NoError(t, err)
						}
					})
				}
				awaitMore := func(why string) {
					t.Helper()
					before := handOffs()
					redistest.Eventually(t, testTimeout, func() bool { return handOffs() > before+50 }, why)
				}
				awaitMore("hand-offs on the first node")
				slot := c.Slot(t, b.name)
				for _, to := range c.Nodes() {
					if from := c.Owner(t, slot); from != to {
						c.MigrateSlot(t, slot, from, to)
						awaitMore("hand-offs on the next node")
					}
				}
				close(stop)
				wg.Wait()
				redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "the lock is free")
				require.Positive(t, inside)
			})
		}
	}
}

// The key of the lock has moved to the new node and the fencing counter has not. The server answers a script with both keys with
// "try again", and redirects one with only the key of the lock. The unlock still releases.
func TestHandOffBetweenTheNodes(t *testing.T) {
	redistest.Parallel(t)
	c := redistest.StartCluster(t, 3, 0)
	b := fixture{Client: newClient(t, c.Client(t), rlock.Options{HandOff: unlimited}), rdb: c.Client(t), name: redistest.Name(t)}
	m := b.FencedMutex(b.name, rlock.WithWaitForRedis()) // the move may take longer than the others wait
	a := locked(t, m)
	waiter := lockAsync(t, m)
	b.awaitWaiters(t, 1)
	slot := c.Slot(t, b.name)
	from, to := c.BeginMove(t, slot, b.name)
	require.NoError(t, within(t, async(a.unlock), testTimeout), "the lock is released")
	c.MigrateSlot(t, slot, from, to) // completes the move
	got := waiter.gets(t, testTimeout)
	first, _ := rlock.FencingToken(a.ctx, b.name)
	token, _ := rlock.FencingToken(got.ctx, b.name)
	require.Greater(t, token, first)
	require.NoError(t, got.unlock())
	redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "the lock is free")
}
