package rlock_test

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G2: a waiter that is handed the lock gets its own lease, not that of the previous owner. Its ctx is cancelled in time, counted
// from before the hand-off was sent, however late the reply came. If the hand-off itself was slow, the lease in Redis starts later
// by that delay, so the ctx still ends before the lock is gone there.
func TestHandOffLease(t *testing.T) {
	const short, watchdog, longer, long = 3 * time.Second, 4 * time.Second, 20 * time.Second, time.Minute
	for _, late := range []time.Duration{0, time.Second} {
		for name, row := range map[string]struct{ from, to time.Duration }{ // 0: the watchdog's
			"shorter":           {0, short},
			"longer":            {longer, long},
			"the watchdog's":    {longer, 0},
			"as long":           {longer, longer},
			"sooner renewed":    {long, 0},
			"fixed and shorter": {long, short},
		} {
			redistest.RunVirtual(t, fmt.Sprintf("%s/late=%v", name, late), func(t *testing.T) {
				r := newProxied(t, rlock.Options{WatchdogTimeout: watchdog})
				mutex := func(lease time.Duration) *rlock.Mutex {
					if lease == 0 {
						return r.Mutex(r.name)
					}
					return r.Mutex(r.name, rlock.WithLease(lease))
				}
				a, line := r.lineOf(t, mutex(row.from), mutex(row.to))
				if late > 0 {
					r.proxy.OnRequest(r.nthHandOff(1, redistest.Hold))
				}
				unlocked := async(a.unlock)
				if late > 0 {
					redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() > 0 }, "the hand-off is under way")
					sleep(late)
					line[0].stillWaits(t)
					r.proxy.Release()
				}
				require.NoError(t, within(t, unlocked, soon))
				got := r.gets(t, line[0])
				lease := cmp.Or(row.to, watchdog)
				ttl := r.pttl(t, r.name)
				require.LessOrEqual(t, ttl, lease)
				require.Greater(t, ttl, lease-short/2)
				if row.to == 0 { // the hold is renewed beyond its first lease
					sleep(lease + lease/4)
					r.held(t, got, 1)
				}
				if row.to != short {
					require.NoError(t, got.unlock())
					require.False(t, r.exists(t, r.name))
					return
				}
				redistest.Within(t, short+soon, got.ctx.Done(), "the ctx is cancelled")
				if late > 0 {
					require.Greater(t, r.pttl(t, r.name), late/4, "the lock still exists in Redis when the ctx is cancelled")
				}
				require.ErrorIs(t, context.Cause(got.ctx), rlock.ErrLost)
				require.ErrorIs(t, got.unlock(), rlock.ErrLost)
				r.clear(t)
			})
		}
	}
}

// G2: if the reply to a hand-off arrives after the lease that it granted, the waiter gets ErrLost instead of the lock.
func TestHandOffAnsweredAfterItsLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t)
		a, line := r.line(t, r.Mutex(r.name, rlock.WithLease(200*time.Millisecond)), r.Mutex(r.name))
		r.proxy.OnReply(r.nthHandOff(1, redistest.Hold))
		unlocked := r.flying(t, a)
		redistest.Eventually(t, testTimeout, func() bool { return !r.exists(t, r.name) }, "the lease ends in Redis")
		r.proxy.Release()
		require.NoError(t, within(t, unlocked, soon))
		require.ErrorIs(t, line[0].get(t, soon).err, rlock.ErrLost)
		require.NoError(t, r.gets(t, line[1]).unlock())
		r.clear(t)
	})
}

// G2, G8: the hold is lost while it is being handed off: its key is deleted, it is forced open, another process takes it, or its
// lease expires. Then nothing is handed off, unlock returns ErrLost, and the waiters get the lock in turn.
func TestHoldLostDuringItsHandOff(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, r *proxied, owner string) (next rlock.UnlockFunc){
		"deleted": func(t *testing.T, r *proxied, _ string) rlock.UnlockFunc {
			require.NoError(t, r.do(t, "DEL", r.name).Error())
			return nil
		},
		"forced": func(t *testing.T, r *proxied, _ string) rlock.UnlockFunc {
			r.forceOpen(t)
			return nil
		},
		"taken": func(t *testing.T, r *proxied, _ string) rlock.UnlockFunc {
			r.forceOpen(t)
			return locked(t, tryFor{r.other.Mutex(r.name), 0}).unlock
		},
		"over": func(t *testing.T, r *proxied, owner string) rlock.UnlockFunc {
			redistest.Eventually(t, testTimeout, func() bool {
				return r.fields(t, r.name)[owner] == 0
			}, "the lease ends; the first waiter may have the lock by then")
			return nil
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			watchdog := 10 * time.Second // long enough that a busy machine does not lose the hold before the hand-off
			if name == "over" {
				watchdog = 3 * time.Second // a call delayed for longer is abandoned
			}
			r := newProxied(t, rlock.Options{WatchdogTimeout: watchdog, UnlockTimeout: 6 * time.Second})
			a, line := r.line(t, same(r.Mutex(r.name), 2)...)
			r.proxy.OnRequest(r.nthHandOff(1, redistest.Hold))
			if name == "over" { // the call times out before the lease ends, and is repeated
				r.proxy.OnRequest(r.nthRelease(1, false, redistest.Hold))
			}
			owner := rlock.Owner(a.ctx)
			unlocked := r.flying(t, a)
			unlockTaken := lose(t, r, owner)
			r.proxy.Release()
			err := within(t, unlocked, watchdog+soon)
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			require.ErrorIs(t, err, rlock.ErrLost)
			if unlockTaken != nil {
				sleep(watchdog / 2)
				for _, p := range line {
					p.stillWaits(t)
				}
				require.NoError(t, unlockTaken())
			}
			for _, p := range line {
				require.NoError(t, r.gets(t, p).unlock())
			}
			r.clear(t)
		})
	}
}

// Unlocks of inner levels do not hand off the lock, only the last one does. A hold that was handed off behaves like any other.
func TestHandOffOfTheLastLevel(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		m := r.Mutex(r.name)
		a, line := r.line(t, m, m)
		levels := func() {
			inner := locked(t, under{a.ctx, m})
			r.held(t, a, 2)
			require.NoError(t, inner.unlock())
			require.Error(t, inner.ctx.Err())
			require.ErrorIs(t, inner.unlock(), rlock.ErrNotHeld)
			r.held(t, a, 1)
		}
		for _, p := range line {
			levels()
			p.stillWaits(t)
			require.NoError(t, a.unlock())
			require.ErrorIs(t, a.unlock(), rlock.ErrNotHeld)
			require.Error(t, a.ctx.Err())
			a = r.gets(t, p)
		}
		levels()
		require.NoError(t, a.unlock())
		r.clear(t)
	})
}

// Tokens rise through hand-offs between fenced holders, with plain holders in between, and for the next process.
func TestHandOffTokens(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, rlock.Options{HandOff: rlock.HandOff{Most: 3, For: time.Hour}})
		var all []locker
		for i := range 12 {
			all = append(all, []locker{r.FencedMutex(r.name), r.Mutex(r.name), r.FencedMutex(r.name, rlock.WithLease(time.Minute))}[i%3])
		}
		a, line := r.line(t, all...)
		last := int64(0)
		for i, p := range line {
			require.NoError(t, a.unlock())
			a = r.gets(t, p)
			token, fenced := rlock.FencingToken(a.ctx, r.name)
			require.Equal(t, i%3 != 1, fenced)
			if fenced {
				require.Greater(t, token, last)
				last = token
			}
		}
		require.NoError(t, a.unlock())
		ctx := lockAndUnlock(t, r.other.FencedMutex(r.name))
		token, _ := rlock.FencingToken(ctx, r.name)
		require.Greater(t, token, last)
		r.clear(t)
	})
}

// G2, G4: a waiter of another process whose lease is shorter than the grant lease also gets that shorter lease in Redis. If it
// dies, the next waiter waits no longer than that.
func TestShortLeaseAfterAHandOver(t *testing.T) {
	const lasts = 300 * time.Millisecond
	type of = func(c *rlock.Client, name string, o ...rlock.Option) *rlock.Mutex
	for name, o := range map[string]rlock.Option{"WithLease": rlock.WithLease(lasts), "WithMaxHold": rlock.WithMaxHold(lasts)} {
		for kind, m := range map[string]of{
			"mutex": (*rlock.Client).Mutex, "fenced": (*rlock.Client).FencedMutex, "fair": (*rlock.Client).FairMutex,
		} {
			runVirtual(t, kind+" "+name, func(t *testing.T, b fixture) {
				a := locked(t, m(b.Client, b.name))
				w := lockAsync(t, m(newClient(t, b.rdb), b.name, o))
				redistest.Eventually(t, testTimeout, func() bool {
					n, err := b.do(t, "EXISTS", "rlock_queue:{"+b.name+"}", "redisson_lock_queue:{"+b.name+"}").AsInt64()
					return err == nil && n == 1
				}, "the waiter is in the queue")
				require.NoError(t, a.unlock())
				got := w.gets(t, testTimeout)
				require.LessOrEqual(t, b.pttl(t, b.name), lasts)
				<-got.ctx.Done() // the holder hangs
				require.ErrorIs(t, context.Cause(got.ctx), rlock.ErrLost)
				lockAndUnlock(t, tryFor{m(b.Client, b.name, o), time.Second}) // and does not wait for the longer grant lease
			})
		}
	}
}
