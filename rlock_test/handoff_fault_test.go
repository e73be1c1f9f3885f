package rlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Fault 1, G1, G4 to G6: the request or the reply of a hand-off is lost, with or without its connection. The unlock and the waiter
// find out the result, and a waiter that gave up leaves nothing behind.
func TestHandOffLost(t *testing.T) {
	for leg, on := range legs {
		for _, action := range []redistest.Action{redistest.Cut, redistest.Drop} {
			for how, goes := range map[string]bool{"waits": false, "goes": true} {
				redistest.RunVirtual(t, leg+"/"+string(action)+"/"+how, func(t *testing.T) {
					r := newProxied(t, rlock.Options{HandOff: unlimited})
					m := r.FencedMutex(r.name, byCall)
					a, line := r.line(t, m, m, m)
					on(r.proxy, struck(r.nthHandOff(2, action), func() {
						if goes {
							line[1].cancel()
						}
					}))
					require.NoError(t, a.unlock())
					a = r.gets(t, line[0])
					token, ok := rlock.FencingToken(a.ctx, r.name)
					require.True(t, ok)

					began := time.Now()
					unlocked, stay := async(a.unlock), line[1:]
					if goes {
						require.ErrorIs(t, line[1].get(t, soon).err, context.Canceled)
						stay = line[2:]
					}
					require.NoError(t, within(t, unlocked, testTimeout), "the lock is released or handed off")
					require.ErrorIs(t, a.unlock(), rlock.ErrNotHeld)
					for _, p := range stay {
						a = r.gets(t, p)
						last := token
						token, _ = rlock.FencingToken(a.ctx, r.name)
						require.Greater(t, token, last)
						require.NoError(t, a.unlock())
					}
					require.Less(t, redistest.Ran(t, began, time.Now()), 10*time.Second, "no waiter sleeps until a lease ends")
					r.clear(t)
					r.Close()
				})
			}
		}
	}
}

// struck calls then when a hook does something.
func struck(hook redistest.Hook, then func()) redistest.Hook {
	return func(cmd []string) redistest.Action {
		action := hook(cmd)
		if action != redistest.Pass {
			then()
		}
		return action
	}
}

// Fault 2, G2, G4 to G8: the network fails during the hand-off, for longer than calls are retried or longer than the lease.
// Whatever the calls return, the lock is free soon afterwards, and never has two owners.
func TestHandOffInABlackHole(t *testing.T) {
	for name, row := range map[string]struct {
		watchdog, hole time.Duration
		leg            string // that is lost
	}{
		"longer than patience, before it":     {30 * time.Second, 8 * time.Second, "request"},
		"longer than patience, after it":      {30 * time.Second, 8 * time.Second, "reply"},
		"longer than the lease, before it":    {2 * time.Second, 4 * time.Second, "request"},
		"longer than the lease, after it":     {2 * time.Second, 4 * time.Second, "reply"},
		"shorter than the timeout, before it": {30 * time.Second, time.Second, "request"},
		"shorter than the timeout, after it":  {30 * time.Second, time.Second, "reply"},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newProxied(t, rlock.Options{WatchdogTimeout: row.watchdog, HandOff: unlimited})
			m := r.Mutex(r.name)
			a, line := r.line(t, m)
			line = append(line, lockAsync(t, m))
			legs[row.leg](r.proxy, r.nthHandOff(1, redistest.Hold))
			unlocked := r.flying(t, a)
			r.proxy.BlackHole(true)
			r.proxy.Release()
			sleep(row.hole)
			r.proxy.BlackHole(false)
			err := within(t, unlocked, testTimeout)
			if row.watchdog < row.hole {
				require.ErrorIs(t, err, rlock.ErrLost)
			} else if row.hole < 3*time.Second {
				require.NoError(t, err)
			}
			for _, p := range line {
				got := p.get(t, testTimeout)
				if got.err != nil {
					require.NotErrorIs(t, got.err, rlock.ErrNotAcquired, "no waiter gave up")
					continue
				}
				r.held(t, got, 1)
				require.NoError(t, got.unlock())
			}
			redistest.Eventually(t, testTimeout, func() bool { return !r.exists(t, r.name) }, "the lock is free before a long lease ends")
			r.clear(t)
		})
	}
}

// Fault 3: if Redis refuses the hand-off, the lock is released as without one.
func TestHandOffRefused(t *testing.T) {
	for _, line := range []string{
		"OOM command not allowed when used memory > 'maxmemory'.", "LOADING Redis is loading the dataset in memory",
		"NOPERM this user has no permissions to run the 'evalsha' command", "ERR unknown", "BUSY", "READONLY",
	} {
		redistest.RunVirtual(t, line, func(t *testing.T) {
			r := newProxied(t)
			a, waiters := r.line(t, same(r.Mutex(r.name), 3)...)
			r.proxy.OnRequest(r.nthHandOff(0, redistest.Fail(line)))
			a, _ = r.takesTurns(t, a, waiters)
			require.NoError(t, a.unlock())
			r.clear(t)
		})
	}
}

// If first the hand-off and then the release fails, unlock returns the error, and the lock is released later in the background.
func TestUnlockFailsAfterItsHandOff(t *testing.T) {
	for name, first := range map[string]redistest.Action{
		"refused": redistest.Fail("ERR no"), "lost": redistest.Cut, "not ready": redistest.Fail("LOADING wait"),
	} {
		for leg, on := range legs {
			if leg == "reply" && name != "lost" {
				continue // Redis did not send this error
			}
			for how, goes := range map[string]bool{"waits": false, "goes": true} {
				redistest.RunVirtual(t, name+"/"+leg+"/"+how, func(t *testing.T) {
					r := newProxied(t)
					a, line := r.line(t, same(r.Mutex(r.name), 2)...)
					r.proxy.OnRequest(r.nthRelease(1, false, redistest.Fail("ERR not now")))
					on(r.proxy, struck(r.nthHandOff(1, first), func() {
						if goes {
							line[0].cancel()
						}
					}))
					require.ErrorContains(t, a.unlock(), "not now")
					if goes {
						if got := line[0].get(t, testTimeout); got.err == nil { // granted before it was cancelled
							require.NoError(t, got.unlock())
						}
						line = line[1:]
					}
					for _, p := range line {
						require.NoError(t, r.gets(t, p).unlock())
					}
					r.clear(t)
				})
			}
		}
	}
}

// Redis does not roll back a script that fails. Here the hand-off has already added the waiter's field when the server denies HDEL,
// and the waiter gives up. Once the right is back, no key is left.
func TestHandOffFailsHalfWay(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	r := newProxiedOn(t, s)
	acl := func(rules ...string) {
		require.NoError(t, r.do(t, append([]string{"ACL", "SETUSER", "limited"}, rules...)...).Error())
	}
	acl("on", ">secret", "~*", "&*", "+@all")
	r.Client = newClient(t, redistest.Dial(t, r.proxy.Addr(), func(o *rueidis.ClientOption) {
		o.Username, o.Password = "limited", "secret"
	}))
	a, line := r.line(t, r.Mutex(r.name))
	acl("-hdel")
	r.proxy.OnReply(r.nthHandOff(1, redistest.Hold))
	unlocked := r.flying(t, a)
	require.Len(t, r.fields(t, r.name), 2, "the hand-off stopped halfway")
	line[0].cancel()
	require.ErrorIs(t, line[0].get(t, soon).err, context.Canceled)
	r.proxy.Release()
	require.Regexp(t, "run (this|the '[a-z]+') command", within(t, unlocked, testTimeout), "the error of Redis before 7.2, or of later versions")
	acl("+hdel")
	redistest.Eventually(t, 10*time.Second, func() bool { return !r.exists(t, r.name) }, "the lock is free before the lease ends")
	r.clear(t)
}

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

// G5: a waiter gives up while the lock is being handed to it. It returns at once, and the lock goes to the next waiter, or becomes
// free if there is none. The unlock succeeds either way.
func TestWaiterGoesDuringAHandOff(t *testing.T) {
	const patient = 10 * time.Second // includes the time to join the queue
	const last = 2 * time.Second     // the part of it left for the hand-off; a call delayed for longer is abandoned
	for leg, on := range legs {
		for _, how := range []string{"cancelled", "time-out"} {
			for name, behind := range map[string]int{"alone": 0, "others behind": 2} {
				redistest.RunVirtual(t, leg+"/"+how+"/"+name, func(t *testing.T) {
					r := newProxied(t, rlock.Options{HandOff: unlimited, UnlockTimeout: 3 * last})
					m := r.Mutex(r.name)
					on(r.proxy, r.nthHandOff(1, redistest.Hold))
					var goes locker = m
					if how == "time-out" {
						goes = tryFor{m, patient}
					}
					began := time.Now()
					a, line := r.line(t, append([]locker{goes}, same(m, behind)...)...)
					if how == "time-out" {
						sleep(time.Until(began.Add(patient - last)))
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
				require.Less(t, redistest.Ran(t, began, time.Now()), bound)
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
