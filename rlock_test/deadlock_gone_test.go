package rlock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// firstLap and secondLap recognise the messages of a probe. A probe runs around the circle twice before a deadlock counts as found.
func firstLap(cmd []string) bool  { return isProbe(cmd) && !secondLap(cmd) }
func secondLap(cmd []string) bool { return isProbe(cmd) && strings.Contains(cmd[2], `"b":true`) }

func isProbe(cmd []string) bool {
	return len(cmd) == 3 && strings.HasPrefix(cmd[1], "rlock_client:") && strings.Contains(cmd[2], `"s":[`)
}

// ring is a circle of three processes, each with its own connection to Redis. They begin to wait in their order, so the last one
// starts the probe: it goes to the first process, then to the second, and back to the last.
type ring struct {
	clients [3]*rlock.Client
	proxies [3]*redistest.Proxy
	graphs  [3]*deadlock.Graph
	parties []party
	waits   waitsOf
}

func newRing(t *testing.T, o func(i int) rlock.Options) *ring {
	t.Helper()
	r := &ring{waits: newWaits()}
	name := redistest.Name(t)
	lock := func(i, n int) rlock.Locker { return r.clients[i].Mutex(fmt.Sprint(name, "/", n%3)) }
	for i := range r.clients {
		r.proxies[i], r.graphs[i] = redistest.StartProxy(t, redistest.Shared(t)), deadlock.New()
		options := o(i)
		options.Trace = r.waits.trace()
		r.clients[i] = newClient(t, deadlock.Apart{Client: redistest.Dial(t, r.proxies[i].Addr()), Graph: r.graphs[i]}, options)
		r.parties = append(r.parties, party{lock(i, i), lock(i, i+1)})
	}
	return r
}

// isOfTheLast reports whether the last process has started a probe; by then all three wait.
func (r *ring) isOfTheLast(cmd []string) bool {
	return isProbe(cmd) && strings.Contains(cmd[2], r.clients[2].ID())
}

// requireNothingLeft checks that no wait is left in a graph, and that another process can take every lock.
func (r *ring) requireNothingLeft(t *testing.T, gone int) {
	t.Helper()
	for i, g := range r.graphs {
		require.Empty(t, g.Waits(), i)
	}
	other := (gone + 1) % 3
	for _, p := range r.parties {
		m, ok := p.has.(*rlock.Mutex)
		require.True(t, ok)
		lockAndUnlock(t, r.clients[other].Mutex(m.Name()))
	}
}

// If a process dies while a probe is on its way, there is no deadlock any more: its lock becomes free when its lease expires. No
// other Lock fails, wherever the probe was, and nothing is left.
func TestDeadlockMemberKilled(t *testing.T) {
	for name, row := range map[string]struct {
		dies    int
		at      func(cmd []string) bool
		hearing bool // it dies when it receives such a message; otherwise just before it sends one
	}{
		"the second hears the first lap":  {1, firstLap, true},
		"the second says the first lap":   {1, firstLap, false},
		"the second hears the second lap": {1, secondLap, true},
		"the second says the second lap":  {1, secondLap, false},
		"the first hears the second lap":  {0, secondLap, true},
		"the last hears the first lap":    {2, firstLap, true},
		"the last says the second lap":    {2, secondLap, false},
		"the last hears the second lap":   {2, secondLap, true},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newRing(t, func(i int) rlock.Options {
				o := failAfter(300 * time.Millisecond)
				if i == row.dies {
					o.WatchdogTimeout = shortWatchdog
				}
				return o
			})
			var dead atomic.Bool
			kill := func(hears bool) redistest.Hook {
				return func(cmd []string) redistest.Action {
					if dead.Load() || row.hearing == hears && r.isOfTheLast(cmd) && row.at(cmd) {
						dead.Store(true)
						return redistest.Cut
					}
					return redistest.Pass
				}
			}
			r.proxies[row.dies].OnReply(kill(true))
			r.proxies[row.dies].OnRequest(kill(false))
			errs := circle(t, r.parties, func(int) { r.waits.next(t) })
			require.True(t, dead.Load())
			for i, err := range errs {
				require.NotErrorIs(t, err, rlock.ErrDeadlock, i)
				if i != row.dies {
					require.NoError(t, err, i)
				}
			}
			r.requireNothingLeft(t, row.dies)
		})
	}
}

// The same holds for a Client that is closed while a probe is on its way to it.
func TestDeadlockMemberClosed(t *testing.T) {
	for name, at := range map[string]func(cmd []string) bool{"first lap": firstLap, "second lap": secondLap} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newRing(t, func(int) rlock.Options { return failAfter(300 * time.Millisecond) })
			on := make(chan struct{})
			first := true
			r.proxies[0].OnRequest(func(cmd []string) redistest.Action { // the probe from the first process to the second
				if !first || !r.isOfTheLast(cmd) || !at(cmd) {
					return redistest.Pass
				}
				first = false
				close(on)
				return redistest.Hold
			})
			closed := async(func() error {
				<-on
				r.clients[1].Close()
				r.proxies[0].Release()
				return nil
			})
			errs := circle(t, r.parties, func(int) { r.waits.next(t) })
			require.NoError(t, <-closed)
			require.NoError(t, errs[0])
			require.ErrorIs(t, errs[1], rlock.ErrClosed)
			require.NoError(t, errs[2])
			r.requireNothingLeft(t, 1)
		})
	}
}

// A circle that leads through a hold of Redisson is not found, since a Java process does not report its waits. The waiting Lock
// continues when Redisson unlocks.
func TestDeadlockEndsAtJava(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		w := newWaits()
		b := newFixture(t, w.failAfter(10*time.Millisecond))
		x, java := b.name+"/x", "285475da-9152-4c83-822a-67ee2f116a79:12"
		require.NoError(t, b.do(t, "HSET", x, java, "1").Error())
		require.NoError(t, b.do(t, "PEXPIRE", x, "60000").Error())
		ended := async(func() error { // with x
			return b.Mutex(b.name+"/y").Do(t.Context(), func(ctx context.Context) error { return b.Mutex(x).Do(ctx, nothing) })
		})
		w.next(t)
		redistest.Eventually(t, testTimeout, func() bool {
			for _, wait := range deadlock.Of(b.rdb).Waits() {
				if wait.Client == b.ID() {
					wait.Refresh()
					require.Equal(t, []string{java}, slices.Compact(wait.Blockers()))
					return true
				}
			}
			return false
		}, "the wait is old enough to be checked")
		require.Empty(t, ended)
		answer(b.Mutex(x).ForceUnlock(t.Context())).ok(t)
		require.NoError(t, within(t, ended, testTimeout))
	})
}
