package rlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// nthOf returns a hook that applies a to the n-th call of one script.
func (r *proxied) nthOf(t testing.TB, n int, script string, a redistest.Action) redistest.Hook {
	t.Helper()
	return redistest.Nth(n, "EVALSHA "+r.load(t, script), a)
}

// onlyOwner waits until owner is the only owner of the lock.
func (b fixture) onlyOwner(t testing.TB, owner string) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool {
		all := b.ownersOf(t)
		return len(all) == 1 && all[0] == owner
	}, owner+" is the only owner")
}

// If the connection drops the request or the reply of an Export or Adopt, the call is repeated and counts once: the ticket works
// exactly once, and the token rises by one.
func TestExportAndAdoptLost(t *testing.T) {
	for _, kind := range exportable {
		for leg, on := range legs {
			for _, script := range []string{"export", "adopt"} {
				redistest.RunVirtual(t, kind+"/"+leg+"/"+script, func(t *testing.T) {
					r := newProxied(t)
					on(r.proxy, r.nthOf(t, 1, script, redistest.Cut))
					hold := locked(t, ofAllKinds(r.Client, r.name)[kind])
					token, _ := rlock.FencingToken(hold.ctx, r.name)
					ticket := ticketOf(t, hold.ctx, rlock.WithTicketTime(time.Minute))
					require.NoError(t, hold.unlock())
					next := adopted(t, r.Client, ticket)
					if nextToken, fenced := rlock.FencingToken(next.ctx, r.name); fenced {
						require.Equal(t, token+1, nextToken)
					}
					_, _, err := r.other.Adopt(context.Background(), ticket)
					require.ErrorIs(t, err, rlock.ErrTicket)
					r.onlyOwner(t, rlock.Owner(next.ctx))
					require.NoError(t, next.unlock())
					require.Empty(t, r.fieldsOf(t))
				})
			}
		}
	}
}

// An Export without a reply in time returns ErrUnreachable. The section has ended, and its unlock returns nil. Nobody has the
// ticket, so the lock is free soon after Redis answers again, whether the call has run before, runs late or never runs.
func TestExportInABlackHole(t *testing.T) {
	for _, kind := range exportable {
		for name, on := range map[string]func(*redistest.Proxy, redistest.Hook){
			"before it": (*redistest.Proxy).OnRequest, "after it": (*redistest.Proxy).OnReply,
		} {
			redistest.RunVirtual(t, kind+"/"+name, func(t *testing.T) {
				r := newProxied(t, rlock.Options{UnlockTimeout: 500 * time.Millisecond})
				var over atomic.Bool
				holdBack := redistest.Each("EVALSHA "+r.load(t, "export"), redistest.Hold) // a repeated call uses another connection
				on(r.proxy, func(cmd []string) redistest.Action {
					if over.Load() {
						return redistest.Pass
					}
					return holdBack(cmd)
				})
				hold := locked(t, ofAllKinds(r.Client, r.name)[kind])
				began := time.Now()
				ticket, err := rlock.Export(hold.ctx, rlock.WithTicketTime(time.Hour))
				require.ErrorIs(t, err, rlock.ErrUnreachable)
				require.NotErrorIs(t, err, rlock.ErrNotExported)
				require.Empty(t, ticket)
				require.Less(t, redistest.Ran(t, began, time.Now()), 10*time.Second)
				require.ErrorIs(t, context.Cause(hold.ctx), rlock.ErrExported, "the section has ended")
				require.NoError(t, hold.unlock())
				over.Store(true)
				r.proxy.Release()
				redistest.Eventually(t, testTimeout, func() bool { return len(r.fieldsOf(t)) == 0 }, "the lock is free")
				require.Less(t, redistest.Ran(t, began, time.Now()), 20*time.Second, "the lock is free before the end of a lease")
			})
		}
	}
}

// An Adopt that reaches Redis after its caller gave up has no lasting effect: if it gets the lock, the lock is released, and if
// another process has adopted the ticket, that hold stays as it is.
func TestLateAdopt(t *testing.T) {
	for _, kind := range exportable {
		for _, used := range []bool{false, true} {
			redistest.RunVirtual(t, kind+map[bool]string{false: "/it gets the lock", true: "/another one was first"}[used], func(t *testing.T) {
				r := newProxied(t)
				ticket := takenAlong(t, ofAllKinds(r.Client, r.name)[kind], rlock.WithTicketTime(time.Hour))
				r.proxy.OnRequest(r.nthOf(t, 1, "adopt", redistest.Hold))
				ctx, cancel := context.WithCancel(context.Background())
				late := async(func() error {
					_, _, err := r.Adopt(ctx, ticket)
					return err
				})
				redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() == 1 }, "the Adopt is under way")
				cancel()
				err := within(t, late, testTimeout)
				require.ErrorIs(t, err, rlock.ErrNotAcquired)
				require.ErrorIs(t, err, context.Canceled)
				if !used {
					r.proxy.Release()
					redistest.Eventually(t, testTimeout, func() bool { return len(r.fieldsOf(t)) == 0 }, "the late hold is released")
					_, _, err := r.other.Adopt(context.Background(), ticket)
					require.ErrorIs(t, err, rlock.ErrTicket)
					return
				}
				next := adopted(t, r.other, ticket)
				r.proxy.Release()
				sleep(time.Second) // until the late call has its reply
				r.onlyOwner(t, rlock.Owner(next.ctx))
				require.NoError(t, next.ctx.Err())
				require.NoError(t, next.unlock())
				require.Empty(t, r.fieldsOf(t))
			})
		}
	}
}

// With WithWaitForRedis, an Adopt whose request or reply is lost again and again, for longer than one attempt takes, continues the hold that
// it has: the ticket was used by no other call. A hold whose lease has ended by then is gone.
func TestAdoptWaitsForRedis(t *testing.T) {
	for _, kind := range exportable {
		for leg, on := range legs {
			for name, lease := range map[string]time.Duration{"in time": time.Minute, "too late": 5 * time.Second} {
				redistest.RunVirtual(t, kind+"/"+leg+"/"+name, func(t *testing.T) {
					r := newProxied(t)
					hold := locked(t, ofAllKinds(r.Client, r.name)[kind])
					token, _ := rlock.FencingToken(hold.ctx, r.name)
					ticket := ticketOf(t, hold.ctx, rlock.WithTicketTime(time.Hour))
					require.NoError(t, hold.unlock())
					var over atomic.Bool
					lost := redistest.Each("EVALSHA "+r.load(t, "adopt"), redistest.Cut)
					on(r.proxy, func(cmd []string) redistest.Action {
						if over.Load() {
							return redistest.Pass
						}
						return lost(cmd)
					})
					adopts := lockAsync(t, lockerFunc(func(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
						return r.Adopt(ctx, ticket, rlock.WithWaitForRedis(), rlock.WithWatchdog(lease))
					}))
					sleep(10 * time.Second)
					adopts.stillWaits(t)
					if name == "too late" { // until now, each repeat has renewed the lease
						r.proxy.Refuse(true)
						sleep(lease + time.Second)
						r.proxy.Refuse(false)
					}
					over.Store(true)
					next := adopts.get(t, testTimeout)
					if leg == "reply" && name == "too late" {
						require.ErrorIs(t, next.err, rlock.ErrTicket)
						require.Empty(t, r.fieldsOf(t))
						return
					}
					require.NoError(t, next.err)
					if nextToken, fenced := rlock.FencingToken(next.ctx, r.name); fenced {
						require.Equal(t, token+1, nextToken)
					}
					_, _, err := r.other.Adopt(context.Background(), ticket)
					require.ErrorIs(t, err, rlock.ErrTicket)
					r.onlyOwner(t, rlock.Owner(next.ctx))
					require.NoError(t, next.unlock())
					require.Empty(t, r.fieldsOf(t))
				})
			}
		}
	}
}

// A renewal that is under way during the Export does not extend or shorten the time of the ticket.
func TestLateRenewalAfterAnExport(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 6 * time.Second
		r := newProxied(t, rlock.Options{WatchdogTimeout: watchdog})
		hold := locked(t, r.Client.Mutex(r.name))
		r.proxy.OnRequest(r.nthOf(t, 1, "renew", redistest.Hold))
		redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() == 1 }, "a renewal is under way")
		var ticket string
		done := async(func() (err error) {
			ticket, err = rlock.Export(hold.ctx, rlock.WithTicketTime(time.Minute))
			return err
		})
		sleep(200 * time.Millisecond)
		r.proxy.Release()
		require.NoError(t, within(t, done, testTimeout))
		sleep(watchdog)
		require.Len(t, r.ownersOf(t), 1)
		require.Greater(t, r.pttl(t, r.name), time.Minute-30*time.Second)
		require.LessOrEqual(t, r.pttl(t, r.name), time.Minute-watchdog, "the ticket is not renewed")
		next := adopted(t, r.Client, ticket)
		sleep(watchdog)
		require.NoError(t, next.ctx.Err())
		require.NoError(t, next.unlock())
		require.Zero(t, r.Stats().Lost)
	})
}

// An acquire without a reply is repeated, and the lost one may still run late. The cleanup of its hash field leaves the ticket
// alone.
func TestSweepAfterAnExport(t *testing.T) {
	for _, kind := range []string{"plain", "write"} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			r := newProxied(t)
			script := map[string]string{"plain": "acquire", "write": "write_acquire"}[kind]
			r.proxy.OnReply(r.nthOf(t, 1, script, redistest.Cut))
			ticket := takenAlong(t, ofAllKinds(r.Client, r.name)[kind], rlock.WithTicketTime(time.Hour))
			sleep(1500 * time.Millisecond) // at least two cleanups
			next := adopted(t, r.other, ticket)
			sleep(1500 * time.Millisecond)
			require.NoError(t, next.ctx.Err())
			r.onlyOwner(t, rlock.Owner(next.ctx))
			require.NoError(t, next.unlock())
			redistest.Eventually(t, testTimeout, func() bool { return len(r.fieldsOf(t)) == 0 }, "the lock is free")
		})
	}
}

// A failover or restart that loses the exported lock frees it. A waiter asks as soon as it is connected again, rather than at the end of the
// time that the ticket had left.
func TestTicketIsLostByARestart(t *testing.T) {
	for _, kind := range exportable {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			s := redistest.Start(t)
			b := fixture{Client: newClient(t, s.Client(t)), rdb: s.Client(t), name: redistest.Name(t)}
			ticket := takenAlong(t, ofAllKinds(b.Client, b.name)[kind], rlock.WithTicketTime(time.Hour))
			p := lockAsync(t, ofAllKinds(newClient(t, s.Client(t)), b.name)[kind])
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "it knows that an hour is left")
			s.Kill()
			s.Restart()
			next := p.gets(t, testTimeout)
			_, _, err := b.Adopt(context.Background(), ticket)
			require.ErrorIs(t, err, rlock.ErrTicket)
			require.NoError(t, next.ctx.Err())
			require.NoError(t, next.unlock())
		})
	}
}

// Waiters learn of tickets also on a cluster with plain channels.
func TestExportOverPlainChannels(t *testing.T) {
	cluster, plain := redistest.SharedCluster(t), rlock.Options{PlainPubSub: true}
	redistest.Parallel(t)
	one, two := newClient(t, cluster.Client(t), plain), newClient(t, cluster.Client(t), plain)
	for _, kind := range exportable {
		name := redistest.Name(t)
		hold := locked(t, ofAllKinds(one, name)[kind])
		waits := lockAsync(t, ofAllKinds(two, name)[kind])
		redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "it waits")
		next := adopted(t, two, ticketOf(t, hold.ctx, rlock.WithTicketTime(time.Hour)))
		waits.stillWaits(t)
		require.NoError(t, next.unlock())
		waits.getAndUnlock(t, soon)
	}
}

// A reader in the writer's section whose Lock was cancelled, or whose unlock got no answer in time, may still be there when the section is
// exported. It goes by itself, and the Export waits for that.
func TestExportAfterAFailedReader(t *testing.T) {
	for name, fails := range map[string]func(t *testing.T, r *proxied, write lockResult){
		"cancelled": func(t *testing.T, r *proxied, write lockResult) {
			ctx, cancel := context.WithTimeout(write.ctx, time.Second)
			defer cancel()
			r.proxy.OnRequest(nthScript(1, redistest.Hold))
			requireLockFails(t, ctx, r.RWMutex(r.name).Read(), context.DeadlineExceeded)
		},
		"unlocked without an answer": func(t *testing.T, r *proxied, write lockResult) {
			read := locked(t, under{write.ctx, r.RWMutex(r.name).Read()})
			r.proxy.OnRequest(nthScript(1, redistest.Hold))
			require.ErrorIs(t, read.unlock(), rlock.ErrPending)
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.OnlyVirtual(t, "an Export has a second for what takes half of it", func(t *testing.T) {
				r := newProxied(t, rlock.Options{UnlockTimeout: time.Second})
				write := locked(t, r.RWMutex(r.name).Write())
				fails(t, r, write)
				time.AfterFunc(time.Second/2, r.proxy.Release)
				ticket := ticketOf(t, write.ctx)
				next := adopted(t, r.other, ticket)
				require.NoError(t, write.unlock())
				r.onlyOwner(t, rlock.Owner(next.ctx))
				require.NoError(t, next.unlock())
				require.Empty(t, r.fieldsOf(t))
			})
		})
	}
}
