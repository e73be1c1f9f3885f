package rlock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// distant is a Redis that is some time away, or silent from a command on. Then rueidis notices after noticed, whatever the time of the call
// is, as on a connection that others share.
type distant struct {
	rueidis.Client

	away   atomic.Int64           // nanoseconds of a round trip
	silent atomic.Bool            // no command is answered any more
	from   atomic.Pointer[string] // the first of those; nil: none
}

const noticed = 11 * time.Second

// pass waits for the answer, or the end of ctx; it reports false if there is none.
func (d *distant) pass(ctx context.Context, cmd rueidis.Completed) bool {
	sleep(time.Duration(d.away.Load()))
	if from := d.from.Load(); from != nil && cmd.Commands()[0] == *from {
		d.silent.Store(true)
	}
	if d.silent.Load() {
		select {
		case <-time.After(noticed):
		case <-ctx.Done():
		}
		return false
	}
	return true
}

func (d *distant) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if !d.pass(ctx, cmd) {
		return d.Client.Do(canceled(), cmd)
	}
	return d.Client.Do(ctx, cmd)
}

func (d *distant) DoMulti(ctx context.Context, all ...rueidis.Completed) []rueidis.RedisResult {
	if !d.pass(ctx, all[0]) {
		return d.Client.DoMulti(canceled(), all...)
	}
	return d.Client.DoMulti(ctx, all...)
}

// fromAfar runs a test of a Client whose Redis is distant.
func fromAfar(t *testing.T, test func(t *testing.T, b fixture, d *distant)) {
	t.Helper()
	redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
		b := newFixture(t)
		d := &distant{Client: b.rdb}
		b.Client = newClient(t, d)
		test(t, b, d)
	})
}

// The first attempt of a TryLock has a second. A later one ends with the wait. A majority that was about to answer is no outage.
func TestTryLockEndsInALaterAttempt(t *testing.T) {
	for name, of := range map[string]func([]rlock.Locker) rlock.Locker{
		"a mutex": func(m []rlock.Locker) rlock.Locker { return m[0] },
		"all":     func(m []rlock.Locker) rlock.Locker { return rlock.All(m...) },
		"quorum":  func(m []rlock.Locker) rlock.Locker { return rlock.Quorum(m...) },
	} {
		for _, slow := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", slow ", slow), func(t *testing.T) {
				redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
					b := newFixture(t)
					var servers []*distant
					var mine, theirs []rlock.Locker
					for range 3 {
						d := &distant{Client: redistest.Start(t).Client(t)}
						if slow {
							d.away.Store(int64(80 * time.Millisecond))
						}
						servers = append(servers, d)
						mine = append(mine, newClient(t, d).Mutex(b.name, rlock.WithLease(time.Minute)))
						theirs = append(theirs, newClient(t, d.Client).Mutex(b.name))
					}
					bg := context.Background()
					_, unlock := enter(t, bg, of(theirs))
					began := time.Now()
					tried := async(func() error {
						_, _, err := of(mine).TryLock(bg, 300*time.Millisecond)
						return err
					})
					sleep(240 * time.Millisecond)
					for _, d := range servers {
						d.silent.Store(!slow)
					}
					require.NoError(t, unlock())
					err := <-tried
					require.ErrorIs(t, err, rlock.ErrNotAcquired)
					if slow && name == "quorum" {
						require.NotErrorIs(t, err, rlock.ErrUnreachable, "a majority was about to answer")
					}
					require.Equal(t, 300*time.Millisecond, time.Since(began))
					for _, d := range servers {
						d.silent.Store(false)
					}
				})
			})
		}
	}
}

// A kept fenced lock is had in one round trip, even during the first look at it, which takes several. Tokens rise.
func TestKeptFencedLockFarAway(t *testing.T) {
	const away = 350 * time.Millisecond
	fromAfar(t, func(t *testing.T, b fixture, d *distant) {
		keep(t, b.Client, b.FencedMutex(b.name+":0", rlock.WithLinger(long)))
		m := b.FencedMutex(b.name, rlock.WithLinger(long))
		d.away.Store(int64(away))
		var last int64
		for i := range 12 {
			began := time.Now()
			ctx, unlock, err := m.TryLock(context.Background(), 0)
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(began), away)
			token, ok := m.FencingToken(ctx)
			require.True(t, ok)
			require.Greater(t, token, last)
			last = token
			require.NoError(t, unlock())
			sleep(time.Duration(i) * away / 4) // so that the look ends at each moment
		}
	})
}

// Lock returns when its ctx is done, on a silent Redis, too: also while a kept lock is looked at, with as many calls left behind as there
// may be.
func TestKeptLockIsGivenBackInTheBackground(t *testing.T) {
	fromAfar(t, func(t *testing.T, b fixture, d *distant) {
		bg := context.Background()
		keep(t, b.Client, b.FencedMutex(b.name+":0", rlock.WithLinger(long)))
		look := "ZCARD"
		d.from.Store(&look)
		m := b.FencedMutex(b.name, rlock.WithLinger(long))
		lockAndUnlock(t, m)
		synctest.Wait()
		require.True(t, d.silent.Load())
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(bg, 150*time.Millisecond)
				defer cancel()
				requireLockFails(t, ctx, b.Mutex(fmt.Sprint(b.name, ":", i+1)), context.DeadlineExceeded)
			})
		}
		all.Wait()
		sleep(150 * time.Millisecond)
		ctx, cancel := context.WithTimeout(bg, 300*time.Millisecond)
		defer cancel()
		began := time.Now()
		requireLockFails(t, ctx, m, context.DeadlineExceeded)
		require.Equal(t, 300*time.Millisecond, time.Since(began))
		d.from.Store(nil)
		d.silent.Store(false)
	})
}

// A Lock on a silent Redis takes no more than one call longer if the lock is kept and must be given up first.
func TestLockOfAKeptLockInSilence(t *testing.T) {
	for _, what := range []string{"on other terms", "looked at", "together with others"} {
		t.Run(what, func(t *testing.T) {
			fromAfar(t, func(t *testing.T, b fixture, d *distant) {
				keep(t, b.Client, b.FencedMutex(b.name+":0", rlock.WithLinger(long)))
				var m rlock.Locker = b.Mutex(b.name, rlock.WithLease(time.Minute))
				switch what {
				case "on other terms":
					keep(t, b.Client, b.Mutex(b.name, rlock.WithLinger(long)))
				case "looked at":
					look := "ZCARD"
					d.from.Store(&look)
					fenced := b.FencedMutex(b.name, rlock.WithLinger(long))
					lockAndUnlock(t, fenced)
					m = fenced
				case "together with others":
					var all []rlock.Locker
					for i := range 5 {
						name := fmt.Sprint(b.name, ":", i+1)
						keep(t, b.Client, b.Mutex(name, rlock.WithLinger(long)))
						all = append(all, b.Mutex(name))
					}
					m = rlock.All(all...)
				}
				synctest.Wait()
				d.silent.Store(true)
				notKept := lockAsync(t, b.Mutex(b.name+":9", rlock.WithLease(time.Minute)))
				requireLockFails(t, context.Background(), m, rlock.ErrUnreachable)
				ended := time.Now()
				other := notKept.get(t, testTimeout)
				require.ErrorIs(t, other.err, rlock.ErrUnreachable)
				require.LessOrEqual(t, ended.Sub(other.at), calls.Timeout)
			})
		})
	}
}

// Shutdown of a Client without sections takes no longer than Close, even if it keeps locks and Redis is silent.
func TestShutdownWithKeptLocksInSilence(t *testing.T) {
	fromAfar(t, func(t *testing.T, b fixture, d *distant) {
		for i := range 3 {
			keep(t, b.Client, b.Mutex(fmt.Sprint(b.name, ":", i), rlock.WithLinger(long)))
		}
		d.silent.Store(true)
		began := time.Now()
		require.NoError(t, b.Shutdown(context.Background()))
		require.LessOrEqual(t, time.Since(began), 5*time.Second)
		sleep(rlock.DefaultWatchdogTimeout) // nothing is left of them
	})
}
