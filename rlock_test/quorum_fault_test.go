package rlock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// exclusion sees who is in the section, and has not been told that its hold ended.
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

// G1: whatever happens to the servers, and to the ways to them, one owner is inside at a time. A server that lost its data comes
// back when the leases that it granted have ended; whether it comes back before is for TestQuorumHeals.
func TestQuorumExclusion(t *testing.T) {
	redistest.Parallel(t)
	const watchdog, voters, each = time.Second, 3, 2
	e := newQuorumServers(t, 5)
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
}

// Goroutines that wait for a quorum in one process do not find out one after the other that a majority is away.
func TestQuorumOutageForManyWaiters(t *testing.T) {
	redistest.Parallel(t)
	e := newQuorumServers(t, 3)
	v := e.process(t, rlock.Options{})
	require.NoError(t, v.Do(t.Context(), nothing)) // connections
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
		require.Less(t, got.at.Sub(began), 7*time.Second+soon, "the time of two Locks")
	}
	e.proxies[0].BlackHole(false)
	e.proxies[1].BlackHole(false)
	require.NoError(t, v.Do(t.Context(), nothing))
	e.awaitVotes(t, 0)
}

// G5: grants that come late, or whose answers are late or lost, are given back on every server.
func TestQuorumGivesLateGrantsBack(t *testing.T) {
	redistest.Parallel(t)
	for name, fault := range map[string]func(*redistest.Proxy, redistest.Hook){
		"request": (*redistest.Proxy).OnRequest, "reply": (*redistest.Proxy).OnReply,
	} {
		for _, action := range []redistest.Action{redistest.Hold, redistest.Drop, redistest.Cut} {
			t.Run(name+" "+string(action), func(t *testing.T) {
				redistest.Parallel(t)
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
				require.NoError(t, v.Do(t.Context(), nothing))
				e.awaitVotes(t, 0)
			})
		}
	}
}

// G3, G4: a waiter sends nothing, and is woken by an unlock, quickly.
func TestQuorumWakes(t *testing.T) {
	e := newQuorumServers(t, 5)
	a, b := e.process(t, rlock.Options{}), e.process(t, rlock.Options{})
	var all, sections []time.Duration
	for i := range 20 {
		free := time.Now()
		require.NoError(t, a.Do(t.Context(), nothing))
		sections = append(sections, time.Since(free))
		_, unlock, err := a.Lock(t.Context())
		require.NoError(t, err)
		e.awaitVotes(t, 5)
		waiter := lockAsync(t, b)
		e.awaitSubscribers(t, 1)
		redistest.Eventually(t, 5*time.Second, func() bool { return redistest.Started("quorum.(*election).await(") == 1 }, "it waits")
		if i == 0 {
			sleep(100 * time.Millisecond) // the round that the subscriptions have it ask
			before := e.commands(t)
			sleep(500 * time.Millisecond)
			require.Equal(t, before, e.commands(t), "nothing is sent")
		}
		began := time.Now()
		require.NoError(t, unlock())
		got := waiter.get(t, 5*time.Second)
		require.NoError(t, got.err)
		all = append(all, got.at.Sub(began))
		require.NoError(t, got.unlock())
	}
	slices.Sort(all)
	slices.Sort(sections)
	usual := sections[len(sections)/2]
	t.Logf("from the call of unlock to the return of Lock: median %v, longest %v; a section %v", all[len(all)/2], all[len(all)-1], usual)
	require.Less(t, all[len(all)/2], 5*usual+20*time.Millisecond)
	require.Less(t, all[len(all)-1], rlock.DefaultWatchdogTimeout/3)
}

// G4: a server where a waiter could not be told of the unlock wakes it when it is back, or when its lease ends.
func TestQuorumWakesWithoutMessages(t *testing.T) {
	redistest.Parallel(t)
	const lease = time.Second
	e := newQuorumServers(t, 3)
	a, b := e.process(t, rlock.Options{}, rlock.WithLease(lease)), e.process(t, rlock.Options{})
	t.Run("crashed holder", func(t *testing.T) {
		_, _, err := a.Lock(t.Context()) // nobody unlocks
		require.NoError(t, err)
		got := lockAsync(t, b).get(t, lease+soon)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
	})
	t.Run("subscriptions lost", func(t *testing.T) {
		long := e.process(t, rlock.Options{}) // a lease that nobody waits for
		_, unlock, err := long.Lock(t.Context())
		require.NoError(t, err)
		waiter := lockAsync(t, b)
		e.awaitSubscribers(t, 1)
		for _, p := range e.proxies {
			p.Refuse(true)
			p.CutAll()
		}
		for i, w := range e.watch { // what the unlock does, but for its message
			require.NoError(t, w.Do(t.Context(), w.B().Del().Key(e.name).Build()).Error())
			e.proxies[i].Refuse(false)
		}
		got := waiter.get(t, 5*time.Second)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
		_ = unlock() // on connections that were cut: it may take the missing shares for released by itself
	})
}

// Processes that want the lock at the same time all get it, also if they split the votes of an even number of servers, or
// wait for the votes of servers that do not answer.
func TestQuorumCompetitors(t *testing.T) {
	redistest.Parallel(t)
	for name, dead := range map[string][]string{"5 of 5": nil, "4 of 5": {"killed"}, "3 of 5": {"stopped", "cut off"}} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			e := newQuorumServers(t, 5)
			const voters, each = 3, 10
			var vs []quorumProcess
			for range voters {
				vs = append(vs, e.process(t, rlock.Options{}))
			}
			for i, death := range dead {
				deaths[death].kill(e, i)
			}
			began := time.Now()
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
			t.Logf("%v for a section", time.Since(began)/(voters*each))
			require.Less(t, time.Since(began), 15*time.Second)
			for i, death := range dead {
				deaths[death].back(e, i)
			}
			e.awaitVotes(t, 0)
		})
	}
}

// Two processes that are each nearer to two of four servers split the votes whenever they ask in the same moment. A random pause
// has one of them ask first. Two votes are not enough.
func TestQuorumSplitVotes(t *testing.T) {
	redistest.Parallel(t)
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
		require.NoError(t, v.Do(t.Context(), nothing)) // connections
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
}

// A majority that is slow has answered all the same: that the lock is held is no outage, though the first answer came long before.
func TestQuorumOfSlowServersIsReached(t *testing.T) {
	redistest.Parallel(t)
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
}

// Where another one has a vote, a round does not wait for the dead: two could wait for them in turn, with the living votes split.
func TestQuorumRoundEndsWithoutTheDead(t *testing.T) {
	redistest.Parallel(t)
	e := newQuorumServers(t, 3)
	v := e.process(t, rlock.Options{})
	require.NoError(t, v.Do(t.Context(), nothing)) // connections
	e.awaitVotes(t, 0)
	fixture{rdb: e.watch[1]}.do(t, "HSET", e.name, foreignOwner, "1")
	e.proxies[2].BlackHole(true)
	began := time.Now()
	_, _, err := v.TryLock(t.Context(), 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.Less(t, time.Since(began), 900*time.Millisecond, "an answer is given a second otherwise")
	var refusal *rlock.NotAcquiredError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, foreignOwner, refusal.Holder)
	e.awaitVotes(t, 1)
	e.proxies[2].BlackHole(false)
	fixture{rdb: e.watch[1]}.do(t, "DEL", e.name)
	require.NoError(t, v.Do(t.Context(), nothing))
	e.awaitVotes(t, 0)
}

// G5: whenever a wait is cancelled, nothing is left of it.
func TestQuorumCancelled(t *testing.T) {
	redistest.Parallel(t)
	before := ourGoroutines()
	e := newQuorumServers(t, 3)
	a, b := e.process(t, rlock.Options{}), e.process(t, rlock.Options{})
	_, unlock, err := a.Lock(t.Context())
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(50*time.Millisecond))
			defer cancel()
			failed, _, err := b.Lock(ctx)
			assert.ErrorIs(t, err, rlock.ErrNotAcquired)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, ctx, failed)
		})
	}
	all.Wait()
	require.NoError(t, unlock())
	for range 100 { // while it is asked, with the lock free
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(1500*time.Microsecond))
		if _, unlock, err := b.Lock(ctx); err == nil {
			assert.NoError(t, unlock())
		}
		cancel()
	}
	e.awaitVotes(t, 0)
	e.awaitSubscribers(t, 0)
	began := time.Now()
	_, _, err = a.Lock(canceled())
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, time.Since(began), soon)
	a.close()
	b.close()
	awaitGoroutines(t, before)
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// G9: a Client that is closed is a server that is down; the quorum ends with the majority of them.
func TestQuorumClose(t *testing.T) {
	redistest.Parallel(t)
	before := ourGoroutines()
	const watchdog = shortWatchdog
	e := newQuorumServers(t, 5)
	a, b := e.process(t, rlock.Options{WatchdogTimeout: watchdog}), e.process(t, rlock.Options{WatchdogTimeout: watchdog})
	ctx, unlock, err := a.Lock(t.Context())
	require.NoError(t, err)
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
	other := waiter.get(t, 5*time.Second)
	require.NoError(t, other.err)

	local := lockAsync(t, a)
	_, _, err = b.TryLock(t.Context(), 0)
	require.ErrorContains(t, err, "held by "+rlock.Owner(other.ctx))
	second := lockAsync(t, b)
	b.close()
	<-other.ctx.Done()
	require.ErrorIs(t, context.Cause(other.ctx), rlock.ErrClosed)
	require.NotErrorIs(t, context.Cause(other.ctx), rlock.ErrLost)
	require.ErrorIs(t, second.get(t, soon).err, rlock.ErrClosed)
	_, _, err = b.Lock(t.Context())
	require.ErrorIs(t, err, rlock.ErrClosed)
	_, _, err = b.Lock(context.WithoutCancel(other.ctx))
	require.ErrorIs(t, err, rlock.ErrClosed, "nor is a level opened that nobody would tell")
	local.stillWaits(t)
	require.NoError(t, other.unlock(), "an unlock after Close releases as before")
	got := local.get(t, 5*time.Second)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
	a.close()
	awaitGoroutines(t, before)
	e.awaitVotes(t, 0)
}

// An unlock needs the answers of a majority. It is made up for on the others when they are back.
func TestQuorumUnlockBesideTheDead(t *testing.T) {
	redistest.Parallel(t)
	for name, death := range deaths {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			e := newQuorumServers(t, 5)
			v := e.process(t, rlock.Options{})
			ctx, unlock, err := v.Lock(t.Context())
			require.NoError(t, err)
			e.awaitVotes(t, 5)
			death.kill(e, 0)
			death.kill(e, 1)
			began := time.Now()
			require.NoError(t, unlock())
			require.Less(t, time.Since(began), soon)
			require.Error(t, ctx.Err())

			_, unlock, err = v.Lock(t.Context())
			require.NoError(t, err)
			death.kill(e, 2)
			began = time.Now()
			require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
			require.Less(t, time.Since(began), 8*time.Second)
			for i := range 3 {
				death.back(e, i)
			}
			e.awaitVotes(t, 0)
		})
	}
}

// An unlock that gets no answer ends with the lease, if that is earlier than its time; and the loss is told.
func TestQuorumUnlockOutlivesItsLease(t *testing.T) {
	redistest.Parallel(t)
	const lease = time.Second
	for says, options := range map[string][]rlock.Option{
		"its lease of fixed length ended":              {rlock.WithLease(lease)},
		"fewer than 2 of 3 servers renewed it in time": nil,
	} {
		t.Run(says, func(t *testing.T) {
			redistest.Parallel(t)
			e := newQuorumServers(t, 3)
			lost := make(chan rlock.LostInfo, 1)
			v := e.process(t, rlock.Options{
				WatchdogTimeout: lease, UnlockTimeout: testTimeout,
				Trace: &rlock.Trace{Lost: func(_ context.Context, i rlock.LostInfo) { lost <- i }},
			}, options...)
			ctx, unlock, err := v.Lock(t.Context())
			require.NoError(t, err)
			e.awaitVotes(t, 3)
			e.proxies[0].BlackHole(true)
			e.proxies[1].BlackHole(true)
			began := time.Now()
			err = unlock()
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost, "whoever looks at the section afterwards sees it as well")
			took := time.Since(began)
			require.Greater(t, took, lease/3)
			require.Less(t, took, lease+soon)
			info := <-lost
			require.Equal(t, "quorum", info.Kind)
			require.Equal(t, rlock.LostExpired, info.Err.Reason)
			require.ErrorContains(t, info.Err, says)
			require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
			e.proxies[0].BlackHole(false)
			e.proxies[1].BlackHole(false)
			e.awaitVotes(t, 0)
			require.NoError(t, v.Do(t.Context(), nothing), "the process asks again")
			e.awaitVotes(t, 0)
			for _, c := range v.clients {
				require.Equal(t, 0, c.Stats().Holds)
			}
		})
	}
}

// A share that was given back while the section went on, since its Client was closed, says nothing at the unlock: another owner may have had that
// server since.
func TestQuorumUnlockCountsNoShareGivenBackBefore(t *testing.T) {
	redistest.Parallel(t)
	e := newQuorumServers(t, 3)
	e.loadScripts(t)
	v := e.process(t, rlock.Options{})
	e.proxies[2].OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
	_, unlock, err := v.Lock(t.Context())
	require.NoError(t, err)
	e.awaitVotes(t, 3)
	closed := async(func() error { v.clients[2].Close(); return nil })
	redistest.Eventually(t, testTimeout, func() bool {
		_, err := v.clients[2].Mutex(e.name).IsLocked(t.Context())
		return errors.Is(err, rlock.ErrClosed)
	}, "it closes")
	sleep(100 * time.Millisecond) // the call for the share is left
	e.proxies[2].Release()
	require.NoError(t, within(t, closed, testTimeout))
	e.awaitVotes(t, 2)
	require.NoError(t, e.watch[1].Do(t.Context(), e.watch[1].B().Del().Key(e.name).Build()).Error())
	err = unlock()
	require.ErrorIs(t, err, rlock.ErrLost)
	var loss *rlock.LostError
	require.ErrorAs(t, err, &loss)
	require.Equal(t, rlock.LostGone, loss.Reason)
	e.awaitVotes(t, 0)
}

// Sections beside a dead server, before which something takes connections and closes them, leave a doubt each. As long as nobody answers,
// they are swept together at pauses that grow, and not with a connection for each.
func TestQuorumSweepsTheDeadSeldom(t *testing.T) {
	redistest.Parallel(t)
	const sections = 400
	e := newQuorumServers(t, 3)
	var dials atomic.Int64 // of the dead one
	v := e.processBy(t, func(o *rueidis.ClientOption) {
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if addr == e.proxies[1].Addr() {
				dials.Add(1)
			}
			return d.DialContext(ctx, "tcp", addr)
		}
	}, rlock.Options{})
	require.NoError(t, v.Do(t.Context(), nothing)) // scripts
	e.servers[1].Kill()
	dials.Store(0)
	began, most := time.Now(), sections
	for range sections {
		entered := time.Now()
		require.NoError(t, v.Do(t.Context(), nothing))
		most += int(time.Since(entered) / (100 * time.Millisecond)) // the share is asked for again
	}
	most += 9 + int(time.Since(began)/(2*time.Second)) // after 10 ms, 20 ms, ... 2 s, 2 s
	t.Logf("%d connections, %d at most", dials.Load(), most)
	require.LessOrEqual(t, dials.Load(), int64(most))
	e.servers[1].Restart()
	e.awaitVotes(t, 0)
}
