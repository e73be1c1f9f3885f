package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Sections that take their locks in one order are never reported as a deadlock, however long they wait.
func TestNoDeadlockInOrder(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		told := make(chan rlock.DeadlockInfo, 10)
		o := failAfter(time.Millisecond)
		o.Trace = &rlock.Trace{Deadlock: func(_ context.Context, i rlock.DeadlockInfo) { told <- i }}
		a := newFixture(t, o)
		clients := []*rlock.Client{a.Client, newClient(t, a.rdb, o), elsewhere(t, a.rdb, o)}
		const names = 6
		lock := func(c *rlock.Client, i, n int) rlock.Locker {
			name := fmt.Sprint(a.name, "/", i)
			switch i % 3 {
			case 0:
				return c.Mutex(name)
			case 1:
				return c.FairMutex(name)
			}
			rw := c.RWMutex(name)
			if n%3 == 0 {
				return rw.Write()
			}
			return rw.Read()
		}
		var all sync.WaitGroup
		errs := make(chan error, 1000)
		for g := range 12 {
			all.Go(func() { // ends after its rounds
				for n := range 15 {
					ctx, unlock := t.Context(), []rlock.UnlockFunc(nil)
					for i := range names {
						if (g*7+n*5+i*i)%3 == 0 {
							continue
						}
						c := clients[(g+i)%len(clients)]
						inner, free, err := lock(c, i, g+n).Lock(ctx)
						if err != nil {
							errs <- err
							break
						}
						ctx, unlock = inner, append(unlock, free)
					}
					<-time.After(3 * time.Millisecond) // the section
					for _, free := range slices.Backward(unlock) {
						if err := free(); err != nil {
							errs <- err
						}
					}
				}
			})
		}
		all.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		require.Empty(t, told)
	})
}

// lockers tracks the locks that each goroutine of a test holds and waits for.
type lockers struct {
	mu sync.Mutex // guards the following
	of map[int]*lockerState
}

type lockerState struct {
	holds   []string
	waitsOn string
	gave    *lockerState // its state when it was last a victim, perhaps of another deadlock at the same time
}

func (s *lockerState) isIn(w rlock.DeadlockWait) bool {
	return s.waitsOn == w.WaitsFor && slices.Contains(s.holds, w.Holds) || s.gave != nil && s.gave.isIn(w)
}

func (l *lockers) set(id int, f func(*lockerState)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[id] == nil {
		l.of[id] = new(lockerState)
	}
	f(l.of[id])
}

// notIn names a wait of the cycle in which no goroutine is; "" if there is none.
func (l *lockers) notIn(e *rlock.DeadlockError) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range e.Cycle {
		found := false
		for _, s := range l.of {
			found = found || s.isIn(w)
		}
		if !found {
			return w.String()
		}
	}
	return ""
}

// Goroutines of several processes take locks of all kinds in random order. All finish, because each deadlock has a victim that
// gives way. Each reported deadlock is real: when the victim gets the error, before it unlocks anything, every other member still
// waits as the error says.
func TestDeadlocksOfRandomOrders(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		o := failAfter(20 * time.Millisecond)
		clients := []*rlock.Client{elsewhere(t, b.rdb, o), elsewhere(t, b.rdb, o), elsewhere(t, b.rdb, o)}
		const goroutines, rounds, names = 9, 12, 5
		states := lockers{of: make(map[int]*lockerState)}
		lock := func(c *rlock.Client, name string, n int, random *rand.Rand) rlock.Locker {
			switch n % 3 {
			case 0:
				return c.Mutex(name)
			case 1:
				return c.FairMutex(name)
			}
			if rw := c.RWMutex(name); random.IntN(2) == 0 {
				return rw.Read()
			}
			return c.RWMutex(name).Write()
		}
		var all sync.WaitGroup
		var victims atomic.Int64
		for g := range goroutines {
			all.Go(func() { // ends after its rounds
				random := rand.New(rand.NewPCG(uint64(g), 3))
				for range rounds {
					ctx, unlocks := t.Context(), []rlock.UnlockFunc(nil)
					for _, n := range random.Perm(names)[:3] {
						name := fmt.Sprint(b.name, "/", n)
						states.set(g, func(s *lockerState) { s.waitsOn = name })
						inner, unlock, err := lock(clients[g%len(clients)], name, n, random).Lock(ctx)
						var e *rlock.DeadlockError
						if errors.As(err, &e) {
							victims.Add(1)
							states.set(g, func(s *lockerState) { s.gave = &lockerState{holds: s.holds, waitsOn: s.waitsOn} })
							if wrong := states.notIn(e); wrong != "" {
								t.Errorf("not a deadlock: this wait does not exist: %s\n%v", wrong, err)
							}
						} else if err != nil {
							t.Error(err)
						}
						states.set(g, func(s *lockerState) {
							if s.waitsOn = ""; err == nil {
								s.holds = append(s.holds, name)
							}
						})
						if err != nil {
							break
						}
						ctx, unlocks = inner, append(unlocks, unlock)
					}
					states.set(g, func(s *lockerState) { s.holds = nil })
					for _, unlock := range slices.Backward(unlocks) {
						if err := unlock(); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		all.Wait()
		require.Positive(t, victims.Load())
		t.Log(victims.Load(), "deadlocks")
	})
}
