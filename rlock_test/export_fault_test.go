package rlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
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
	for _, kind := range []string{"plain", "fenced", "write"} {
		for leg, on := range legs {
			for _, script := range []string{"export", "adopt"} {
				redistest.RunVirtual(t, kind+"/"+leg+"/"+script, func(t *testing.T) {
					r := newProxied(t)
					on(r.proxy, r.nthOf(t, 1, script, redistest.Cut))
					ctx, unlock, err := exportable(r.Client, r.name)[kind].Lock(context.Background())
					require.NoError(t, err)
					token, _ := rlock.FencingToken(ctx, r.name)
					ticket, err := rlock.Export(ctx, rlock.WithTicketTime(time.Minute))
					require.NoError(t, err)
					require.NoError(t, unlock())
					ctx, unlock, err = r.Adopt(context.Background(), ticket)
					require.NoError(t, err)
					next, fenced := rlock.FencingToken(ctx, r.name)
					if fenced {
						require.Equal(t, token+1, next)
					}
					_, _, err = r.other.Adopt(context.Background(), ticket)
					require.ErrorIs(t, err, rlock.ErrTicket)
					r.onlyOwner(t, rlock.Owner(ctx))
					require.NoError(t, unlock())
					require.Empty(t, r.fieldsOf(t))
				})
			}
		}
	}
}

// An Export without a reply in time returns ErrUnreachable. The section has ended, and its unlock returns nil. Nobody has the
// ticket, so the lock is free soon after Redis answers again, whether the call has run before, runs late or never runs.
func TestExportInABlackHole(t *testing.T) {
	for _, kind := range []string{"plain", "fenced", "write"} {
		for name, on := range map[string]func(*redistest.Proxy, redistest.Hook){
			"before it": (*redistest.Proxy).OnRequest, "after it": (*redistest.Proxy).OnReply,
		} {
			redistest.RunVirtual(t, kind+"/"+name, func(t *testing.T) {
				r := newProxied(t, rlock.Options{UnlockTimeout: 500 * time.Millisecond})
				var over atomic.Bool
				hold := redistest.Each("EVALSHA "+r.load(t, "export"), redistest.Hold) // a repeated call uses another connection
				on(r.proxy, func(cmd []string) redistest.Action {
					if over.Load() {
						return redistest.Pass
					}
					return hold(cmd)
				})
				m := exportable(r.Client, r.name)[kind]
				ctx, unlock, err := m.Lock(context.Background())
				require.NoError(t, err)
				began := time.Now()
				ticket, err := rlock.Export(ctx, rlock.WithTicketTime(time.Hour))
				require.ErrorIs(t, err, rlock.ErrUnreachable)
				require.NotErrorIs(t, err, rlock.ErrNotExported)
				require.Empty(t, ticket)
				require.Less(t, time.Since(began), 10*time.Second)
				require.ErrorIs(t, context.Cause(ctx), rlock.ErrExported, "the section has ended")
				require.NoError(t, unlock())
				over.Store(true)
				r.proxy.Release()
				redistest.Eventually(t, testTimeout, func() bool { return len(r.fieldsOf(t)) == 0 }, "the lock is free")
				require.Less(t, time.Since(began), 20*time.Second, "the lock is free before the end of a lease")
			})
		}
	}
}

// An Adopt that reaches Redis after its caller gave up has no lasting effect: if it gets the lock, the lock is released, and if
// another process has adopted the ticket, that hold stays as it is.
func TestLateAdopt(t *testing.T) {
	for _, kind := range []string{"plain", "fenced", "write"} {
		for _, used := range []bool{false, true} {
			redistest.RunVirtual(t, kind+map[bool]string{false: "/it gets the lock", true: "/another one was first"}[used], func(t *testing.T) {
				r := newProxied(t)
				ticket := takenAlong(t, exportable(r.Client, r.name)[kind], rlock.WithTicketTime(time.Hour))
				r.proxy.OnRequest(r.nthOf(t, 1, "adopt", redistest.Hold))
				ctx, cancel := context.WithCancel(context.Background())
				adopted := async(func() error {
					_, _, err := r.Adopt(ctx, ticket)
					return err
				})
				redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() == 1 }, "the Adopt is under way")
				cancel()
				err := within(t, adopted, testTimeout)
				require.ErrorIs(t, err, rlock.ErrNotAcquired)
				require.ErrorIs(t, err, context.Canceled)
				if !used {
					r.proxy.Release()
					redistest.Eventually(t, testTimeout, func() bool { return len(r.fieldsOf(t)) == 0 }, "the late hold is released")
					_, _, err := r.other.Adopt(context.Background(), ticket)
					require.ErrorIs(t, err, rlock.ErrTicket)
					return
				}
				section, unlock, err := r.other.Adopt(context.Background(), ticket)
				require.NoError(t, err)
				r.proxy.Release()
				sleep(time.Second) // until the late call has its reply
				r.onlyOwner(t, rlock.Owner(section))
				require.NoError(t, section.Err())
				require.NoError(t, unlock())
				require.Empty(t, r.fieldsOf(t))
			})
		}
	}
}

// A renewal that is under way during the Export does not extend or shorten the time of the ticket.
func TestLateRenewalAfterAnExport(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 6 * time.Second
		r := newProxied(t, rlock.Options{WatchdogTimeout: watchdog})
		m := r.Client.Mutex(r.name)
		ctx, _, err := m.Lock(context.Background())
		require.NoError(t, err)
		r.proxy.OnRequest(r.nthOf(t, 1, "renew", redistest.Hold))
		redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() == 1 }, "a renewal is under way")
		exported := make(chan string, 1)
		done := async(func() error {
			ticket, err := rlock.Export(ctx, rlock.WithTicketTime(time.Minute))
			exported <- ticket
			return err
		})
		sleep(200 * time.Millisecond)
		r.proxy.Release()
		require.NoError(t, within(t, done, testTimeout))
		sleep(watchdog)
		require.Len(t, r.ownersOf(t), 1)
		require.Greater(t, r.pttl(t, r.name), time.Minute-30*time.Second)
		require.LessOrEqual(t, r.pttl(t, r.name), time.Minute-watchdog, "the ticket is not renewed")
		section, unlock, err := r.Adopt(context.Background(), <-exported)
		require.NoError(t, err)
		sleep(watchdog)
		require.NoError(t, section.Err())
		require.NoError(t, unlock())
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
			ticket := takenAlong(t, exportable(r.Client, r.name)[kind], rlock.WithTicketTime(time.Hour))
			sleep(1500 * time.Millisecond) // at least two cleanups
			section, unlock, err := r.other.Adopt(context.Background(), ticket)
			require.NoError(t, err)
			sleep(1500 * time.Millisecond)
			require.NoError(t, section.Err())
			r.onlyOwner(t, rlock.Owner(section))
			require.NoError(t, unlock())
			redistest.Eventually(t, testTimeout, func() bool { return len(r.fieldsOf(t)) == 0 }, "the lock is free")
		})
	}
}

// A failover to a replica without the exported lock frees the lock. A waiter asks as soon as it is connected again, rather than at
// the end of the time that the ticket had left.
func TestTicketIsLostByAFailover(t *testing.T) {
	redistest.Parallel(t)
	for _, kind := range []string{"plain", "write"} {
		t.Run(kind, func(t *testing.T) {
			redistest.Parallel(t)
			s := redistest.StartSentinel(t)
			old := s.Master(t)
			exporter, waiter := newClient(t, s.Client(t)), newClient(t, s.Client(t))
			const name = "x"
			ticket := takenAlong(t, exportable(exporter, name)[kind], rlock.WithTicketTime(time.Hour))
			p := lockAsync(t, exportable(waiter, name)[kind])
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "the goroutine waits")
			sleep(500 * time.Millisecond) // and knows that an hour is left
			for _, node := range s.Nodes() {
				if node.Addr() == old.Addr() {
					continue
				}
				replica := fixture{rdb: node.Client(t, redistest.Single)}
				require.NoError(t, replica.do(t, "CONFIG", "SET", "replica-read-only", "no").Error())
				redistest.Eventually(t, testTimeout, func() bool { return replica.exists(t, name) }, "the replica has the lock")
				require.NoError(t, replica.do(t, "DEL", name).Error())
			}
			p.stillWaits(t)
			old.Kill()
			a := p.get(t, testTimeout)
			require.NoError(t, a.err)
			for {
				_, _, err := exporter.Adopt(context.Background(), ticket)
				if errors.Is(err, rlock.ErrUnreachable) { // the Client has not found the new master yet
					continue
				}
				require.ErrorIs(t, err, rlock.ErrTicket)
				break
			}
			require.NoError(t, a.ctx.Err())
			require.NoError(t, a.unlock())
		})
	}
}

// Tickets also work on a cluster, with sharded and with plain channels, over RESP2, with a prefix, and without hand-offs.
func TestExportOnOtherServers(t *testing.T) {
	redistest.Parallel(t)
	cluster := redistest.StartCluster(t, 3, 0)
	shared := redistest.Shared(t)
	for name, row := range map[string]struct {
		dial  func(testing.TB, ...func(*rueidis.ClientOption)) rueidis.Client
		o     rlock.Options
		resp2 bool
	}{
		"cluster": {dial: cluster.Client}, "cluster with plain channels": {dial: cluster.Client, o: rlock.Options{PlainPubSub: true}},
		"RESP2": {dial: standalone(shared).dial, resp2: true}, "prefix": {dial: standalone(shared).dial, o: rlock.Options{Prefix: "p:"}},
		"without hand-offs": {dial: standalone(shared).dial, o: rlock.Options{HandOff: rlock.HandOff{Most: -1}}},
	} {
		for _, kind := range []string{"plain", "fenced", "write"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				redistest.Parallel(t)
				one := newClient(t, row.dial(t, protocol(row.resp2)), row.o)
				two := newClient(t, row.dial(t, protocol(row.resp2)), row.o)
				lock := redistest.Name(t)
				ctx, _, err := exportable(one, lock)[kind].Lock(context.Background())
				require.NoError(t, err)
				waits := []pendingLock{lockAsync(t, exportable(one, lock)[kind]), lockAsync(t, exportable(two, lock)[kind])}
				redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 2 }, "both wait")
				sleep(100 * time.Millisecond)
				ticket, err := rlock.Export(ctx, rlock.WithTicketTime(time.Hour))
				require.NoError(t, err)
				_, unlock, err := two.Adopt(context.Background(), ticket)
				require.NoError(t, err)
				for _, p := range waits {
					p.stillWaits(t)
				}
				require.NoError(t, unlock())
				free := time.Now()
				first, second := waits[0], waits[1]
				select {
				case a := <-first.result:
					first.result <- a
				case a := <-second.result:
					second.result <- a
					first, second = second, first
				}
				for _, p := range []pendingLock{first, second} {
					p.getAndUnlock(t, testTimeout)
				}
				require.Less(t, time.Since(free), 20*time.Second)
			})
		}
	}
}
