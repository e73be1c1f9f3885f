package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// twoClients are two Clients of one process. The network of the first one can fall silent.
type twoClients struct {
	fixture // Client is the first one, rdb is not behind the network
	other   *rlock.Client
	third   *rlock.Client // for a quorum
	proxy   *redistest.Proxy
	well    func() // makes the network well again after silent
}

// newTwoClients has the connections open and the scripts loaded.
func newTwoClients(t *testing.T, addr string, o ...rlock.Options) *twoClients {
	t.Helper()
	s := &twoClients{proxy: redistest.StartProxy(t, addr), well: func() {}}
	s.rdb, s.name = redistest.Dial(t, addr), redistest.Name(t)
	s.Client = newClient(t, redistest.Dial(t, s.proxy.Addr()), o...)
	s.other, s.third = newClient(t, s.rdb, o...), newClient(t, redistest.Dial(t, s.proxy.Addr()), o...)
	warm := s.name + ":warm"
	lockers := []rlock.Locker{ // not a quorum itself, whose last share comes and goes in the background
		rlock.All(s.Mutex(warm), s.third.Mutex(warm+":third"), s.other.Mutex(warm+":other")),
	}
	for kind, lock := range leftKinds() {
		if strings.Contains(kind, "of two") || kind == "Upgradeable" {
			lockers = append(lockers, lock(s, warm))
		}
	}
	for _, l := range lockers {
		require.NoError(t, rlock.All(l).Do(context.Background(), nothingToDo), l.Name())
	}
	require.Empty(t, s.keysBut(t, "redisson_lock_token:"))
	return s
}

func nothingToDo(context.Context) error { return nil }

// silent has the network lose everything from the nth reply to a script on, or at once if n is 0, until it is well again.
func (s *twoClients) silent(n int) {
	var seen atomic.Int32
	if n == 0 {
		s.proxy.BlackHole(true)
	} else {
		s.proxy.OnReply(func(cmd []string) redistest.Action {
			if !strings.HasPrefix(cmd[0], "EVAL") || seen.Add(1) != int32(n) {
				return redistest.Pass
			}
			s.proxy.BlackHole(true)
			return redistest.Drop
		})
	}
	s.well = func() {
		seen.Store(int32(n)) // it was not that many
		s.proxy.BlackHole(false)
	}
}

// silence is a section in which the network falls silent.
func (s *twoClients) silence(ctx context.Context) error {
	s.silent(0)
	<-ctx.Done()
	return ctx.Err()
}

// clear proves that, once the network is well again, everything is given back in the background long before a lease ends, and that nothing
// arrives late.
func (s *twoClients) clear(t *testing.T) {
	t.Helper()
	left := func() []string { return s.keysBut(t, "redisson_lock_token:") }
	redistest.Eventually(t, rlock.DefaultWatchdogTimeout/2, func() bool { return len(left()) == 0 }, "no key is left")
	for _, c := range []*rlock.Client{s.Client, s.other, s.third} {
		c.Close()
	}
	require.Empty(t, left())
}

// keysBut are the keys of all locks of the test, but those that begin like this.
func (s *twoClients) keysBut(t *testing.T, prefixes ...string) []string {
	t.Helper()
	all := answer(s.do(t, "KEYS", "*"+s.name+"*").AsStrSlice()).ok(t)
	return slices.DeleteFunc(all, func(key string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
	})
}

// leftKinds are the locks of all kinds, as their callers meet them.
func leftKinds() map[string]func(s *twoClients, name string) rlock.Locker {
	return map[string]func(s *twoClients, name string) rlock.Locker{
		"Mutex":       func(s *twoClients, name string) rlock.Locker { return s.Mutex(name) },
		"FencedMutex": func(s *twoClients, name string) rlock.Locker { return s.FencedMutex(name) },
		"FairMutex":   func(s *twoClients, name string) rlock.Locker { return s.FairMutex(name) },
		"read side":   func(s *twoClients, name string) rlock.Locker { return s.RWMutex(name).Read() },
		"write side":  func(s *twoClients, name string) rlock.Locker { return s.RWMutex(name).Write() },
		"Upgradeable": func(s *twoClients, name string) rlock.Locker { return s.RWMutex(name).Upgradeable() },
		"All of one call": func(s *twoClients, name string) rlock.Locker {
			return rlock.All(s.Mutex(name+":a"), s.Mutex(name))
		},
		"All of two calls": func(s *twoClients, name string) rlock.Locker {
			return rlock.All(s.FairMutex(name+":a"), s.Mutex(name+":b"), s.RWMutex(name).Upgradeable())
		},
		"All of two Clients": func(s *twoClients, name string) rlock.Locker {
			return rlock.All(s.Mutex(name+":a"), s.other.Mutex(name))
		},
		"All with a Quorum": func(s *twoClients, name string) rlock.Locker {
			return rlock.All(s.Mutex(name+":a"), leftKinds()["Quorum"](s, name))
		},
		"Quorum": func(s *twoClients, name string) rlock.Locker {
			return rlock.Quorum(s.Mutex(name), s.third.Mutex(name+":third"), s.other.Mutex(name+":other"))
		},
	}
}

// blocker holds the lock of each of these kinds in another process.
func (s *twoClients) blocker(t *testing.T, kind, name string) rlock.UnlockFunc {
	t.Helper()
	c := newClient(t, s.rdb)
	var l rlock.Locker
	switch kind {
	case "read side", "write side", "Upgradeable", "All of two calls":
		l = c.RWMutex(name).Write()
	case "FairMutex":
		l = c.FairMutex(name)
	case "Quorum", "All with a Quorum":
		l = rlock.All(c.Mutex(name), c.Mutex(name+":third"))
	case "PermitSemaphore":
		stockPermits(t, s, kind, name, 1)
		l = c.PermitSemaphore(name).Locker(1)
	default:
		l = c.Mutex(name)
	}
	_, unlock := enter(t, context.Background(), l)
	return unlock
}

// Whoever may leave does so when ctx is done, or the time over: a Lock of whichever kind, whatever it has got by then, and whichever of
// its commands is not answered. What is left to be given back goes on in the background, where Close waits for it.
func TestLockEndsWithItsCallerWhereverRedisFallsSilent(t *testing.T) {
	const wait = 150 * time.Millisecond
	type locked func(ctx context.Context, l rlock.Locker) (context.Context, rlock.UnlockFunc, error)
	methods := map[string]struct {
		lock locked
		ends time.Duration
	}{
		"Lock": {func(ctx context.Context, l rlock.Locker) (context.Context, rlock.UnlockFunc, error) {
			return l.Lock(ctx)
		}, wait},
		"TryLock": {func(_ context.Context, l rlock.Locker) (context.Context, rlock.UnlockFunc, error) {
			return l.TryLock(context.Background(), wait)
		}, time.Second},
		"TryLock once": {func(_ context.Context, l rlock.Locker) (context.Context, rlock.UnlockFunc, error) {
			return l.TryLock(context.Background(), 0)
		}, time.Second},
	}
	for kind, lock := range leftKinds() {
		composed := kind == "Upgradeable" || strings.HasPrefix(kind, "All") || kind == "Quorum"
		for _, held := range []bool{false, true} {
			last := 1 // reply that is lost: of the acquire, and when it has waited, of the next one
			if held {
				last++
			}
			if composed { // and of what is given back
				last *= 3
			}
			for n := range last + 1 {
				for method, m := range methods {
					if method != "Lock" && n != 1 {
						continue
					}
					redistest.RunVirtual(t, fmt.Sprintf("%s/%s/held %v/silent at %d", kind, method, held, n), func(t *testing.T) {
						s := newTwoClients(t, redistest.Shared(t))
						l := lock(s, s.name)
						unblock := func() error { return nil }
						if held {
							unblock = s.blocker(t, kind, s.name)
						}
						ctx, cancel := context.WithTimeout(context.Background(), wait)
						defer cancel()
						s.silent(n)
						began := time.Now()
						_, unlock, err := m.lock(ctx, l)
						requireTookAtMost(t, m.ends, began, time.Now())
						require.NoError(t, unblock())
						s.well()
						if err == nil {
							require.False(t, held)
							require.NoError(t, unlock())
						} else {
							require.ErrorIs(t, err, rlock.ErrNotAcquired)
						}
						s.clear(t)
					})
				}
			}
		}
	}
}

// A server that takes two seconds for each answer, as when it runs a long script, or a link of 300 ms, costs no connection, whatever the ctx,
// and though callers leave: rueidis closes a connection on which a call ends too early.
func TestSlowAnswersCostNoConnection(t *testing.T) {
	for name, answer := range map[string]time.Duration{"link": 300 * time.Millisecond, "script": 2 * time.Second} {
		for kind, lock := range leftKinds() {
			if strings.Contains(kind, "Quorum") { // whose waiters subscribe, each time on a new connection
				continue
			}
			redistest.RunVirtual(t, kind+"/"+name, func(t *testing.T) {
				s := newTwoClients(t, redistest.Shared(t))
				l := lock(s, s.name)
				require.NoError(t, rlock.All(l).Do(context.Background(), nothingToDo)) // loads its scripts
				var dials atomic.Int32
				s.proxy.OnRequest(func(cmd []string) redistest.Action {
					if cmd[0] == "HELLO" {
						dials.Add(1)
					}
					return redistest.Pass
				})
				s.proxy.Delay(answer / 2)
				for _, patience := range []time.Duration{0, time.Minute, time.Millisecond} {
					ctx, cancel := context.WithCancel(context.Background())
					if patience > 0 {
						ctx, cancel = context.WithTimeout(context.Background(), patience)
					}
					began := time.Now()
					_, unlock, err := l.Lock(ctx)
					if patience == time.Millisecond {
						requireTookAtMost(t, patience, began, time.Now())
						require.ErrorIs(t, err, rlock.ErrNotAcquired)
					} else {
						require.NoError(t, err)
						_ = unlock() // which of several calls may take longer than the time of an unlock
					}
					cancel()
				}
				sleep(20 * answer) // for what goes on
				require.Zero(t, dials.Load())
				s.proxy.Delay(0)
				s.clear(t)
			})
		}
	}
}

// G9: Close ends a Lock of whichever kind that waits, and returns when that has ended and what it had is given back, though the Lock cannot
// be cancelled and has to do with another Client just then. A Quorum alone goes on with its other Clients.
func TestCloseAwaitsALockOfEachKind(t *testing.T) {
	for kind, lock := range leftKinds() {
		if kind == "Quorum" {
			continue
		}
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			s := newTwoClients(t, redistest.Shared(t))
			unblock := s.blocker(t, kind, s.name)
			before := s.keysBut(t)
			waits := async(func() error {
				_, _, err := lock(s, s.name).Lock(context.Background())
				return err
			})
			redistest.Eventually(t, testTimeout, func() bool {
				return s.Stats().Waiting+s.other.Stats().Waiting > 0
			}, "it waits, with what it has")
			s.proxy.Delay(10 * time.Millisecond)
			s.Close()
			require.Subset(t, before, s.keysBut(t, "rlock_queue:", "rlock_writers:", "redisson_lock_"))
			require.ErrorIs(t, within(t, waits, soon), rlock.ErrClosed)
			require.NoError(t, unblock())
			s.clear(t)
		})
	}
}

// The same for every other method that asks Redis, in a section, when all is silent from its call on.
func TestMethodsEndWithTheirCallers(t *testing.T) {
	const wait = 150 * time.Millisecond
	relock := func(ctx context.Context, s *twoClients, kind string) error {
		_, unlock, err := leftKinds()[kind](s, s.name).Lock(ctx)
		if err == nil { // the levels of a quorum are here
			err = unlock()
		}
		return err
	}
	read := func(ctx context.Context, s *twoClients) error { return relock(ctx, s, "read side") }
	asks := map[string]func(ctx context.Context, m *rlock.Mutex) error{
		"IsLocked":    func(ctx context.Context, m *rlock.Mutex) error { return second(m.IsLocked(ctx)) },
		"IsHeld":      func(ctx context.Context, m *rlock.Mutex) error { return second(m.IsHeld(ctx)) },
		"HoldCount":   func(ctx context.Context, m *rlock.Mutex) error { return second(m.HoldCount(ctx)) },
		"TTL":         func(ctx context.Context, m *rlock.Mutex) error { return second(m.TTL(ctx)) },
		"Info":        func(ctx context.Context, m *rlock.Mutex) error { return second(m.Info(ctx)) },
		"ForceUnlock": func(ctx context.Context, m *rlock.Mutex) error { return second(m.ForceUnlock(ctx)) },
	}
	changes := map[string]map[string]func(ctx context.Context, s *twoClients) error{ // of a kind
		"Upgradeable": {
			"Upgrade": func(ctx context.Context, s *twoClients) error {
				_, _, err := s.RWMutex(s.name).Upgradeable().Upgrade(ctx)
				return err
			},
			"UpgradeDo": func(ctx context.Context, s *twoClients) error {
				return s.RWMutex(s.name).Upgradeable().UpgradeDo(ctx, func(context.Context) error { panic("not held") })
			},
			"read": read,
		},
		"write side": {
			"Downgrade": func(ctx context.Context, s *twoClients) error {
				_, _, err := s.RWMutex(s.name).Downgrade(ctx)
				return err
			},
			"read":        read,
			"Upgradeable": func(ctx context.Context, s *twoClients) error { return relock(ctx, s, "Upgradeable") },
		},
	}
	for kind, lock := range leftKinds() {
		calls := map[string]func(ctx context.Context, s *twoClients) error{
			"Lock again": func(ctx context.Context, s *twoClients) error { return relock(ctx, s, kind) },
			"TryLock again": func(ctx context.Context, s *twoClients) error {
				_, unlock, err := lock(s, s.name).TryLock(context.WithoutCancel(ctx), 0)
				if err == nil {
					err = unlock()
				}
				return err
			},
		}
		maps.Copy(calls, changes[kind])
		if strings.HasSuffix(kind, "Mutex") || strings.HasSuffix(kind, "side") {
			for name, ask := range asks {
				calls[name] = func(ctx context.Context, s *twoClients) error { return ask(ctx, lock(s, s.name).(*rlock.Mutex)) }
			}
		}
		for name, call := range calls {
			redistest.RunVirtual(t, kind+"/"+name, func(t *testing.T) {
				s := newTwoClients(t, redistest.Shared(t))
				a := locked(t, lock(s, s.name))
				ctx, cancel := context.WithTimeout(a.ctx, wait)
				defer cancel()
				s.silent(0)
				began := time.Now()
				err := call(ctx, s)
				ends := wait
				if name == "TryLock again" {
					ends = time.Second
				}
				requireTookAtMost(t, ends, began, time.Now())
				switch reenters := strings.HasSuffix(name, "Lock again") || kind == "Upgradeable" && name == "read"; {
				case reenters:
					require.NoError(t, err, "nobody is asked")
				case kind != "Quorum":
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				s.well()
				_ = a.unlock() // Redis may have to be dialled first, or a downgrade has ended the section
				s.clear(t)
			})
		}
	}
}

func second[T any](_ T, err error) error { return err }

// An unlock ends within a single unlock budget and a moment, for any kind and any number of inner unlocks. Its ctx was done before, and Redis is silent
// from the middle of the section on. The rest goes on in the background.
func TestSectionsEndWithTheBudgetOfAnUnlock(t *testing.T) {
	const wait, budget = 150 * time.Millisecond, 1500 * time.Millisecond
	const moment = 100 * time.Millisecond // in which the server might answer another call
	ends := func(t *testing.T, name string, section func(ctx context.Context, s *twoClients) error) {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			s := newTwoClients(t, redistest.Shared(t), rlock.Options{UnlockTimeout: budget})
			ctx, cancel := context.WithTimeout(context.Background(), wait)
			defer cancel()
			began := time.Now()
			err := section(ctx, s)
			requireTookAtMost(t, wait+budget+moment, began, time.Now())
			require.ErrorIs(t, err, context.DeadlineExceeded)
			s.well()
			s.clear(t)
		})
	}
	type doer interface {
		Do(ctx context.Context, fn func(context.Context) error) error
		TryDo(ctx context.Context, wait time.Duration, fn func(context.Context) error) error
	}
	methods := map[string]func(ctx context.Context, l rlock.Locker, fn func(context.Context) error) error{
		"Do": func(ctx context.Context, l rlock.Locker, fn func(context.Context) error) error {
			return l.(doer).Do(ctx, fn)
		},
		"TryDo": func(ctx context.Context, l rlock.Locker, fn func(context.Context) error) error {
			return l.(doer).TryDo(ctx, wait, fn)
		},
		"DoValue": func(ctx context.Context, l rlock.Locker, fn func(context.Context) error) error {
			return second(rlock.DoValue(ctx, l, func(ctx context.Context) (int, error) { return 0, fn(ctx) }))
		},
		"Lead": func(ctx context.Context, l rlock.Locker, fn func(context.Context) error) error {
			return rlock.Lead(ctx, l, fn)
		},
		"unlock": func(ctx context.Context, l rlock.Locker, fn func(context.Context) error) error {
			ctx, unlock, err := l.Lock(ctx)
			if err != nil {
				return err
			}
			return errors.Join(fn(ctx), unlock())
		},
		"nested": func(ctx context.Context, l rlock.Locker, fn func(context.Context) error) error {
			do := l.(doer).Do
			return do(ctx, func(ctx context.Context) error {
				return do(ctx, func(ctx context.Context) error { return do(ctx, fn) })
			})
		},
	}
	for kind, lock := range leftKinds() {
		for method, do := range methods {
			ends(t, kind+"/"+method, func(ctx context.Context, s *twoClients) error { return do(ctx, lock(s, s.name), s.silence) })
		}
	}
	ends(t, "UpgradeDo", func(ctx context.Context, s *twoClients) error {
		u := s.RWMutex(s.name).Upgradeable()
		return u.Do(ctx, func(ctx context.Context) error { return u.UpgradeDo(ctx, s.silence) })
	})
	ends(t, "Downgrade", func(ctx context.Context, s *twoClients) error {
		rw := s.RWMutex(s.name)
		return rw.Write().Do(ctx, func(ctx context.Context) error {
			ctx, unlock, err := rw.Downgrade(ctx)
			if err != nil {
				return err
			}
			return errors.Join(s.silence(ctx), unlock())
		})
	})
	ends(t, "Downgrade, unanswered unlock", func(ctx context.Context, s *twoClients) error {
		rw := s.RWMutex(s.name)
		return rw.Write().Do(ctx, func(ctx context.Context) error {
			s.silent(2)
			_, _, err := rw.Downgrade(ctx)
			return errors.Join(err, context.DeadlineExceeded)
		})
	})
}
