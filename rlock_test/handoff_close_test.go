package rlock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G9: Close comes while an unlock hands the lock to a waiter, and Redis replies soon, late or never. The waiter returns at once and
// Close soon after, no goroutine is left, and the handed-over lock is released if Redis can be reached.
func TestCloseDuringAHandOff(t *testing.T) {
	for leg, on := range legs {
		for name, late := range map[string]time.Duration{"at once": 0, "late": 1200 * time.Millisecond, "never": -1, "black hole": -1} {
			redistest.RunVirtual(t, leg+"/"+name, func(t *testing.T) {
				r := newProxied(t, rlock.Options{WatchdogTimeout: 10 * time.Second})
				on(r.proxy, r.nthHandOff(1, redistest.Hold))
				a, line := r.line(t, same(r.Mutex(r.name), 3)...)
				unlocked := r.flying(t, a)
				r.proxy.BlackHole(name == "black hole")
				r.proxy.Delay(10 * time.Millisecond) // Close waits for the answer to what follows
				began := time.Now()
				closed := async(func() error { r.Close(); return nil })
				for _, p := range line {
					require.ErrorIs(t, p.get(t, soon).err, rlock.ErrClosed)
				}
				if late >= 0 {
					sleep(late)
					r.proxy.Release()
				}
				const bound = 5*time.Second + soon // the same as without a hand-off
				err := within(t, unlocked, bound)
				took := time.Since(began)
				require.NoError(t, within(t, closed, bound))
				require.Less(t, time.Since(began), bound)
				switch {
				case name == "black hole":
					require.Error(t, err)
				case err != nil: // rueidis dropped the call at Close; the release that follows has one second
					require.ErrorIs(t, err, rlock.ErrUnreachable)
					require.GreaterOrEqual(t, took, time.Second)
				default:
					require.False(t, r.exists(t, r.name), "the lock is released before Close returns")
				}
				r.proxy.BlackHole(false)
				r.proxy.Release()
				redistest.Eventually(t, testTimeout, func() bool { return !r.exists(t, r.name) }, "the lock is free")
			})
		}
	}
}

// G9: Close may come at any moment of many hand-offs: all calls end, the lock is free, and no goroutine is left.
func TestCloseAmongHandOffs(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t)
		r.Close()
		for range 30 {
			c, err := rlock.New(redistest.Dial(t, r.proxy.Addr()), rlock.Options{HandOff: unlimited})
			require.NoError(t, err)
			m := c.Mutex(r.name)
			var wg sync.WaitGroup
			inside := 0
			for range 8 {
				wg.Go(func() {
					for {
						_, unlock, err := m.Lock(context.Background())
						if err != nil {
							assert.ErrorIs(t, err, rlock.ErrClosed)
							return
						}
						inside++
						sleep(rand.N(time.Millisecond))
						assert.NoError(t, unlock())
					}
				})
			}
			sleep(rand.N(20 * time.Millisecond))
			c.Close()
			wg.Wait()
			redistest.Eventually(t, testTimeout, func() bool { return !r.exists(t, r.name) }, "the lock is free")
		}
	})
}
