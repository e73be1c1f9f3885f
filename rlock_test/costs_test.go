package rlock_test

import (
	"context"
	"fmt"
	"sync"
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
			redistest.RunVirtual(t, fmt.Sprintf("%s/%dx%d", kind.name, w.processes, w.goroutines), func(t *testing.T) {
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
				// When nobody is in line any more, a release tells those that still listen, in case Redis has lost the line.
				require.LessOrEqual(t, messages, []float64{0, 0.1, 2.5, 1.5}[i])
			})
		}
	}
}

// TestCostsOfWriters compares writers of several processes, which always want the lock, with docs/locks.md.
func TestCostsOfWriters(t *testing.T) {
	for _, processes := range []int{4, 8} {
		redistest.RunVirtual(t, fmt.Sprint(processes), func(t *testing.T) {
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
			set, err := l.TrySetCount(context.Background(), 1)
			require.NoError(t, err)
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
