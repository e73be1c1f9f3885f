package rlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// legs are the two halves of a call's way.
var legs = map[string]func(*redistest.Proxy, redistest.Hook){
	"request": (*redistest.Proxy).OnRequest, "reply": (*redistest.Proxy).OnReply,
}

// flying unlocks a, and returns when the hand-off is held back on its way there or back.
func (r *proxied) flying(t testing.TB, a lockResult) <-chan error {
	t.Helper()
	unlocked := async(a.unlock)
	redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() > 0 }, "the hand-off is under way")
	return unlocked
}

// startedTry tells when it begins to wait.
type startedTry struct {
	tryFor
	began chan<- time.Time
}

func (s startedTry) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	s.began <- time.Now()
	return s.tryFor.Lock(ctx)
}

// G5: a waiter leaves during the hand-off to it, and returns at once. The hold goes to the next waiter, or nothing is left. The unlock
// succeeds.
func TestWaiterGoesDuringAHandOff(t *testing.T) {
	redistest.Parallel(t)
	const patient = 10 * time.Second // with time to stand in line
	const last = 2 * time.Second     // of that, for the hand-off: a call that is held back for longer is given up
	s := redistest.Start(t)
	for leg, on := range legs {
		for _, how := range []string{"cancelled", "time-out"} {
			for _, behind := range []int{0, 2} {
				t.Run(leg+"/"+how+"/"+[]string{"alone", "", "others behind"}[behind], func(t *testing.T) {
					redistest.Parallel(t)
					before := ourGoroutines()
					r := newProxiedOn(t, s, rlock.Options{HandOff: unlimited, UnlockTimeout: 3 * last})
					m := r.Mutex(r.name)
					on(r.proxy, r.nthHandOff(1, redistest.Hold))
					first, began := []locker{m}, make(chan time.Time, 1)
					if how == "time-out" {
						first[0] = startedTry{tryFor{m, patient}, began}
					}
					a, line := r.line(t, append(first, same(m, behind)...)...)
					if how == "time-out" {
						sleep(time.Until((<-began).Add(patient - last)))
						line[0].stillWaits(t)
					}
					unlocked := r.flying(t, a)
					if how == "cancelled" {
						line[0].cancel()
					}
					got := line[0].get(t, patient+soon)
					require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
					require.Equal(t, how == "cancelled", errors.Is(got.err, context.Canceled))
					r.proxy.Release()
					require.NoError(t, within(t, unlocked, testTimeout))
					for _, p := range line[1:] {
						require.NoError(t, r.gets(t, p).unlock())
					}
					r.clear(t)
					r.Close()
					awaitGoroutines(t, before+2) // those of the other client
				})
			}
		}
	}
}

// Giving back for a waiter that has gone is no part of the unlock: that has been answered.
func TestUnlockDoesNotWaitForWhatItsWaiterLeft(t *testing.T) {
	redistest.Parallel(t)
	const watchdog = 10 * time.Second // so that the unlock is ended by the end of the lease, too
	r := newProxied(t, rlock.Options{WatchdogTimeout: watchdog})
	r.proxy.OnReply(r.nthHandOff(1, redistest.Hold))
	a, line := r.line(t, r.Mutex(r.name))
	r.proxy.OnReply(r.nthRelease(1, false, redistest.Hold))
	unlocked := r.flying(t, a)
	line[0].cancel()
	require.ErrorIs(t, line[0].get(t, soon).err, context.Canceled)
	r.proxy.Release()
	require.NoError(t, within(t, unlocked, watchdog+soon))
	redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() > 0 }, "the give-back is under way")
	r.proxy.Release()
	r.clear(t)
}
