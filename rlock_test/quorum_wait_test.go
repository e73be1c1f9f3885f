package rlock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
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

// G3, G4: a waiter sends nothing, and an unlock wakes it at once.
func TestQuorumWakes(t *testing.T) {
	redistest.OnlyVirtual(t, "a real message takes its time", func(t *testing.T) {
		e := newQuorumServers(t, 5)
		a, b := e.process(t, rlock.Options{}), e.process(t, rlock.Options{})
		for round := range 4 {
			_, unlock := enter(t, t.Context(), a)
			e.awaitVotes(t, 5) // none missing, and none of the hold before
			waiter := lockAsync(t, b)
			e.awaitSubscribers(t, 1)
			sleep(time.Second) // the round of calls that follows the subscriptions
			before := e.commands(t)
			sleep(8 * time.Second) // until shortly before the holder's renewal
			require.Equal(t, before, e.commands(t), "a waiter sends nothing")
			began := time.Now()
			require.NoError(t, unlock())
			got := waiter.gets(t, time.Minute)
			if took := got.at.Sub(began); round > 0 {
				require.Zero(t, took)
			} else { // a subscription that came after the last request makes its server seem free: it may ask too early, and pause
				require.Less(t, took, 2*time.Millisecond)
			}
			require.NoError(t, got.unlock())
			e.awaitVotes(t, 0)
		}
	})
}

// G4: a waiter that missed the unlock message of a server wakes when that server is back, or when the lease there ends.
func TestQuorumWakesWithoutMessages(t *testing.T) {
	redistest.RunVirtual(t, "crashed holder", func(t *testing.T) {
		const lease = time.Second
		e := newQuorumServers(t, 3)
		_, _, err := e.process(t, rlock.Options{}, rlock.WithLease(lease)).Lock(t.Context()) // never unlocked
		require.NoError(t, err)
		e.awaitVotes(t, 3) // with a share to give, the third server would make the waiter pause, and then its milliseconds begin later
		began := time.Now()
		got := lockAsync(t, e.process(t, rlock.Options{})).gets(t, testTimeout)
		requireTookAtMost(t, lease+time.Millisecond, began, got.at)
		require.NoError(t, got.unlock())
	})
	redistest.RunVirtual(t, "subscriptions lost", func(t *testing.T) {
		e := newQuorumServers(t, 3)
		_, unlock := enter(t, t.Context(), e.process(t, rlock.Options{}))
		waiter := lockAsync(t, e.process(t, rlock.Options{}))
		e.awaitSubscribers(t, 1)
		for _, p := range e.proxies {
			p.Refuse(true)
			p.CutAll()
		}
		for i, w := range e.watch { // the effect of an unlock, without its message
			require.NoError(t, w.Do(t.Context(), w.B().Del().Key(e.name).Build()).Error())
			e.proxies[i].Refuse(false)
		}
		waiter.getAndUnlock(t, 5*time.Second)
		_ = unlock() // its connections were cut, so it may count the missing shares as released by itself
	})
}

// Processes that compete for the lock all get it, even if they split the votes of an even number of servers, or wait for the votes of
// servers that do not answer.
func TestQuorumCompetitors(t *testing.T) {
	for name, dead := range map[string][]string{"5 of 5": nil, "4 of 5": {"killed"}, "3 of 5": {"stopped", "cut off"}} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			e := newQuorumServers(t, 5)
			const voters, each = 3, 4
			var vs []quorumProcess
			for range voters {
				vs = append(vs, e.process(t, rlock.Options{}))
			}
			for i, death := range dead {
				deaths[death].kill(e, i)
			}
			var w exclusion
			var all sync.WaitGroup
			for _, v := range vs {
				all.Go(func() {
					for range each {
						assert.NoError(t, v.Do(t.Context(), func(ctx context.Context) error {
							assert.True(t, w.enter(ctx))
							sleep(time.Millisecond)
							w.leave(ctx)
							return nil
						}))
					}
				})
			}
			all.Wait()
			for i, death := range dead {
				deaths[death].back(e, i)
			}
			e.awaitVotes(t, 0)
		})
	}
}

// Two processes, each nearer to two of four servers, split the votes whenever they ask at the same moment, and two votes are not
// enough. A random pause lets one of them ask first.
func TestQuorumSplitVotes(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 5)
		far := *e
		far.proxies = nil
		for i, s := range e.servers {
			far.proxies = append(far.proxies, redistest.StartProxy(t, s.Addr()))
			if i < 2 {
				far.proxies[i].Delay(20 * time.Millisecond)
			} else {
				e.proxies[i].Delay(20 * time.Millisecond)
			}
		}
		voters := []quorumProcess{e.process(t, rlock.Options{}), far.process(t, rlock.Options{})}
		for _, v := range voters {
			require.NoError(t, v.Do(t.Context(), nothing)) // opens the connections
		}
		e.servers[4].Kill()
		var w exclusion
		for range 3 {
			e.awaitVotes(t, 0)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			var both sync.WaitGroup
			for _, v := range voters {
				both.Go(func() {
					assert.NoError(t, v.Do(ctx, func(ctx context.Context) error {
						assert.True(t, w.enter(ctx), "two owners are inside")
						sleep(60 * time.Millisecond)
						w.leave(ctx)
						return nil
					}))
				})
			}
			both.Wait()
			cancel()
		}
	})
}

// A slow majority has answered nevertheless: a held lock is no outage, even if the first answer came long before the others.
func TestQuorumOfSlowServersIsReached(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 3)
		_, unlock, err := e.process(t, rlock.Options{}).Lock(context.Background())
		require.NoError(t, err)
		other := e.process(t, rlock.Options{})
		for _, proxy := range e.proxies[1:] {
			proxy.Delay(50 * time.Millisecond)
		}
		for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
			_, _, err = other.TryLock(context.Background(), wait)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.NotErrorIs(t, err, rlock.ErrUnreachable)
		}
		require.NoError(t, unlock())
		e.awaitVotes(t, 0)
	})
}

// If another process has a vote, a round does not wait for dead servers. Otherwise two processes could do so in turn, with the
// remaining votes split.
func TestQuorumRoundEndsWithoutTheDead(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 3)
		v := e.process(t, rlock.Options{})
		require.NoError(t, v.Do(t.Context(), nothing)) // opens the connections
		e.awaitVotes(t, 0)
		fixture{rdb: e.watch[1]}.do(t, "HSET", e.name, foreignOwner, "1")
		e.proxies[2].BlackHole(true)
		began := time.Now()
		_, _, err := v.TryLock(t.Context(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		requireTookAtMost(t, 5*time.Millisecond, began, time.Now()) // and twice the others' time; otherwise a server has a second to answer
		var refusal *rlock.NotAcquiredError
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, foreignOwner, refusal.Holder)
		e.awaitVotes(t, 1)
		e.proxies[2].BlackHole(false)
		fixture{rdb: e.watch[1]}.do(t, "DEL", e.name)
		require.NoError(t, v.Do(t.Context(), nothing))
		e.awaitVotes(t, 0)
	})
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// I-wake: a server that was away from the start is asked again soon after it has come, though its Client has had no connection yet.
func TestQuorumAsksAServerThatComesLater(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, s *redistest.Server) *rlock.Client{
		"it was there": func(t *testing.T, s *redistest.Server) *rlock.Client { return newClient(t, s.Client(t)) },
		"ConnectOnUse": func(t *testing.T, s *redistest.Server) *rlock.Client {
			c, _ := openLate(t, s.Addr())
			return c
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			taken, free, away := redistest.Start(t), redistest.Start(t), redistest.Start(t)
			_, unlock := enter(t, t.Context(), newClient(t, taken.Client(t)).Mutex("x"))
			var members []rlock.Locker
			for _, s := range []*redistest.Server{taken, free, away} {
				members = append(members, open(t, s).Mutex("x"))
			}
			away.Stop()
			waiter := lockAsync(t, rlock.Quorum(members...))
			sleep(rlock.DefaultWatchdogTimeout / 10)
			waiter.stillWaits(t)
			away.Restart()
			waiter.getAndUnlock(t, rlock.DefaultWatchdogTimeout/5)
			require.NoError(t, unlock())
		})
	}
}

// G9: a closed Client counts as a server that is down. The quorum ends when a majority of its Clients is closed.
func TestQuorumClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = shortWatchdog
		e := newQuorumServers(t, 5)
		a, b := e.process(t, rlock.Options{WatchdogTimeout: watchdog}), e.process(t, rlock.Options{WatchdogTimeout: watchdog})
		ctx, unlock := enter(t, t.Context(), a)
		e.awaitVotes(t, 5)
		waiter := lockAsync(t, b)
		e.awaitSubscribers(t, 1)
		a.clients[0].Close()
		a.clients[3].Close()
		b.clients[1].Close()
		b.clients[2].Close()
		sleep(watchdog * 3 / 2)
		require.NoError(t, ctx.Err())
		waiter.stillWaits(t)
		require.NoError(t, unlock())
		other := waiter.gets(t, 5*time.Second)

		local := lockAsync(t, a)
		_, _, err := b.TryLock(t.Context(), 0)
		require.ErrorContains(t, err, "held by "+rlock.Owner(other.ctx))
		second := lockAsync(t, b)
		b.close()
		awaitEnd(t, other.ctx)
		require.ErrorIs(t, context.Cause(other.ctx), rlock.ErrClosed)
		require.NotErrorIs(t, context.Cause(other.ctx), rlock.ErrLost)
		require.ErrorIs(t, second.get(t, soon).err, rlock.ErrClosed)
		requireLockFails(t, t.Context(), b, rlock.ErrClosed)
		_, _, err = b.Lock(context.WithoutCancel(other.ctx))
		require.ErrorIs(t, err, rlock.ErrClosed, "no level opens whose ctx nothing would cancel")
		local.stillWaits(t)
		require.NoError(t, other.unlock(), "an unlock after Close releases as before")
		local.getAndUnlock(t, 5*time.Second)
		a.close()
		e.awaitVotes(t, 0)
	})
}

// An unlock needs the answers of a majority. The others are released when they are back.
func TestQuorumUnlockBesideTheDead(t *testing.T) {
	for name, death := range deaths {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			e := newQuorumServers(t, 5)
			v := e.process(t, rlock.Options{})
			ctx, unlock := enter(t, t.Context(), v)
			e.awaitVotes(t, 5)
			death.kill(e, 0)
			death.kill(e, 1)
			began := time.Now()
			require.NoError(t, unlock())
			requireTook(t, 0, began, time.Now())
			require.Error(t, ctx.Err())

			_, unlock = enter(t, t.Context(), v)
			death.kill(e, 2)
			began = time.Now()
			require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
			requireTook(t, 3*time.Second, began, time.Now()) // Options.UnlockTimeout
			for i := range 3 {
				death.back(e, i)
			}
			e.awaitVotes(t, 0)
		})
	}
}

// A closed Client whose lease is over delays no unlock, though its server is silent when it is asked a last time.
func TestQuorumUnlockBesideAClosedClient(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 3)
		v := e.process(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		_, unlock := enter(t, t.Context(), v)
		e.awaitVotes(t, 3)
		v.clients[0].Close()
		e.awaitVotes(t, 2)
		e.proxies[0].BlackHole(true)
		began := time.Now()
		require.NoError(t, unlock())
		requireTook(t, 0, began, time.Now())
		e.proxies[0].BlackHole(false)
		e.awaitVotes(t, 0)
	})
}

// An unlock without answers ends with the lease, if that is earlier than its time limit, and reports the loss.
func TestQuorumUnlockOutlivesItsLease(t *testing.T) {
	const lease = time.Second
	for says, options := range map[string][]rlock.Option{
		"its lease of fixed length ended":              {rlock.WithLease(lease)},
		"fewer than 2 of 3 servers renewed it in time": nil,
	} {
		redistest.RunVirtual(t, says, func(t *testing.T) {
			e := newQuorumServers(t, 3)
			lost := make(chan rlock.LostInfo, 1)
			v := e.process(t, rlock.Options{
				WatchdogTimeout: lease, UnlockTimeout: testTimeout,
				Trace: &rlock.Trace{Lost: func(_ context.Context, i rlock.LostInfo) { lost <- i }},
			}, options...)
			ctx, unlock := enter(t, t.Context(), v)
			e.awaitVotes(t, 3)
			e.proxies[0].BlackHole(true)
			e.proxies[1].BlackHole(true)
			began := time.Now()
			err := unlock()
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost, "the ctx reports the loss afterwards as well")
			requireTook(t, lease-lease/100-2*time.Millisecond, began, time.Now()) // less the drift of clocks
			info := <-lost
			require.Equal(t, "quorum", info.Kind)
			require.Equal(t, rlock.LostExpired, info.Err.Reason)
			require.ErrorContains(t, info.Err, says)
			require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
			e.proxies[0].BlackHole(false)
			e.proxies[1].BlackHole(false)
			e.awaitVotes(t, 0)
			require.NoError(t, v.Do(t.Context(), nothing), "the process can lock again")
			e.awaitVotes(t, 0)
			for _, c := range v.clients {
				require.Equal(t, 0, c.Stats().Holds)
			}
		})
	}
}

// A share released during the section, because its Client was closed, does not count at the unlock: another owner may have had that
// server since.
func TestQuorumUnlockCountsNoShareGivenBackBefore(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 3)
		e.loadScripts(t)
		v := e.process(t, rlock.Options{})
		e.proxies[2].OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
		_, unlock := enter(t, t.Context(), v)
		e.awaitVotes(t, 3)
		closed := async(func() error { v.clients[2].Close(); return nil })
		redistest.Eventually(t, testTimeout, func() bool {
			_, err := v.clients[2].Mutex(e.name).IsLocked(t.Context())
			return errors.Is(err, rlock.ErrClosed)
		}, "Close has begun")
		sleep(100 * time.Millisecond) // until the call for the share is abandoned
		e.proxies[2].Release()
		require.NoError(t, within(t, closed, testTimeout))
		e.awaitVotes(t, 2)
		require.NoError(t, e.watch[1].Do(t.Context(), e.watch[1].B().Del().Key(e.name).Build()).Error())
		err := unlock()
		require.ErrorIs(t, err, rlock.ErrLost)
		var loss *rlock.LostError
		require.ErrorAs(t, err, &loss)
		require.Equal(t, rlock.LostGone, loss.Reason)
		e.awaitVotes(t, 0)
	})
}

// Sections beside a dead server, whose proxy still accepts and closes connections, leave one unresolved call each. While no answer
// comes, all are swept together at growing intervals, without a connection for each.
func TestQuorumSweepsTheDeadSeldom(t *testing.T) {
	redistest.OnlyVirtual(t, "a section takes less than 100 ms, after which a share is requested again", func(t *testing.T) {
		const sections = 200
		e := newQuorumServers(t, 3)
		var dials atomic.Int64 // to the dead server
		v := e.processBy(t, func(o *rueidis.ClientOption) {
			redistest.Via(e.proxies[1])(o)
			dial := o.DialCtxFn
			o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
				if addr == e.proxies[1].Addr() {
					dials.Add(1)
				}
				return dial(ctx, addr, d, c)
			}
		}, rlock.Options{})
		require.NoError(t, v.Do(t.Context(), nothing)) // loads the scripts
		e.servers[1].Kill()
		dials.Store(0)
		began := time.Now()
		for range sections {
			require.NoError(t, v.Do(t.Context(), nothing))
		}
		redistest.Settle(t)
		asked := dials.Load()
		require.LessOrEqual(t, asked, int64(2*sections), "for the share, and to give it back")
		sleep(10 * time.Second)
		sweeps := 9 + time.Since(began)/(2*time.Second) // after 10 ms, 20 ms, ... 2 s, 2 s
		require.LessOrEqual(t, dials.Load()-asked, int64(2*sweeps), "rueidis may try again on a new connection")
		e.servers[1].Restart()
		e.awaitVotes(t, 0)
	})
}
