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

// legs are the two halves of a call: its request and its reply.
var legs = map[string]func(*redistest.Proxy, redistest.Hook){
	"request": (*redistest.Proxy).OnRequest, "reply": (*redistest.Proxy).OnReply,
}

// flying unlocks a, and returns when the proxy holds back the request or the reply of the hand-off.
func (r *proxied) flying(t testing.TB, a lockResult) <-chan error {
	t.Helper()
	unlocked := async(a.unlock)
	redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() > 0 }, "the hand-off is under way")
	return unlocked
}

// startedTry reports when its wait begins.
type startedTry struct {
	tryFor
	began chan<- time.Time
}

func (s startedTry) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	s.began <- time.Now()
	return s.tryFor.Lock(ctx)
}

// G5: a waiter gives up while the lock is being handed to it. It returns at once, and the lock goes to the next waiter, or becomes
// free if there is none. The unlock succeeds either way.
func TestWaiterGoesDuringAHandOff(t *testing.T) {
	const patient = 10 * time.Second // includes the time to join the queue
	const last = 2 * time.Second     // the part of it left for the hand-off; a call delayed for longer is abandoned
	for leg, on := range legs {
		for _, how := range []string{"cancelled", "time-out"} {
			for _, behind := range []int{0, 2} {
				redistest.RunVirtual(t, leg+"/"+how+"/"+[]string{"alone", "", "others behind"}[behind], func(t *testing.T) {
					r := newProxied(t, rlock.Options{HandOff: unlimited, UnlockTimeout: 3 * last})
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
				})
			}
		}
	}
}

// If the waiter gave up, the lock handed to it has to be released. unlock does not wait for that, since its own call has been
// answered.
func TestUnlockDoesNotWaitForWhatItsWaiterLeft(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 10 * time.Second // also bounds the unlock: it ends with the lease
		r := newProxied(t, rlock.Options{WatchdogTimeout: watchdog})
		r.proxy.OnReply(r.nthHandOff(1, redistest.Hold))
		a, line := r.line(t, r.Mutex(r.name))
		r.proxy.OnReply(r.nthRelease(1, false, redistest.Hold))
		unlocked := r.flying(t, a)
		line[0].cancel()
		require.ErrorIs(t, line[0].get(t, soon).err, context.Canceled)
		r.proxy.Release()
		require.NoError(t, within(t, unlocked, watchdog+soon))
		redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() > 0 }, "the release for the waiter is under way")
		r.proxy.Release()
		r.clear(t)
	})
}
