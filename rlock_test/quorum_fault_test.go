package rlock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
				require.NoError(t, v.Do(t.Context(), nothing))
				e.awaitVotes(t, 0)
			})
		}
	}
}
