package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// unlockTimeout is Options.UnlockTimeout in these tests.
const unlockTimeout = time.Second

// nest runs fn inside all locks, the first one outermost.
func nest(ctx context.Context, all []rlock.Locker, fn func(context.Context) error) error {
	if len(all) == 0 {
		return fn(ctx)
	}
	_, err := rlock.DoValue(ctx, all[0], func(ctx context.Context) (struct{}, error) { return struct{}{}, nest(ctx, all[1:], fn) })
	return err
}

// If Redis is silent, unlocking a section returns after Options.UnlockTimeout, however many locks of whichever kinds it
// has. The rest happens in the background.
func TestUnlockTimeout(t *testing.T) {
	for name, way := range map[string]func(*rueidis.ClientOption){"one at a time": anyWay, "pipelines": pipelined} {
		for _, leaves := range []bool{true, false} {
			redistest.RunVirtual(t, fmt.Sprintf("%s/ctx that ends=%v", name, leaves), func(t *testing.T) {
				servers := [3]*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)}
				for what, locks := range map[string]func(all map[string]rlock.Locker) []rlock.Locker{
					"mutex": func(all map[string]rlock.Locker) []rlock.Locker { return []rlock.Locker{all["mutex"]} },
					"re-entry": func(all map[string]rlock.Locker) []rlock.Locker {
						return []rlock.Locker{all["mutex"], all["mutex"], all["mutex"]}
					},
					"fair":        func(all map[string]rlock.Locker) []rlock.Locker { return []rlock.Locker{all["fair"]} },
					"write":       func(all map[string]rlock.Locker) []rlock.Locker { return []rlock.Locker{all["write"]} },
					"upgradeable": func(all map[string]rlock.Locker) []rlock.Locker { return []rlock.Locker{all["upgradeable"]} },
					"all":         func(all map[string]rlock.Locker) []rlock.Locker { return []rlock.Locker{all["all"]} },
					"quorum":      func(all map[string]rlock.Locker) []rlock.Locker { return []rlock.Locker{all["quorum"]} },
					"three, nested": func(all map[string]rlock.Locker) []rlock.Locker {
						return []rlock.Locker{all["mutex"], all["fenced"], all["fair"]}
					},
					"all kinds, nested": func(all map[string]rlock.Locker) []rlock.Locker {
						return []rlock.Locker{all["quorum"], all["mutex"], all["all"], all["upgradeable"], all["quorum"], all["fair"]}
					},
				} {
					var p process
					for i, s := range servers {
						p[i] = newClient(t, s.Client(t, way), rlock.Options{UnlockTimeout: unlockTimeout})
						loadScripts(t, p[i])
					}
					ctx, cancel := context.Background(), context.CancelFunc(func() {})
					if leaves {
						ctx, cancel = context.WithCancel(ctx)
					}
					var began time.Time
					err := nest(ctx, locks(p.lockers(redistest.Name(t))), func(context.Context) error {
						for _, s := range servers {
							s.Pause()
						}
						cancel()
						began = time.Now()
						return nil
					})
					took := time.Since(began)
					for _, s := range servers {
						s.Resume()
					}
					require.ErrorIs(t, err, rlock.ErrUnreachable, what)
					require.GreaterOrEqual(t, took, unlockTimeout, what)
					requireTookAtMost(t, unlockTimeout+500*time.Millisecond, began, began.Add(took)) // 0.1 s for each server and each quorum
					for i, s := range servers {
						b := fixture{rdb: s.Client(t)}
						redistest.Eventually(t, testTimeout, func() bool {
							return len(keysOfLocks(t, b)) == 0 && p[i].Stats().Holds == 0
						}, what+": released in the background")
						require.Zero(t, p[i].Stats().Lost, what+": nobody lost anything")
						p[i].Close()
					}
				}
			})
		}
	}
}

// keysOfLocks returns all keys except the token counters of fenced locks.
func keysOfLocks(t *testing.T, b fixture) (keys []string) {
	t.Helper()
	all, err := b.do(t, "KEYS", "*").AsStrSlice()
	require.NoError(t, err)
	for _, key := range all {
		if len(key) < 20 || key[:20] != "redisson_lock_token:" {
			keys = append(keys, key)
		}
	}
	return keys
}

// UnlockTimeout also bounds a hand-off, and the waiter gets the lock when Redis answers.
func TestUnlockTimeoutOfAHandOff(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for _, pause := range []time.Duration{0, 2 * unlockTimeout} { // the unlock is left to the background, or answered in time
			s := redistest.Start(t)
			c := newClient(t, s.Client(t), rlock.Options{UnlockTimeout: 2 * unlockTimeout})
			loadScripts(t, c)
			_, unlock, err := c.Mutex("x", byCall).Lock(context.Background())
			require.NoError(t, err)
			next := lockAsync(t, c.Mutex("x", byCall))
			redistest.Eventually(t, testTimeout, func() bool { return c.Stats().Waiting == 1 }, "it waits")
			s.Pause()
			began := time.Now()
			unlocked := async(unlock)
			if pause == 0 {
				require.ErrorIs(t, within(t, unlocked, 3*unlockTimeout), rlock.ErrUnreachable)
				require.GreaterOrEqual(t, time.Since(began), 2*unlockTimeout)
				s.Resume()
			} else {
				sleep(unlockTimeout / 2)
				s.Resume()
				require.NoError(t, within(t, unlocked, testTimeout))
			}
			next.getAndUnlock(t, testTimeout)
			c.Close()
		}
	})
}

// Sections that end one right after the other share one UnlockTimeout; a section that ends later has its own.
func TestUnlockTimeoutIsGivenAgain(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newClient(t, s.Client(t), rlock.Options{UnlockTimeout: unlockTimeout})
		loadScripts(t, c)
		outer, unlockOuter, err := c.Mutex("outer").Lock(t.Context())
		require.NoError(t, err)
		_, unlock, err := c.Mutex("inner").Lock(outer)
		require.NoError(t, err)
		s.Pause()
		defer s.Resume()
		require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
		sleep(1500 * time.Millisecond)
		began := time.Now()
		outlasts := time.AfterFunc(unlockTimeout/2, s.Resume)
		defer outlasts.Stop()
		err = unlockOuter()
		require.NoError(t, err, "answered after %v", time.Since(began))
	})
}

// An unlock returns when the lease ends, if that is before UnlockTimeout.
func TestUnlockTimeoutBeyondTheLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for _, ctx := range []context.Context{t.Context(), context.Background()} {
			s := redistest.Start(t)
			c := newClient(t, s.Client(t), rlock.Options{UnlockTimeout: time.Minute})
			loadScripts(t, c)
			const lease = 700 * time.Millisecond
			began := time.Now()
			_, unlock, err := c.Mutex("x", rlock.WithLease(lease)).Lock(ctx)
			require.NoError(t, err)
			s.Pause()
			err = unlock()
			s.Resume()
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			require.Less(t, time.Since(began), lease+soon)
		}
	})
}

// G8: an unlock that was left to the background is answered after the end of the lease, when others hold the lock. It changes nothing.
func TestUnlockLeftBeyondTheLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		proxy := redistest.StartProxy(t, s.Addr())
		b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		b.Client = newClient(t, b.rdb)
		c := newClient(t, redistest.Dial(t, proxy.Addr(), pipelined), rlock.Options{UnlockTimeout: 100 * time.Millisecond})
		loadScripts(t, c)
		_, unlock, err := c.Mutex(b.name, rlock.WithLease(time.Second)).Lock(context.Background())
		require.NoError(t, err)
		proxy.OnRequest(nthScript(1, redistest.Hold))
		require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
		require.Equal(t, 1, c.Stats().Holds)
		next, unlockNext, err := b.Mutex(b.name).Lock(context.Background())
		require.NoError(t, err)
		proxy.Release()
		redistest.Eventually(t, testTimeout, func() bool { return c.Stats().Holds == 0 }, "answered")
		require.NoError(t, next.Err())
		require.Equal(t, map[string]int64{rlock.Owner(next): 1}, b.fields(t, b.name))
		require.NoError(t, unlockNext())
		require.Zero(t, c.Stats().Lost)
	})
}

// If Redis is silent, Do returns an error for it together with its function's error.
func TestDoOnASilentRedis(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newClient(t, s.Client(t), rlock.Options{UnlockTimeout: 200 * time.Millisecond})
		loadScripts(t, c)
		mine := errors.New("mine")
		err := c.Mutex("x").TryDo(t.Context(), time.Second, func(context.Context) error {
			s.Pause()
			return mine
		})
		s.Resume()
		require.ErrorIs(t, err, mine)
		require.ErrorIs(t, err, rlock.ErrUnreachable)
	})
}

// An unlock that Redis answers uses up none of the UnlockTimeout of the sections around it, however far away Redis is.
func TestUnlocksOfAFarRedisCostNoTime(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		c := newClient(t, redistest.Dial(t, proxy.Addr()))
		loadScripts(t, c)
		proxy.Delay(60 * time.Millisecond)
		ctx, unlock, err := c.Mutex(b.name).Lock(context.Background())
		require.NoError(t, err)
		var inside sync.WaitGroup
		for i := range 40 {
			inside.Go(func() {
				assert.NoError(t, c.Mutex(fmt.Sprint(b.name, i)).Do(ctx, func(context.Context) error { return nil }))
			})
		}
		inside.Wait()
		require.NoError(t, unlock())
	})
}
