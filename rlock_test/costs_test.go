package rlock_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// worlds are the columns of the table "What they cost" in docs/locks.md.
var worlds = []struct{ processes, goroutines int }{{1, 1}, {1, 8}, {4, 1}, {4, 4}}

// cost is the number of script calls, and of the messages that they publish, heard or not.
type cost struct{ scripts, messages int64 }

func costNow(t testing.TB, s *redistest.Server) cost {
	t.Helper()
	all := redistest.Commands(t, s.Client(t))
	return cost{all["evalsha"] + all["eval"], all["publish"]}
}

// TestCostsOfSemaphores compares semaphores with two permits, of which each section takes one, with docs/locks.md. The bounds are
// tight: a cost 50 % higher would mean that goroutines wait differently.
func TestCostsOfSemaphores(t *testing.T) {
	for _, kind := range []struct {
		name string
		of   func(c *rlock.Client, name string) rlock.Locker
	}{
		{"Semaphore", func(c *rlock.Client, name string) rlock.Locker { return c.Semaphore(name).Locker(1) }},
		{"PermitSemaphore", func(c *rlock.Client, name string) rlock.Locker { return c.PermitSemaphore(name).Locker(1) }},
	} {
		for i, w := range worlds {
			t.Run(fmt.Sprintf("%s/%dx%d", kind.name, w.processes, w.goroutines), func(t *testing.T) {
				redistest.OnlyVirtual(t, "a message depends on who is in line at that moment", func(t *testing.T) {
					const sections = 4 // of each goroutine
					s := redistest.Start(t)
					name := redistest.Name(t)
					permits(t, newClient(t, s.Client(t)).Semaphore(name), 2)
					var all []rlock.Locker
					for range w.processes {
						all = append(all, kind.of(newClient(t, s.Client(t)), name))
					}
					var begin, end sync.WaitGroup
					start := make(chan struct{})
					for _, l := range all {
						for range w.goroutines {
							begin.Add(1)
							end.Go(func() {
								section := func() {
									_, err := rlock.DoValue(context.Background(), l, func(context.Context) (int, error) {
										sleep(time.Millisecond)
										return 0, nil
									})
									assert.NoError(t, err)
								}
								section() // loads the scripts
								begin.Done()
								<-start
								for range sections {
									section()
								}
							})
						}
					}
					begin.Wait()
					before := costNow(t, s)
					close(start)
					end.Wait()
					after := costNow(t, s)
					per := func(n int64) float64 { return float64(n) / float64(sections*w.processes*w.goroutines) }
					scripts, messages := per(after.scripts-before.scripts), per(after.messages-before.messages)
					t.Logf("%.2f scripts and %.2f messages a section", scripts, messages)
					require.LessOrEqual(t, scripts, []float64{2, 3, 4.5, 4.5}[i])
					// While nobody is in line, a release tells all that may listen: the server counts its own listeners only, and may have lost the line.
					require.LessOrEqual(t, messages, []float64{1, 0.1, 2.5, 1.5}[i])
				})
			})
		}
	}
}

// TestCostsOfWriters compares writers of several processes, which always want the lock, with docs/locks.md.
func TestCostsOfWriters(t *testing.T) {
	for _, processes := range []int{4, 8} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			redistest.OnlyVirtual(t, "how many share a turn depends on the speed of the machine", func(t *testing.T) {
				s := redistest.Start(t)
				rdb := s.Client(t)
				before := redistest.Commands(t, rdb)
				const each = 200
				var all sync.WaitGroup
				for range processes {
					m := newClient(t, s.Client(t)).RWMutex("writers").Write()
					all.Go(func() {
						for range each {
							assert.NoError(t, m.Do(context.Background(), func(context.Context) error {
								sleep(time.Millisecond)
								return nil
							}))
						}
					})
				}
				all.Wait()
				perSection := float64(redistest.Commands(t, rdb)["evalsha"]-before["evalsha"]) / float64(processes*each)
				t.Logf("%.2f commands per section", perSection)
				require.Less(t, perSection, 3.0)
			})
		})
	}
}

// TestCostsOfBothSides compares readers and writers of several processes, which always want the lock, with docs/locks.md.
func TestCostsOfBothSides(t *testing.T) {
	for goroutines, most := range map[int]float64{1: 5, 4: 0.9} {
		t.Run(fmt.Sprint(goroutines), func(t *testing.T) {
			redistest.OnlyVirtual(t, "how many share a turn depends on the speed of the machine", func(t *testing.T) {
				s := redistest.Start(t)
				rdb := s.Client(t)
				const processes = 4
				var all sync.WaitGroup
				var sections atomic.Int64
				before, began := redistest.Commands(t, rdb), time.Now()
				for p := range processes {
					rw := newClient(t, s.Client(t)).RWMutex("sides")
					side := []*rlock.Mutex{rw.Read(), rw.Write()}[p%2]
					for range goroutines {
						all.Go(func() {
							for time.Since(began) < time.Second {
								assert.NoError(t, side.Do(context.Background(), func(context.Context) error {
									sleep(time.Millisecond)
									return nil
								}))
								sections.Add(1)
							}
						})
					}
				}
				all.Wait()
				perSection := float64(redistest.Commands(t, rdb)["evalsha"]-before["evalsha"]) / float64(sections.Load())
				t.Logf("%.2f commands per section of %d", perSection, sections.Load())
				require.Less(t, perSection, most)
			})
		})
	}
}

// TestCostsOfALatch compares a latch that is set, awaited and counted down once with docs/locks.md.
func TestCostsOfALatch(t *testing.T) {
	for _, w := range worlds {
		redistest.RunVirtual(t, fmt.Sprintf("%dx%d", w.processes, w.goroutines), func(t *testing.T) {
			s := redistest.Start(t)
			c := newClient(t, s.Client(t))
			l := c.CountDownLatch(redistest.Name(t))
			fixture{Client: c}.loadLatchScripts(t)
			before := costNow(t, s)
			set := answer(l.TrySetCount(context.Background(), 1)).ok(t)
			require.True(t, set)
			var waits []<-chan error
			for range w.processes {
				there := newClient(t, s.Client(t)).CountDownLatch(l.Name())
				for range w.goroutines {
					waits = append(waits, async(func() error { return there.Await(context.Background()) }))
				}
			}
			redistest.Eventually(t, testTimeout, func() bool {
				return waiting(t) == w.processes
			}, "all goroutines wait")
			require.NoError(t, l.CountDown(context.Background()))
			for _, opened := range waits {
				require.NoError(t, within(t, opened, testTimeout))
			}
			after := costNow(t, s)
			scripts, messages := after.scripts-before.scripts, after.messages-before.messages
			t.Logf("%d scripts and %d messages", scripts, messages)
			looks := 4
			if w.goroutines > 1 {
				looks = 8 // goroutines that come late ask Redis on their own
			}
			require.LessOrEqual(t, scripts, int64(2+looks*w.processes), "two for the latch, the rest for the processes that wait")
			require.Equal(t, int64(2), messages, "one message for Redisson when the latch is set, and one when it opens")
		})
	}
}

// traffic is the amount of data that a proxy has forwarded, without the commands that open a connection and keep it alive.
type traffic struct{ commands, messages, bytes int }

// countingProxy is a proxy that counts its traffic.
type countingProxy struct {
	addr string
	mu   sync.Mutex // guards the following
	sum  traffic
	said int // messages that its client has published
}

func newMeter(t *testing.T, addr string) *countingProxy {
	t.Helper()
	p := redistest.StartProxy(t, addr)
	m := &countingProxy{addr: p.Addr()}
	p.OnRequest(func(words []string) redistest.Action {
		switch words[0] {
		case "HELLO", "CLIENT", "PING":
			return redistest.Pass
		case "PUBLISH":
			m.mu.Lock()
			m.said++
			m.mu.Unlock()
		}
		m.add(traffic{commands: 1, bytes: respSize(words)})
		return redistest.Pass
	})
	p.OnReply(func(words []string) redistest.Action {
		if strings.HasSuffix(words[0], "MESSAGE") {
			m.add(traffic{messages: 1, bytes: respSize(words)})
		}
		return redistest.Pass
	})
	return m
}

func (m *countingProxy) add(t traffic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sum.commands += t.commands
	m.sum.messages += t.messages
	m.sum.bytes += t.bytes
}

// since returns the traffic since before.
func (m *countingProxy) since(before traffic) traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	return traffic{m.sum.commands - before.commands, m.sum.messages - before.messages, m.sum.bytes - before.bytes}
}

// respSize returns the size of a list of words on the wire, in bytes.
func respSize(words []string) (n int) {
	n = len("*\r\n") + len(strconv.Itoa(len(words)))
	for _, w := range words {
		n += len("$\r\n\r\n") + len(strconv.Itoa(len(w))) + len(w)
	}
	return n
}

// The costs match those in docs/locks.md, docs/features.md and docs/operating.md: for a feature that is unused, used without a waiter,
// and used with one. Each is measured at the holder and at a waiter of another process, for one lock.
func TestCostsOfBeingSpokenTo(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		loadScripts(t, newClient(t, s.Client(t)))
		const pairs = 100
		type costs struct {
			begins       traffic // the Client's first Lock with the feature, and its unlock
			pair         traffic // another hundred Locks and unlocks
			holder, asks traffic // while another process waits, until it has the lock
			said         int     // messages from that process
		}
		measure := func(name string, o rlock.Options, options ...rlock.Option) (c costs) {
			near, far := newMeter(t, s.Addr()), newMeter(t, s.Addr())
			o.WatchdogTimeout = seldom.WatchdogTimeout
			holder, waits := newClient(t, redistest.Dial(t, near.addr), o), newClient(t, redistest.Dial(t, far.addr), o)
			m, lingers := holder.Mutex(name, options...), strings.HasSuffix(name, "linger")
			if name == "fenced linger" {
				m = holder.FencedMutex(name, options...)
			}
			lockAndUnlock(t, m)
			if len(options) > 0 {
				awaitEar(t, s.Client(t), holder)
				redistest.Eventually(t, testTimeout, func() bool { return near.since(traffic{}).commands >= 3 }, "subscription counted")
			}
			c.begins = near.since(traffic{})
			if lingers {
				keep(t, holder, m)
			}
			before := near.since(traffic{})
			for range pairs {
				lockAndUnlock(t, m)
			}
			c.pair = near.since(before)
			var unlock rlock.UnlockFunc
			if !lingers {
				unlock = locked(t, m).unlock
			}
			atHolder := near.since(traffic{})
			waiter := lockAsync(t, waits.Mutex(name))
			if unlock != nil {
				sleep(10 * time.Second) // to wait costs nothing
				require.NoError(t, unlock())
			}
			got := waiter.gets(t, testTimeout)
			c.holder, c.asks = near.since(atHolder), far.since(traffic{})
			require.NoError(t, got.unlock())
			far.mu.Lock()
			c.said = far.said
			far.mu.Unlock()
			t.Logf("%s: %+v", name, c)
			return c
		}
		none := measure("nothn", rlock.Options{})
		asked := measure("asked", rlock.Options{}, rlock.WithAsked())
		linger := measure("linger", rlock.Options{}, rlock.WithLinger(long))
		fenced := measure("fenced linger", rlock.Options{}, rlock.WithLinger(long))
		cycles := measure("cycle", rlock.Options{Deadlock: rlock.Deadlock{After: soon, Action: rlock.DeadlockFail}})

		require.Equal(t, traffic{commands: 2 * pairs, bytes: none.pair.bytes}, none.pair)
		require.Equal(t, none.begins.commands, cycles.begins.commands)
		require.Equal(t, traffic{commands: 2 * pairs, bytes: cycles.pair.bytes}, cycles.pair)

		require.Equal(t, none.begins.commands+1, asked.begins.commands, "WithAsked costs one subscription")
		require.Equal(t, traffic{commands: 2 * pairs, bytes: asked.pair.bytes}, asked.pair)
		require.Less(t, asked.pair.bytes-none.pair.bytes, 2*pairs*20, "with WithAsked only the owner field is longer")
		require.Equal(t, 1, asked.holder.messages)
		require.Equal(t, none.asks.commands+1, asked.asks.commands, "one message")
		require.Less(t, asked.holder.bytes-none.holder.bytes, 150)
		require.Equal(t, 1, asked.said)

		require.Equal(t, traffic{}, linger.pair)
		require.Equal(t, pairs, fenced.pair.commands, "one for each token")
		require.Equal(t, 1, linger.holder.messages)
		require.Equal(t, 1, linger.said)
		require.Zero(t, none.said+cycles.said)
	})
}
