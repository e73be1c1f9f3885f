package rlock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// exclusion records the owner in the section, and ignores owners whose ctx is cancelled.
type exclusion struct {
	mu  sync.Mutex // guards the following
	ctx context.Context
}

func (w *exclusion) enter(ctx context.Context) (alone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	alone = w.ctx == nil || w.ctx.Err() != nil || ctx.Err() != nil
	w.ctx = ctx
	return alone
}

func (w *exclusion) leave(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == ctx {
		w.ctx = nil
	}
}

// G1: whatever happens to the servers and connections, one owner is inside at a time. A server that lost its data comes back only
// when the leases it granted have ended; TestQuorumHeals covers an earlier return.
func TestQuorumExclusion(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog, voters, each = time.Second, 3, 2
		e := newQuorumServers(t, 5)
		for _, p := range e.proxies {
			p.Delay(2 * time.Millisecond)
		}
		var w exclusion
		var sections, losses atomic.Int64
		stop := make(chan struct{})
		stopped := func() bool {
			select {
			case <-stop:
				return true
			default:
				return false
			}
		}
		var work, chaos sync.WaitGroup
		for range voters {
			v := e.process(t, rlock.Options{WatchdogTimeout: watchdog})
			for range each {
				work.Go(func() {
					for !stopped() {
						ctx, unlock, err := v.TryLock(t.Context(), 2*time.Second)
						if err != nil {
							continue // too many servers are away
						}
						if !w.enter(ctx) {
							t.Error("two owners are inside")
						}
						sections.Add(1)
						select {
						case <-ctx.Done():
						case <-time.After(rand.N([]time.Duration{20 * time.Millisecond, 2 * watchdog}[rand.IntN(10)/9])):
						}
						w.leave(ctx)
						if ctx.Err() != nil {
							losses.Add(1)
						}
						_ = unlock()
					}
				})
			}
		}
		sleep(50 * time.Millisecond)
		for range 2 {
			chaos.Go(func() {
				for !stopped() {
					i := rand.IntN(5)
					switch away := rand.N(watchdog * 3 / 2); rand.IntN(5) {
					case 0:
						e.servers[i].Pause()
						sleep(away)
						e.servers[i].Resume()
					case 1:
						e.proxies[i].BlackHole(true)
						sleep(away)
						e.proxies[i].BlackHole(false)
					case 2:
						e.proxies[i].CutAll()
					case 3:
						e.proxies[i].Refuse(true)
						e.proxies[i].CutAll()
						sleep(away)
						e.proxies[i].Refuse(false)
					case 4:
						sleep(away / 4)
					}
				}
			})
		}
		chaos.Go(func() {
			for i := 0; !stopped(); i = (i + 1) % 5 {
				e.servers[i].Kill()
				sleep(watchdog + 10*time.Millisecond)
				e.servers[i].Restart()
				sleep(watchdog / 2)
			}
		})
		sleep(6 * time.Second)
		close(stop)
		chaos.Wait()
		work.Wait()
		t.Logf("%d sections, %d losses", sections.Load(), losses.Load())
		require.Greater(t, sections.Load(), int64(2))
		e.awaitVotes(t, 0)
	})
}

// When a majority is away, the waiters of one process fail together, not one after the other.
func TestQuorumOutageForManyWaiters(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 3)
		v := e.process(t, rlock.Options{})
		require.NoError(t, v.Do(t.Context(), nothing)) // opens the connections
		e.proxies[0].BlackHole(true)
		e.proxies[1].BlackHole(true)
		began := time.Now()
		var all []pendingLock
		for range 6 {
			all = append(all, lockAsync(t, v))
		}
		for _, waiter := range all {
			got := waiter.get(t, 15*time.Second)
			require.ErrorIs(t, got.err, rlock.ErrUnreachable)
			requireTookAtMost(t, 2*4*time.Second, began, got.at) // no longer than two Locks take: 3 s and a last round each
		}
		e.proxies[0].BlackHole(false)
		e.proxies[1].BlackHole(false)
		require.NoError(t, v.Do(t.Context(), nothing))
		e.awaitVotes(t, 0)
	})
}

// G5: late grants, and grants whose answers are late or lost, are released on every server.
func TestQuorumGivesLateGrantsBack(t *testing.T) {
	for name, fault := range map[string]func(*redistest.Proxy, redistest.Hook){
		"request": (*redistest.Proxy).OnRequest, "reply": (*redistest.Proxy).OnReply,
	} {
		for _, action := range []redistest.Action{redistest.Hold, redistest.Drop, redistest.Cut} {
			redistest.RunVirtual(t, name+" "+string(action), func(t *testing.T) {
				e := newQuorumServers(t, 5)
				e.loadScripts(t)
				v := e.process(t, rlock.Options{})
				for i := range 3 {
					fault(e.proxies[i], redistest.Nth(1, "EVALSHA", action))
				}
				_, _, err := v.TryLock(t.Context(), 0)
				require.ErrorIs(t, err, rlock.ErrUnreachable)
				for _, p := range e.proxies {
					p.Release()
				}
				e.awaitVotes(t, 0)
				require.NoError(t, v.handle(rlock.WithWaitForRedis()).Do(t.Context(), nothing))
				e.awaitVotes(t, 0)
			})
		}
	}
}

// With one or two of five servers dead, a Lock and its unlock take as long as with five, whichever way the servers died.
func TestQuorumLatencyBesideTheDead(t *testing.T) {
	for name, death := range deaths {
		t.Run(name, func(t *testing.T) {
			redistest.OnlyVirtual(t, "a real section takes another time each time", func(t *testing.T) {
				const way = 10 * time.Millisecond
				e := newQuorumServers(t, 5)
				for _, p := range e.proxies {
					p.Delay(way)
				}
				v := e.process(t, rlock.Options{})
				require.NoError(t, v.Do(t.Context(), nothing)) // loads the scripts
				take := func(dead int) {
					t.Helper()
					for range 5 {
						began := time.Now()
						require.NoError(t, v.Do(t.Context(), nothing))
						require.Equal(t, 2*2*way, time.Since(began), "a round trip each for Lock and unlock, with %d dead", dead)
					}
				}
				take(0)
				death.kill(e, 1)
				take(1)
				death.kill(e, 3)
				take(2)
				death.back(e, 1)
				death.back(e, 3)
				e.awaitVotes(t, 0)
			})
		})
	}
}

// G2: if three of five servers die, the holder's ctx is cancelled before a lease can end, and other callers get ErrUnreachable.
func TestQuorumLossIsTold(t *testing.T) {
	for name, death := range deaths {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			const watchdog = shortWatchdog
			e := newQuorumServers(t, 5)
			a, b := e.process(t, rlock.Options{WatchdogTimeout: watchdog}), e.process(t, rlock.Options{WatchdogTimeout: watchdog})
			ctx, unlock := enter(t, t.Context(), a)
			e.awaitVotes(t, 5)
			for i := range 3 {
				death.kill(e, i)
			}
			died := time.Now()
			waiter := lockAsync(t, b)
			<-ctx.Done()
			requireTook(t, watchdog-watchdog/100-2*time.Millisecond, died, time.Now()) // less the drift of clocks
			var loss *rlock.LostError
			require.ErrorAs(t, context.Cause(ctx), &loss)
			require.Equal(t, rlock.LostExpired, loss.Reason)
			require.EqualError(t, loss, `rlock: "`+e.name+`": lost: fewer than 3 of 5 servers renewed it in time`)
			require.ErrorIs(t, unlock(), rlock.ErrLost)

			began := time.Now()
			_, _, err := a.TryLock(t.Context(), 0)
			require.ErrorIs(t, err, rlock.ErrUnreachable)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			requireTookAtMost(t, time.Second, began, time.Now())
			got := waiter.get(t, 10*time.Second)
			require.ErrorIs(t, got.err, rlock.ErrUnreachable)
			requireTookAtMost(t, 4*time.Second, died, got.at) // 3 s, and its last round
			for i := range 3 {
				death.back(e, i)
			}
			e.awaitVotes(t, 0)
			redistest.Eventually(t, 10*time.Second, func() bool {
				return b.TryDo(t.Context(), time.Second, nothing) == nil
			}, "the lock can be acquired once the servers are back")
		})
	}
}

// A server that lost its data, or was away, gets its share of the hold back. Meanwhile no other owner gets a majority.
func TestQuorumHeals(t *testing.T) {
	for name, death := range deaths {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			const watchdog = shortWatchdog
			e := newQuorumServers(t, 3)
			a, b := e.process(t, rlock.Options{WatchdogTimeout: watchdog}), e.process(t, rlock.Options{WatchdogTimeout: watchdog})
			ctx, unlock := enter(t, t.Context(), a)
			e.awaitVotes(t, 3)
			sleep(watchdog / 2) // until all are renewed, so that even a slow server is known to have had the hold meanwhile
			w := e.watch[1]
			fields := answer(w.Do(t.Context(), w.B().Hkeys().Key(e.name).Build()).AsStrSlice()).ok(t)
			healed := func(what string) {
				t.Helper()
				redistest.Eventually(t, 2*watchdog, func() bool {
					has, err := w.Do(t.Context(), w.B().Hexists().Key(e.name).Field(fields[0]).Build()).AsBool()
					return err == nil && has
				}, what)
				sleep(watchdog / 2) // until the others are renewed, and so known to have had the hold while this server had not
				require.NoError(t, ctx.Err(), "%v", context.Cause(ctx))
			}
			stop := make(chan struct{})
			var others sync.WaitGroup
			others.Go(func() {
				for ctx.Err() == nil {
					_, _, err := b.TryLock(t.Context(), 50*time.Millisecond)
					assert.ErrorIs(t, err, rlock.ErrNotAcquired)
					select { // without a pause, this competitor would often hold the missing share
					case <-stop:
						return
					case <-time.After(500 * time.Millisecond):
					}
				}
			})
			require.NoError(t, w.Do(t.Context(), w.B().Flushall().Build()).Error())
			healed("flushed")
			death.kill(e, 1)
			sleep(watchdog + 100*time.Millisecond) // the share on that server expires
			death.back(e, 1)
			healed("back")
			close(stop)
			others.Wait()
			require.NoError(t, unlock())
			e.awaitVotes(t, 0)
		})
	}
}

// G2, G8: when a majority of the servers has lost a hold, the next renewal cancels its ctx, or its unlock returns ErrLost.
func TestQuorumIsForgotten(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = shortWatchdog
		e := newQuorumServers(t, 3)
		v := e.process(t, rlock.Options{WatchdogTimeout: watchdog})
		forget := func() { // without a renewal in between: otherwise the first server might be healed before the second forgets
			defer e.refuseRenewals(0)()
			defer e.refuseRenewals(1)()
			for _, w := range e.watch[:2] {
				require.NoError(t, w.Do(t.Context(), w.B().Del().Key(e.name).Build()).Error())
			}
		}
		ctx, unlock := enter(t, t.Context(), v)
		e.awaitVotes(t, 3)
		forget()
		forgot := time.Now()
		<-ctx.Done()
		requireTookAtMost(t, 2*longestPeriod(watchdog), forgot, time.Now()) // until the next renewal, and a second look as much later
		var loss *rlock.LostError
		require.ErrorAs(t, context.Cause(ctx), &loss)
		require.Equal(t, rlock.LostGone, loss.Reason)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		e.awaitVotes(t, 0)

		_, unlock = enter(t, t.Context(), v)
		e.awaitVotes(t, 3)
		forget()
		err := unlock()
		require.ErrorIs(t, err, rlock.ErrNotHeld)
		require.ErrorIs(t, err, rlock.ErrLost)
		e.awaitVotes(t, 0)
	})
}

// G2: a server that lost the hold and was given it again does not count for the time before. If another server had lost the hold by
// then, the unlock reports the loss, although a majority had the hold a moment before.
func TestQuorumIsForgottenByOneAfterTheOther(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 2 * shortWatchdog
		e := newQuorumServers(t, 3)
		v := e.process(t, rlock.Options{WatchdogTimeout: watchdog})
		_, unlock := enter(t, t.Context(), v)
		e.awaitVotes(t, 3)
		sleep(watchdog / 2) // until all are renewed
		e.refuseRenewals(1)
		for _, w := range e.watch[:2] {
			require.NoError(t, w.Do(t.Context(), w.B().Del().Key(e.name).Build()).Error())
		}
		e.awaitVotes(t, 2)
		err := unlock()
		require.ErrorIs(t, err, rlock.ErrNotHeld)
		require.ErrorIs(t, err, rlock.ErrLost)
		e.awaitVotes(t, 0)
	})
}

// Servers that lose the hold in turn, each after all others were found to have it, cause no loss: a majority had it throughout.
func TestQuorumIsForgottenInTurn(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = shortWatchdog
		e := newQuorumServers(t, 3)
		v := e.process(t, rlock.Options{WatchdogTimeout: watchdog})
		ctx, unlock := enter(t, t.Context(), v)
		for _, w := range e.watch {
			e.awaitVotes(t, 3)
			sleep(2 * watchdog / 3) // until all are renewed
			require.NoError(t, w.Do(t.Context(), w.B().Del().Key(e.name).Build()).Error())
		}
		e.awaitVotes(t, 3)
		sleep(2 * watchdog / 3)
		require.NoError(t, ctx.Err())
		require.NoError(t, unlock())
		e.awaitVotes(t, 0)
	})
}

// G2: two servers forget the hold, and another process is inside. One of them is cut off from the holder until its lease there is over, so
// no renewal finds out; the other one has given the hold its share again. The holder is told when that lease ends.
func TestQuorumIsForgottenByAServerThatIsCutOff(t *testing.T) {
	redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
		const watchdog = shortWatchdog
		e := newQuorumServers(t, 3)
		v, other := e.process(t, rlock.Options{WatchdogTimeout: watchdog}), e.through(t).process(t, rlock.Options{})
		ctx, unlock := enter(t, t.Context(), v)
		e.awaitVotes(t, 3)
		sleep(watchdog / 2) // until all are renewed
		e.proxies[1].BlackHole(true)
		cut := time.Now()
		e.passesTo(t, other, 0, 1)
		sleep(longestPeriod(watchdog))
		require.Equal(t, 2, e.votes(t), "one has given the hold its share again")
		require.NoError(t, ctx.Err(), "the other one may have it")
		redistest.Within(t, watchdog, ctx.Done(), "the holder is told")
		requireTookAtMost(t, watchdog, cut, time.Now())
		require.EqualError(t, context.Cause(ctx),
			`rlock: "`+e.name+`": lost: only 1 of 3 servers are known to have had it all the time; one was not renewed in time`)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		e.proxies[1].BlackHole(false)
		e.awaitVotes(t, 0)
	})
}

// G2: the same, but the first server keeps its data, and is cut off until the lease there is over.
func TestQuorumIsForgottenByServersThatAreCutOffInTurn(t *testing.T) {
	redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
		const watchdog = shortWatchdog
		e := newQuorumServers(t, 3)
		v, other := e.process(t, rlock.Options{WatchdogTimeout: watchdog}), e.through(t).process(t, rlock.Options{})
		ctx, unlock := enter(t, t.Context(), v)
		e.awaitVotes(t, 3)
		sleep(watchdog / 2) // until all are renewed
		e.proxies[0].BlackHole(true)
		sleep(watchdog * 3 / 4)
		e.proxies[1].BlackHole(true)
		e.awaitVotes(t, 2) // the lease of the first is over
		e.passesTo(t, other, 1)
		require.NoError(t, ctx.Err())
		e.proxies[0].BlackHole(false)
		redistest.Within(t, watchdog, ctx.Done(), "the holder is told")
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		e.proxies[1].BlackHole(false)
		e.awaitVotes(t, 0)
	})
}

// G2: the share of a closed Client does not count when its lease is over, neither for the present nor for the past.
func TestQuorumIsForgottenBesideAClosedClient(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = shortWatchdog
		e := newQuorumServers(t, 5)
		v, other := e.process(t, rlock.Options{WatchdogTimeout: watchdog}), e.through(t).process(t, rlock.Options{})
		ctx, unlock := enter(t, t.Context(), v)
		e.awaitVotes(t, 5)
		v.clients[4].Close()
		e.awaitVotes(t, 4)
		require.NoError(t, ctx.Err())
		e.passesTo(t, other, 0, 1) // two of four had it all the time
		redistest.Within(t, watchdog, ctx.Done(), "the holder is told")
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		e.awaitVotes(t, 0)
	})
}

// G2: a server that had no share at first proves nothing about the time before. If another one has forgotten its share, the unlock says so, as
// the next renewal would have.
func TestQuorumUnlockCountsNoLateShare(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 3)
		v, other := e.process(t, rlock.Options{}), e.through(t).process(t, rlock.Options{})
		e.proxies[2].Refuse(true)
		e.proxies[2].CutAll()
		_, unlock := enter(t, t.Context(), v)
		e.awaitVotes(t, 2)
		e.refuseRenewals(0)
		e.passesTo(t, other, 0)
		require.Equal(t, 1, e.votes(t))
		e.proxies[2].Refuse(false)
		e.awaitVotes(t, 2)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		e.awaitVotes(t, 0)
	})
}

// G2: a server that was slow at first proves nothing about the time before, either, whether it answers before the unlock or after it. No
// renewal finds out, as the lease is a fixed one.
func TestQuorumUnlockCountsNoSlowShare(t *testing.T) {
	const slow = time.Second
	for name, answersFirst := range map[string]bool{"before the unlock": true, "after it": false} {
		t.Run(name, func(t *testing.T) {
			redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
				e := newQuorumServers(t, 3)
				v, other := e.process(t, rlock.Options{}, rlock.WithLease(time.Minute)), e.through(t).process(t, rlock.Options{})
				require.NoError(t, v.Do(t.Context(), nothing)) // opens the connections
				e.awaitVotes(t, 0)
				e.proxies[2].Delay(slow / 2)
				_, unlock := enter(t, t.Context(), v)
				e.awaitVotes(t, 2)
				e.passesTo(t, other, 0)
				require.Equal(t, 1, e.votes(t))
				if answersFirst {
					sleep(2 * slow)
					require.Equal(t, 2, e.votes(t))
				}
				require.ErrorIs(t, unlock(), rlock.ErrLost)
				e.awaitVotes(t, 0)
			})
		})
	}
}

// A hold outlives servers that are away for its lease one after the other, and one that has lost its data, even if the next one goes at the
// moment at which the last one has given the hold its share again. A server that answers late counts, too.
func TestQuorumOutlivesServersThatGoInTurn(t *testing.T) {
	redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
		const watchdog = shortWatchdog
		e := newQuorumServers(t, 3)
		v := e.process(t, rlock.Options{WatchdogTimeout: watchdog})
		require.NoError(t, v.Do(t.Context(), nothing)) // opens the connections
		e.awaitVotes(t, 0)
		e.proxies[2].Delay(50 * time.Millisecond)
		ctx, unlock := enter(t, t.Context(), v)
		e.awaitVotes(t, 3)
		sleep(100 * time.Millisecond)
		e.proxies[2].Delay(0)
		for i := range 6 {
			e.proxies[i%3].BlackHole(true)
			e.awaitVotes(t, 2)
			e.proxies[i%3].BlackHole(false)
			e.awaitVotes(t, 3)
			if i > 2 {
				require.NoError(t, e.watch[i%3].Do(t.Context(), e.watch[i%3].B().Del().Key(e.name).Build()).Error())
				e.awaitVotes(t, 3)
			}
		}
		sleep(2 * watchdog)
		require.NoError(t, ctx.Err(), "%v", context.Cause(ctx))
		require.NoError(t, unlock())
		e.awaitVotes(t, 0)
	})
}

// through returns the same servers, for processes with connections of their own.
func (e *quorumServers) through(t testing.TB) *quorumServers {
	t.Helper()
	other := *e
	other.proxies = nil
	for _, s := range e.servers {
		other.proxies = append(other.proxies, redistest.StartProxy(t, s.Addr()))
	}
	return &other
}

// passesTo makes servers forget the lock, which another process gets and unlocks.
func (e *quorumServers) passesTo(t testing.TB, other quorumProcess, servers ...int) {
	t.Helper()
	for _, i := range servers {
		require.NoError(t, e.watch[i].Do(t.Context(), e.watch[i].B().Del().Key(e.name).Build()).Error())
	}
	require.NoError(t, other.TryDo(t.Context(), 0, nothing))
}
