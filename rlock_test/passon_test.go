package rlock_test

import (
	"context"
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

// Within a process, an unlock passes the tenure on in memory: it sends nothing, and the lock in Redis stays unchanged.

// handle returns a handle whose unlocks pass the lock on, unlike those of proxied.Mutex.
func (r *proxied) handle(o ...rlock.Option) *rlock.Mutex { return r.Client.Mutex(r.name, o...) }

// inTurn returns a line whose first waiter has the lock, by a call: it had asked, and so was in Redis's queue until then. The others
// know that this process holds the lock, and send nothing.
func (r *proxied) inTurn(t testing.TB, first locker, behind ...locker) (lockResult, []pendingLock) {
	t.Helper()
	a, line := r.lineOf(t, first, append([]locker{first}, behind...)...)
	require.NoError(t, a.unlock())
	return r.gets(t, line[0]), line[1:]
}

// takesTurns passes the lock along a line, and returns the owner that each waiter has in Redis.
func (r *proxied) takesTurns(t testing.TB, a lockResult, line []pendingLock) (last lockResult, owners []string) {
	t.Helper()
	for _, p := range line {
		require.NoError(t, a.unlock())
		a = r.gets(t, p)
		owners = append(owners, rlock.Owner(a.ctx))
	}
	return a, owners
}

// I3, G1: a line of waiters costs only its first acquire and its last release. Redis has the same owner throughout, and publishes
// nothing before the end.
func TestPassOnCosts(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		a, line := r.inTurn(t, r.handle(), same(r.handle(), 20)...)
		first := rlock.Owner(a.ctx)
		before := redistest.Commands(t, r.rdb)
		a, owners := r.takesTurns(t, a, line)
		during := redistest.Commands(t, r.rdb)
		for _, owner := range owners {
			require.Equal(t, first, owner)
		}
		for _, name := range []string{"evalsha", "eval", "publish", "hset", "hincrby", "hdel", "pexpire", "subscribe", "unsubscribe"} {
			require.Equal(t, before[name], during[name], name)
		}
		require.NoError(t, a.unlock())
		after := redistest.Commands(t, r.rdb)
		require.EqualValues(t, 1, after["evalsha"]-during["evalsha"])
		require.EqualValues(t, 1, after["publish"]-during["publish"])
		require.EqualValues(t, 22, r.Stats().Acquired)
		require.EqualValues(t, 21, r.Stats().HandOffs)
		require.Zero(t, r.Stats().Holds)
		r.clear(t)
	})
}

// G4: a run of sections without a command ends after a number of sections or a time. Then another process that waits gets its turn;
// if there is none, a call hands the lock to the next waiter here, under a new owner.
func TestPassOnIsBounded(t *testing.T) {
	for name, bound := range map[string]rlock.HandOff{
		"most": {Most: 3, For: time.Hour}, "for": {For: 1500 * time.Millisecond},
	} {
		for _, others := range []bool{false, true} {
			redistest.RunVirtual(t, name+map[bool]string{true: "/others wait", false: "/alone"}[others], func(t *testing.T) {
				r := newProxied(t, rlock.Options{HandOff: bound})
				a, line := r.lineOf(t, r.handle(), same(r.handle(), 9)...)
				var stranger pendingLock
				if others {
					stranger = lockAsync(t, r.other.Mutex(r.name))
					redistest.Eventually(t, testTimeout, func() bool {
						n, err := r.do(t, "ZCARD", "rlock_queue:{"+r.name+"}").AsInt64()
						return err == nil && n == 2
					}, "both processes are in the queue")
				}
				owners := map[string]bool{rlock.Owner(a.ctx): true}
				next := func() {
					if len(stranger.result) > 0 {
						require.NoError(t, r.gets(t, stranger).unlock())
						others = false
					}
				}
				for i, p := range line {
					if bound.Most == 0 && i%4 == 3 {
						sleep(bound.For)
					}
					require.NoError(t, a.unlock())
					if others && i == 3 { // three hand-overs, the first by a call
						redistest.Eventually(t, testTimeout, func() bool { return len(stranger.result) > 0 }, "the other process gets in")
					}
					next()
					a = r.gets(t, p)
					owners[rlock.Owner(a.ctx)] = true
				}
				require.False(t, others, "the other process has had its turn")
				require.NoError(t, a.unlock())
				require.Len(t, owners, 4, "a new owner after the first unlock and after each run")
				r.clear(t)
			})
		}
	}
}

// Two Locks that ask Redis for different things (lease, bound, kind) pass the lock on by a call.
func TestPassOnWantsTheSame(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		type kinds map[string]func() *rlock.Mutex
		passes := kinds{
			"the same":          func() *rlock.Mutex { return r.handle() },
			"without re-entry":  func() *rlock.Mutex { return r.handle(rlock.WithoutReentry()) },
			"a minimum is over": func() *rlock.Mutex { return r.handle(rlock.WithMinHold(time.Millisecond)) },
		}
		calls := kinds{
			"lease":    func() *rlock.Mutex { return r.handle(rlock.WithLease(time.Minute)) },
			"max hold": func() *rlock.Mutex { return r.handle(rlock.WithMaxHold(time.Hour)) },
			"grace":    func() *rlock.Mutex { return r.handle(rlock.WithGrace(time.Minute)) },
			"fenced":   func() *rlock.Mutex { return r.FencedMutex(r.name) },
		}
		for name, row := range map[string]struct {
			from, to kinds
			handOffs int64 // by a call
		}{
			"passed on":    {from: passes, to: passes},
			"to another":   {from: passes, to: calls, handOffs: 1},
			"from another": {from: calls, to: passes, handOffs: 1},
		} {
			for holder, from := range row.from {
				for waiter, to := range row.to {
					r.name = redistest.Name(t)
					a, line := r.inTurn(t, from(), to())
					sleep(2 * time.Millisecond)
					before := redistest.Commands(t, r.rdb)["hset"]
					require.NoError(t, a.unlock())
					got := r.gets(t, line[0])
					require.Equal(t, row.handOffs, redistest.Commands(t, r.rdb)["hset"]-before, "%s: from %s to %s", name, holder, waiter)
					require.NoError(t, got.unlock())
					r.clear(t)
				}
			}
		}
	})
}

// WithMinHold: a lock that stays taken after its unlock is not passed on.
func TestPassOnNotWhileTaken(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const least = time.Second
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		a, line := r.inTurn(t, r.handle(), r.handle(rlock.WithMinHold(least)), r.handle())
		a, _ = r.takesTurns(t, a, line[:1])
		began := time.Now()
		require.NoError(t, a.unlock())
		got := r.gets(t, line[1])
		require.GreaterOrEqual(t, time.Since(began), least)
		requireTookAtMost(t, least+time.Millisecond, began, time.Now()) // Redis keeps a key for the whole of its last millisecond
		require.NoError(t, got.unlock())
		r.clear(t)
	})
}

// The count in Redis is that of the current section: a count sent for the section before is corrected, even if its call was under
// way when the next section began.
func TestPassOnAndTheCount(t *testing.T) {
	for _, underWay := range []bool{false, true} {
		redistest.RunVirtual(t, map[bool]string{false: "stated", true: "under way"}[underWay], func(t *testing.T) {
			r := newProxied(t, rlock.Options{HandOff: unlimited})
			a, line := r.inTurn(t, r.handle(), r.handle())
			if underWay {
				r.proxy.OnRequest(nthScript(1, redistest.Hold))
			}
			within, unlock2 := enter(t, a.ctx, r.handle())
			_, unlock3 := enter(t, within, r.handle())
			if underWay {
				redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() == 1 }, "a count is under way")
			} else {
				r.held(t, a, 3)
			}
			owner := rlock.Owner(a.ctx)
			require.NoError(t, unlock3())
			require.NoError(t, unlock2())
			require.NoError(t, a.unlock())
			got := line[0].gets(t, testTimeout)
			require.Equal(t, owner, rlock.Owner(got.ctx))
			if underWay {
				require.Equal(t, map[string]int64{owner: 1}, r.fields(t, r.name))
				r.proxy.Release()
			}
			sleep(300 * time.Millisecond)
			r.held(t, got, 1)
			require.NoError(t, got.unlock())
			r.clear(t)
		})
	}
}

// G2: if the lock is deleted during a run, a renewal detects it and cancels the ctx of the current section. The sections before
// report no loss: nothing had detected it.
func TestPassOnOfALockThatIsGone(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 3 * time.Second
		r := newProxied(t, rlock.Options{HandOff: unlimited, WatchdogTimeout: watchdog})
		a, line := r.inTurn(t, r.handle(), same(r.handle(), 2)...)
		r.do(t, "DEL", r.name)
		before := a
		require.NoError(t, a.unlock())
		a = line[0].gets(t, testTimeout)
		select {
		case <-a.ctx.Done():
			require.ErrorIs(t, context.Cause(a.ctx), rlock.ErrLost)
		case <-time.After(watchdog/3 + soon):
			require.Fail(t, "the loss was not detected")
		}
		require.NotErrorIs(t, context.Cause(before.ctx), rlock.ErrLost)
		require.ErrorIs(t, a.unlock(), rlock.ErrLost)
		got := r.gets(t, line[1])
		require.NotEqual(t, rlock.Owner(before.ctx), rlock.Owner(got.ctx))
		require.NoError(t, got.unlock())
		r.clear(t)
	})
}

// G2: while Redis is silent, the lock is passed on only if a third of its lease is left, so that the next holder has time.
func TestPassOnInSilence(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 6 * time.Second
		r := newProxied(t, rlock.Options{HandOff: unlimited, WatchdogTimeout: watchdog, UnlockTimeout: time.Second})
		a, line := r.inTurn(t, r.handle(), same(r.handle(), 2)...)
		r.proxy.BlackHole(true)
		silent := time.Now()
		require.NoError(t, a.unlock())
		a = line[0].gets(t, testTimeout)
		require.Less(t, redistest.Ran(t, silent, time.Now()), soon)
		sleep(time.Until(silent.Add(2*watchdog/3 + 500*time.Millisecond)))
		require.NoError(t, a.ctx.Err())
		require.ErrorIs(t, a.unlock(), rlock.ErrUnreachable)
		line[1].stillWaits(t)
		r.proxy.BlackHole(false)
		a = line[1].gets(t, 2*testTimeout)
		require.NoError(t, a.unlock())
		r.clear(t)
	})
}

// A lock that was passed on is renewed, even if the last level before had a fixed lease.
func TestPassOnAfterALeaseOfItsOwn(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 2 * time.Second
		r := newProxied(t, rlock.Options{HandOff: unlimited, WatchdogTimeout: watchdog})
		a, line := r.inTurn(t, r.handle(), r.handle())
		_, unlock := enter(t, context.WithoutCancel(a.ctx), r.handle(rlock.WithLease(watchdog/2)))
		require.NoError(t, a.unlock())
		require.NoError(t, unlock())
		got := r.gets(t, line[0])
		sleep(watchdog + watchdog/2)
		require.NoError(t, got.ctx.Err())
		require.NoError(t, got.unlock())
		r.clear(t)
	})
}

// A tenure is not passed on during a call that may end it or lengthen its lease.
func TestPassOnNotDuringACall(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		a, line := r.inTurn(t, r.handle(), r.handle())
		r.proxy.OnRequest(nthScript(1, redistest.Hold))
		longer := lockAsync(t, under{a.ctx, r.handle(rlock.WithLease(time.Hour))})
		redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() == 1 }, "a longer lease is requested")
		unlocked := async(a.unlock)
		sleep(100 * time.Millisecond) // the unlock waits for the call
		line[0].stillWaits(t)
		r.proxy.Release()
		require.NoError(t, within(t, unlocked, testTimeout))
		require.Error(t, longer.get(t, testTimeout).err, "the section is over")
		require.NoError(t, r.gets(t, line[0]).unlock())
		r.clear(t)
	})
}

// A tenure is not passed on while its state is uncertain: here the answer to the call that handed it over was lost.
func TestPassOnNotWhileUnresolved(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		r.proxy.OnReply(r.nthHandOff(1, redistest.Cut))
		a, line := r.inTurn(t, r.handle(), same(r.handle(), 2)...)
		for i := range line {
			before := redistest.Commands(t, r.rdb)["hset"]
			require.NoError(t, a.unlock())
			a = r.gets(t, line[i])
			require.EqualValues(t, 1-i, redistest.Commands(t, r.rdb)["hset"]-before, "only the first hand-over is a call")
		}
		require.NoError(t, a.unlock())
		r.clear(t)
	})
}

// listensOutside listens to a channel as Redisson does, out of line, until the test ends.
func listensOutside(t *testing.T, rdb rueidis.Client, channel string, heard func()) (stop func()) {
	t.Helper()
	conn, giveBack := rdb.Dedicate()
	stop = sync.OnceFunc(func() { conn.Close(); giveBack() })
	t.Cleanup(stop)
	confirmed := make(chan struct{})
	conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage:      func(rueidis.PubSubMessage) { heard() },
		OnSubscription: func(rueidis.PubSubSubscription) { close(confirmed) },
	})
	require.NoError(t, conn.Do(context.Background(), conn.B().Subscribe().Channel(channel).Build()).Error())
	<-confirmed
	return stop
}

// G4: beside a subscriber that is not in the queue, as Redisson's are, a run has one hand-off once that is known, then a message to all.
func TestPassOnBesideOutsiders(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const most = 6
		r := newProxied(t, rlock.Options{HandOff: rlock.HandOff{Most: most, For: time.Hour}})
		var told atomic.Int32
		listensOutside(t, r.rdb, "redisson_lock__channel:{"+r.name+"}", func() { told.Add(1) })
		a, line := r.lineOf(t, r.handle(), same(r.handle(), 20)...)
		sections, longest := 1, 0
		for _, p := range line {
			before := told.Load()
			require.NoError(t, a.unlock())
			a = r.gets(t, p)
			if told.Load() > before {
				sections = 0
			}
			if sections++; before > 0 {
				longest = max(longest, sections)
			}
		}
		require.Equal(t, 2, longest, "sections in the longest run")
		require.NoError(t, a.unlock())
	})
}

// G1, G5: callers wait, give up and leave while two processes share the lock: one is inside at a time, and nothing is left behind.
func TestPassOnInACrowd(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, rlock.Options{HandOff: rlock.HandOff{Most: 5}})
		inside, sections := 0, 0
		var wg sync.WaitGroup
		for i := range 40 {
			m := []*rlock.Mutex{
				r.handle(), r.handle(), r.Mutex(r.name), r.other.Mutex(r.name), r.FencedMutex(r.name), r.handle(rlock.WithLease(time.Minute)),
			}[i%6]
			wg.Go(func() {
				for n := range 50 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(i*7+n*13)%20)*time.Millisecond)
					inner, unlock, err := m.Lock(ctx)
					if err == nil {
						inside++
						assert.Equal(t, 1, inside)
						if n%3 == 0 {
							assert.NoError(t, m.Do(context.WithoutCancel(inner), nothing))
						}
						sections++
						inside--
						assert.NoError(t, unlock())
					} else {
						assert.ErrorIs(t, err, rlock.ErrNotAcquired)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		require.Greater(t, sections, 40)
		r.clear(t)
	})
}

// G8: the hand-off that begins a run reserves tokens for the waiters. Each hold takes the next token, later holds get higher ones,
// and unused tokens are skipped.
func TestPassOnTokens(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const behind = 20
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		m := r.FencedMutex(r.name)
		token := func(a lockResult) int64 {
			got, ok := m.FencingToken(a.ctx)
			require.True(t, ok)
			return got
		}
		a, line := r.inTurn(t, m, same(m, behind)...)
		require.EqualValues(t, 2, token(a))
		line[3].cancel()
		require.ErrorIs(t, line[3].get(t, testTimeout).err, context.Canceled)
		line = append(line[:3], line[4:]...)
		before := redistest.Commands(t, r.rdb)
		for i, p := range line {
			require.NoError(t, a.unlock())
			a = r.gets(t, p)
			require.EqualValues(t, i+3, token(a))
			require.NoError(t, m.Do(a.ctx, func(ctx context.Context) error {
				require.EqualValues(t, i+3, token(lockResult{ctx: ctx}))
				return nil
			}))
		}
		require.Equal(t, before["evalsha"], redistest.Commands(t, r.rdb)["evalsha"])
		require.NoError(t, a.unlock())
		other := locked(t, r.other.FencedMutex(r.name))
		got, _ := rlock.FencingToken(other.ctx, r.name)
		require.EqualValues(t, behind+3, got, "the unused token is skipped")
		require.NoError(t, other.unlock())
		r.clear(t)
	})
}

// Waiters that arrive after the reservation get their tokens by a call, which reserves more for those behind them.
func TestPassOnWhenTheTokensAreUsedUp(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		m := r.FencedMutex(r.name)
		a, line := r.inTurn(t, m, m)
		line = append(line, r.queue(t, m, m)...)
		before := redistest.Commands(t, r.rdb)["hset"]
		a, owners := r.takesTurns(t, a, line)
		require.EqualValues(t, 1, redistest.Commands(t, r.rdb)["hset"]-before)
		require.NotEqual(t, owners[0], owners[1])
		require.Equal(t, owners[1], owners[2])
		got, _ := m.FencingToken(a.ctx)
		require.EqualValues(t, 5, got)
		require.NoError(t, a.unlock())
		r.clear(t)
	})
}

// A user without INCRBY gets its tokens one by one.
func TestPassOnWithoutTheRightToReserve(t *testing.T) {
	redistest.Parallel(t)
	r := newProxied(t, rlock.Options{HandOff: unlimited})
	require.NoError(t, r.do(t, "ACL", "SETUSER", "default", "-incrby").Error())
	m := r.FencedMutex(r.name)
	a, line := r.inTurn(t, m, m, m)
	before := redistest.Commands(t, r.rdb)["hset"]
	a, _ = r.takesTurns(t, a, line)
	require.EqualValues(t, 2, redistest.Commands(t, r.rdb)["hset"]-before)
	got, _ := m.FencingToken(a.ctx)
	require.EqualValues(t, 4, got)
	require.NoError(t, a.unlock())
	r.clear(t)
}
