package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Fault 1, G1, G4 to G6: the request or the reply of a hand-off is lost, with or without its connection. The unlock and the waiter
// find out the result, and a waiter that gave up leaves nothing behind.
func TestHandOffLost(t *testing.T) {
	for leg, on := range legs {
		for _, action := range []redistest.Action{redistest.Cut, redistest.Drop} {
			for _, goes := range []bool{false, true} {
				redistest.RunVirtual(t, leg+"/"+string(action)+"/"+map[bool]string{false: "waits", true: "goes"}[goes], func(t *testing.T) {
					r := newProxied(t, rlock.Options{HandOff: unlimited})
					m := r.FencedMutex(r.name, byCall)
					a, line := r.line(t, m, m, m)
					struck := make(chan struct{})
					strike := r.nthHandOff(2, action)
					on(r.proxy, func(cmd []string) redistest.Action {
						action := strike(cmd)
						if action != redistest.Pass {
							if goes {
								line[1].cancel()
							}
							close(struck)
						}
						return action
					})
					require.NoError(t, a.unlock())
					a = r.gets(t, line[0])
					token, ok := rlock.FencingToken(a.ctx, r.name)
					require.True(t, ok)

					began := time.Now()
					unlocked := async(a.unlock)
					<-struck
					if goes {
						require.ErrorIs(t, line[1].get(t, soon).err, context.Canceled)
					}
					require.NoError(t, within(t, unlocked, testTimeout), "the lock is released or handed off")
					require.ErrorIs(t, a.unlock(), rlock.ErrNotHeld)
					stay := line[1:]
					if goes {
						stay = line[2:]
					}
					for _, p := range stay {
						a = r.gets(t, p)
						last := token
						token, _ = rlock.FencingToken(a.ctx, r.name)
						require.Greater(t, token, last)
						require.NoError(t, a.unlock())
					}
					require.Less(t, time.Since(began), 10*time.Second, "no waiter sleeps until a lease ends")
					r.clear(t)
					r.Close()
				})
			}
		}
	}
}

// Fault 2, G2, G4 to G8: the network fails during the hand-off, for longer than calls are retried or longer than the lease.
// Whatever the calls return, the lock is free soon afterwards, and never has two owners.
func TestHandOffInABlackHole(t *testing.T) {
	for name, row := range map[string]struct {
		watchdog, hole time.Duration
		reached        bool // Redis receives the hand-off, but its reply is lost
	}{
		"longer than patience, before it":     {30 * time.Second, 8 * time.Second, false},
		"longer than patience, after it":      {30 * time.Second, 8 * time.Second, true},
		"longer than the lease, before it":    {2 * time.Second, 4 * time.Second, false},
		"longer than the lease, after it":     {2 * time.Second, 4 * time.Second, true},
		"shorter than the timeout, before it": {30 * time.Second, time.Second, false},
		"shorter than the timeout, after it":  {30 * time.Second, time.Second, true},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newProxied(t, rlock.Options{WatchdogTimeout: row.watchdog, HandOff: unlimited})
			m := r.Mutex(r.name)
			var a lockResult
			_, a.unlock, a.err = m.Lock(context.Background())
			require.NoError(t, a.err)
			asked := r.asked.Load()
			first := lockAsync(t, m)
			r.settle(t, 1, asked+attempts)
			second := lockAsync(t, m)
			flown := make(chan struct{})
			on := r.proxy.OnRequest
			if row.reached {
				on = r.proxy.OnReply
			}
			hook := r.nthHandOff(1, redistest.Hold)
			on(func(cmd []string) redistest.Action {
				action := hook(cmd)
				if action != redistest.Pass {
					close(flown)
				}
				return action
			})
			unlocked := async(a.unlock)
			require.NoError(t, within(t, async(func() error { <-flown; return nil }), testTimeout), "the hand-off is under way")
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
			for _, p := range []pendingLock{first, second} {
				got := p.get(t, testTimeout)
				if got.err != nil {
					require.NotErrorIs(t, got.err, rlock.ErrNotAcquired, "no waiter gave up")
					continue
				}
				r.held(t, got, 1)
				require.NoError(t, got.unlock())
			}
			redistest.Eventually(t, testTimeout, func() bool { return !r.exists(t, r.name) }, "the lock is free before a long lease ends")
			r.awaitSubscribers(t, r.name, 0)
			_, unlock, err := r.other.Mutex(r.name).TryLock(context.Background(), 0)
			require.NoError(t, err)
			require.NoError(t, unlock())
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
			for _, p := range waiters {
				require.NoError(t, a.unlock())
				a = r.gets(t, p)
			}
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
			for _, goes := range []bool{false, true} {
				redistest.RunVirtual(t, name+"/"+leg+"/"+map[bool]string{false: "waits", true: "goes"}[goes], func(t *testing.T) {
					r := newProxied(t)
					a, line := r.line(t, same(r.Mutex(r.name), 2)...)
					r.proxy.OnRequest(r.nthRelease(1, false, redistest.Fail("ERR not now")))
					strike := r.nthHandOff(1, first)
					on(r.proxy, func(cmd []string) redistest.Action {
						action := strike(cmd)
						if goes && action != redistest.Pass {
							line[0].cancel()
						}
						return action
					})
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
