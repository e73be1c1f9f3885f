package rlock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// patient are locks of each kind with WithWaitForRedis.
func patient() map[string]func(c, other, third *rlock.Client) rlock.Locker {
	on := rlock.WithWaitForRedis()
	return map[string]func(c, other, third *rlock.Client) rlock.Locker{
		"Mutex":       func(c, _, _ *rlock.Client) rlock.Locker { return c.Mutex("x", on) },
		"FencedMutex": func(c, _, _ *rlock.Client) rlock.Locker { return c.FencedMutex("x", on) },
		"FairMutex":   func(c, _, _ *rlock.Client) rlock.Locker { return c.FairMutex("x", on) },
		"read side":   func(c, _, _ *rlock.Client) rlock.Locker { return c.RWMutex("x", on).Read() },
		"write side":  func(c, _, _ *rlock.Client) rlock.Locker { return c.RWMutex("x", on).Write() },
		"Upgradeable": func(c, _, _ *rlock.Client) rlock.Locker { return c.RWMutex("x", on).Upgradeable() },
		"All of one call": func(c, _, _ *rlock.Client) rlock.Locker {
			return rlock.All(c.Mutex("x"), c.Mutex("y", on))
		},
		"All of two Clients": func(c, other, _ *rlock.Client) rlock.Locker {
			return rlock.All(c.Mutex("x"), other.FairMutex("y", on))
		},
		"Quorum": func(c, other, third *rlock.Client) rlock.Locker {
			return rlock.Quorum(c.Mutex("x", on), other.Mutex("x:2"), third.Mutex("x:3"))
		},
		"All with a Quorum": func(c, other, third *rlock.Client) rlock.Locker {
			return rlock.All(c.Mutex("z"), patient()["Quorum"](c, other, third))
		},
		"PermitSemaphore": func(c, _, _ *rlock.Client) rlock.Locker { return c.PermitSemaphore("permits", on).Locker(1) },
	}
}

// down are the ways in which Redis can be away, and how it comes back. With its data it forgets nothing of what arrived late.
var down = map[string]struct{ goes, comes func(*redistest.Server) }{
	"hangs":   {(*redistest.Server).Pause, (*redistest.Server).Resume},
	"refuses": {(*redistest.Server).Stop, (*redistest.Server).Restart},
}

// runPatient runs a test for each kind, and each way to be away. In it Redis is away.
func runPatient(t *testing.T, test func(t *testing.T, s *redistest.Server, clients []*rlock.Client, l rlock.Locker, comesBack func())) {
	for kind, lock := range patient() {
		for how, is := range down {
			t.Run(kind+"/"+how, func(t *testing.T) {
				redistest.OnlyVirtual(t, "it waits for long", func(t *testing.T) {
					s := redistest.Start(t)
					var clients []*rlock.Client
					for range 3 {
						clients = append(clients, newClient(t, s.Client(t)))
					}
					l := lock(clients[0], clients[1], clients[2])
					answer(clients[0].PermitSemaphore("permits").TrySetPermits(t.Context(), 1)).ok(t)
					require.NoError(t, rlock.All(clients[0].Mutex("y"), clients[1].FairMutex("z")).Do(t.Context(), nothingToDo)) // loads the scripts
					is.goes(s)
					test(t, s, clients, l, func() {
						is.comes(s)
						if kind == "PermitSemaphore" && how == "refuses" { // without its data
							require.NoError(t, newClient(t, s.Client(t)).PermitSemaphore("permits").SetPermits(context.Background(), 1))
						}
					})
				})
			})
		}
	}
}

// G4, G5: with WithWaitForRedis, a Lock outlasts any time without Redis, and then gets the lock.
func TestWaitForRedis(t *testing.T) {
	runPatient(t, func(t *testing.T, s *redistest.Server, _ []*rlock.Client, l rlock.Locker, comesBack func()) {
		waiter := lockAsync(t, l)
		sleep(20 * time.Second)
		waiter.stillWaits(t)
		comesBack()
		got := waiter.gets(t, 4*time.Second)
		require.NoError(t, got.ctx.Err())
		require.NoError(t, got.unlock())
		requireNothingIsLeft(t, s)
	})
}

// G5: such a Lock returns when its ctx is done, and leaves nothing.
func TestWaitForRedisEndsWithTheCtx(t *testing.T) {
	runPatient(t, func(t *testing.T, s *redistest.Server, _ []*rlock.Client, l rlock.Locker, comesBack func()) {
		began := time.Now()
		const patience = 7*time.Second + 3*time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		same, unlock, err := l.Lock(ctx)
		requireTook(t, patience, began, time.Now())
		for _, want := range []error{rlock.ErrNotAcquired, rlock.ErrUnreachable, context.DeadlineExceeded} {
			require.ErrorIs(t, err, want)
		}
		require.NotContains(t, err.Error(), "\n")
		require.False(t, rlock.IsBusy(err))
		require.Equal(t, ctx, same)
		require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
		comesBack()
		requireNothingIsLeft(t, s)
		_, unlock = enter(t, t.Context(), l)
		require.NoError(t, unlock())
	})
}

// So it does at the end of the wait of a TryLock, or of a WithMaxWait. An attempt without a wait is one attempt.
func TestWaitForRedisIsBounded(t *testing.T) {
	for wait, most := range map[time.Duration]time.Duration{8 * time.Second: 8 * time.Second, 0: 4 * time.Second} {
		t.Run(wait.String(), func(t *testing.T) {
			runPatient(t, func(t *testing.T, _ *redistest.Server, _ []*rlock.Client, l rlock.Locker, comesBack func()) {
				defer comesBack()
				began := time.Now()
				_, _, err := l.TryLock(t.Context(), wait)
				took := time.Since(began)
				require.ErrorIs(t, err, rlock.ErrUnreachable)
				if wait > 0 {
					require.ErrorIs(t, err, rlock.ErrNotAcquired)
				}
				require.GreaterOrEqual(t, took, wait)
				require.LessOrEqual(t, took, most)
			})
		})
	}
}

// G9: Shutdown and Close end such a Lock.
func TestWaitForRedisEndsWithTheClient(t *testing.T) {
	for name, end := range map[string]func(*rlock.Client) error{
		"Close":    func(c *rlock.Client) error { c.Close(); return nil },
		"Shutdown": func(c *rlock.Client) error { return c.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			runPatient(t, func(t *testing.T, _ *redistest.Server, clients []*rlock.Client, l rlock.Locker, comesBack func()) {
				defer comesBack()
				waiter := lockAsync(t, l)
				sleep(10 * time.Second)
				waiter.stillWaits(t)
				var ended []<-chan error
				for _, c := range clients {
					ended = append(ended, async(func() error { return end(c) }))
				}
				require.ErrorIs(t, waiter.get(t, 4*time.Second).err, rlock.ErrClosed)
				for _, e := range ended {
					require.NoError(t, within(t, e, 10*time.Second))
				}
			})
		})
	}
}

// G4: the goroutines of a process keep their order through an outage. One that does not wait for Redis learns of the outage, whenever it
// came.
func TestWaitForRedisKeepsTheOrder(t *testing.T) {
	for _, kind := range []string{"Mutex", "FencedMutex", "FairMutex", "write side"} {
		for how, is := range down {
			t.Run(kind+"/"+how, func(t *testing.T) {
				redistest.OnlyVirtual(t, "it waits for long", func(t *testing.T) {
					s := redistest.Start(t)
					c := newClient(t, s.Client(t))
					l, hasty := patient()[kind](c, nil, nil), rlock.Locker(c.Mutex("x"))
					switch kind {
					case "FairMutex":
						hasty = c.FairMutex("x")
					case "write side":
						hasty = c.RWMutex("x").Write()
					}
					require.NoError(t, rlock.All(hasty).Do(t.Context(), nothingToDo))
					is.goes(s)
					var waiters []pendingLock
					for range 4 {
						waiters = append(waiters, lockAsync(t, l))
						redistest.Settle(t)
						began := time.Now()
						late := lockAsync(t, hasty).get(t, 70*time.Second) // twice the three tries of an attempt, of 11 s each
						require.ErrorIs(t, late.err, rlock.ErrUnreachable)
						require.GreaterOrEqual(t, late.at.Sub(began), time.Second/2, "not told of an earlier outage")
					}
					is.comes(s)
					for i, w := range waiters {
						got := w.gets(t, 5*time.Second)
						for _, later := range waiters[i+1:] {
							later.stillWaits(t)
						}
						require.NoError(t, got.unlock())
					}
				})
			})
		}
	}
}

// G4: an Upgradeable that waits for the read side holds the gate of all that may upgrade. If that is lost in an outage, it takes it again.
func TestWaitForRedisOutlastsTheGate(t *testing.T) {
	on := rlock.WithWaitForRedis()
	for name, lock := range map[string]func(c *rlock.Client) rlock.Locker{
		"alone":     func(c *rlock.Client) rlock.Locker { return c.RWMutex("x", on).Upgradeable() },
		"in an All": func(c *rlock.Client) rlock.Locker { return rlock.All(c.Mutex("y", on), c.RWMutex("x").Upgradeable()) },
	} {
		for how, is := range down {
			t.Run(name+"/"+how, func(t *testing.T) {
				redistest.OnlyVirtual(t, "it waits for long", func(t *testing.T) {
					s := redistest.Start(t)
					rdb := s.Client(t)
					enter(t, t.Context(), newClient(t, rdb).RWMutex("x").Write())
					waiter := lockAsync(t, lock(newClient(t, s.Client(t))))
					redistest.Eventually(t, testTimeout, func() bool {
						n := answer(rdb.Do(t.Context(), rdb.B().Exists().Key("rlock_upgrade:{x}").Build()).AsInt64()).ok(t)
						return n > 0
					}, "it has the gate")
					is.goes(s)
					sleep(3 * rlock.DefaultWatchdogTimeout)
					waiter.stillWaits(t)
					is.comes(s)
					waiter.getAndUnlock(t, 2*rlock.DefaultWatchdogTimeout)
					requireNothingIsLeft(t, s)
				})
			})
		}
	}
}

// A lease that is over before a Redis that answers has said so is no outage: the next try would be no better.
func TestWaitForRedisIsNotForShortLeases(t *testing.T) {
	on, short := rlock.WithWaitForRedis(), rlock.WithLease(50*time.Millisecond)
	for name, lock := range map[string]func(c *rlock.Client) rlock.Locker{
		"alone": func(c *rlock.Client) rlock.Locker { return c.Mutex("x", short, on) },
		"All": func(c *rlock.Client) rlock.Locker {
			return rlock.All(c.Mutex("x", short, on), c.FairMutex("y"), c.FairMutex("z"))
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newProxied(t)
			r.proxy.Delay(30 * time.Millisecond)
			began := time.Now()
			answer(rlock.TryAcquire(t.Context(), lock(r.Client), time.Minute)).fails(t, rlock.ErrLost)
			requireTookAtMost(t, 5*time.Second, began, time.Now())
		})
	}
}

// An answer ends it, whatever it is.
func TestWaitForRedisIsNotForRefusals(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		require.NoError(t, b.do(t, "SET", b.name, "data").Error())
		began := time.Now()
		_, _, err := b.Mutex(b.name, rlock.WithWaitForRedis()).Lock(t.Context())
		requireTookAtMost(t, time.Second, began, time.Now())
		require.ErrorContains(t, err, "give the lock a name that no other data uses")
		require.NotErrorIs(t, err, rlock.ErrUnreachable)
	})
}

// G4: waiters of several processes who wait through an outage get the lock when its holder unlocks after it.
func TestWaitForRedisInLine(t *testing.T) {
	redistest.OnlyVirtual(t, "it waits for long", func(t *testing.T) {
		s := redistest.Start(t)
		holder := newClient(t, s.Client(t), rlock.Options{WatchdogTimeout: time.Minute})
		_, unlock := enter(t, t.Context(), holder.Mutex("x"))
		var waiters []pendingLock
		for range 3 {
			c := newClient(t, s.Client(t))
			waiters = append(waiters, lockAsync(t, c.Mutex("x", rlock.WithWaitForRedis())))
			redistest.Settle(t)
		}
		s.Pause()
		sleep(15 * time.Second)
		s.Resume()
		sleep(time.Second)
		require.NoError(t, unlock())
		for _, w := range waiters {
			w.getAndUnlock(t, 5*time.Second)
		}
		requireNothingIsLeft(t, s)
	})
}

// requireNothingIsLeft requires that only counters stay, and that all permits are free.
func requireNothingIsLeft(t *testing.T, s *redistest.Server) {
	t.Helper()
	b := fixture{rdb: s.Client(t)}
	permits := newClient(t, b.rdb).PermitSemaphore("permits")
	redistest.Eventually(t, 10*time.Second, func() bool {
		keys := answer(b.do(t, "KEYS", "*").AsStrSlice()).ok(t)
		held := answer(permits.Acquired(t.Context())).ok(t)
		return held == 0 && !slices.ContainsFunc(keys, func(key string) bool {
			return !strings.HasPrefix(key, "redisson_lock_token:") && !strings.Contains(key, "permits")
		})
	}, "nothing is left in Redis")
}
