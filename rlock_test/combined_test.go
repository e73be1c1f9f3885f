package rlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A process keeps a lock after its unlock (WithLinger) and does not know yet that its key was deleted. If it then adopts a ticket
// for the same lock, the adopted hold replaces the lost one.
func TestKeptTwice(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		const d = 2 * time.Second
		m := b.Mutex(b.name, rlock.WithLinger(d))
		keep(t, b.Client, m)
		began := time.Now()
		require.NoError(t, b.do(t, "DEL", b.name).Error())
		ticket := takenAlong(t, newClient(t, b.rdb).Mutex(b.name))
		_, unlock, err := b.Adopt(context.Background(), ticket, rlock.WithLinger(long))
		require.NoError(t, err)
		require.NoError(t, unlock())
		redistest.Eventually(t, soon, func() bool { return b.Stats().Idle == 1 }, "the lock is kept")
		sleep(time.Until(began.Add(d + d/4))) // the time of the lost hold is over
		require.True(t, b.exists(t, b.name))
		got := lockAsync(t, newClient(t, b.rdb).Mutex(b.name)).get(t, soon+time.Second)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
		require.Zero(t, b.Stats().Idle)
		lockAndUnlock(t, m)
	})
}

// Goroutines that wait while a lock is exported do not know the hold that adopts the ticket. That hold looks for them.
func TestAskedAfterAnAdopt(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		lockAndUnlock(t, b.Mutex(b.name+":ear", rlock.WithAsked()))
		b.earsOf(t, b.Client)
		ticket := takenAlong(t, b.Mutex(b.name))
		waiter := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
		b.awaitSubscribers(t, b.name, 1)
		redistest.Eventually(t, testTimeout, func() bool {
			n, err := b.do(t, "ZCARD", "rlock_queue:{"+b.name+"}").AsInt64()
			return err == nil && n == 1
		}, "the waiter is in the queue")
		ctx, unlock, err := b.Adopt(context.Background(), ticket, rlock.WithAsked())
		require.NoError(t, err)
		select {
		case <-rlock.Asked(ctx):
		case <-time.After(soon + time.Second):
			t.Error("not asked")
		}
		require.NoError(t, unlock())
		waiter.getAndUnlock(t, testTimeout)
	})
}

// G8: a process that keeps a lock, and does not know yet that it was forced open, issues no tokens above that of the new owner.
func TestNoTokensOfALostLock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.FencedMutex(b.name, rlock.WithLinger(long))
		keep(t, b.Client, m)
		other := newClient(t, b.rdb).FencedMutex(b.name)
		forced, err := other.ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, forced)
		ctx, unlock, err := other.Lock(context.Background())
		require.NoError(t, err)
		owner, _ := other.FencingToken(ctx)
		for {
			ctx, unlock, err := m.TryLock(context.Background(), 0)
			if err != nil {
				require.ErrorIs(t, err, rlock.ErrNotAcquired, "the process has noticed the loss")
				break
			}
			token, _ := m.FencingToken(ctx)
			require.Less(t, token, owner)
			_ = unlock() // fails when the loss is noticed
		}
		require.NoError(t, unlock())
		require.NoError(t, b.do(t, "DEL", "redisson_lock_token:{"+b.name+"}").Error())
	})
}

// A hold that an All has re-entered can be exported once that All has ended, but not before.
func TestExportAfterAnAll(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		inner, unlockAll, err := rlock.All(m, b.Mutex(b.name+":2")).Lock(ctx)
		require.NoError(t, err)
		for _, ctx := range []context.Context{ctx, inner} {
			_, err = rlock.Export(ctx)
			require.ErrorIs(t, err, rlock.ErrNotExported)
		}
		require.NoError(t, unlockAll())
		ticket, err := rlock.Export(ctx)
		require.NoError(t, err)
		require.NoError(t, unlock())
		_, unlock, err = b.Adopt(context.Background(), ticket)
		require.NoError(t, err)
		require.NoError(t, unlock())
	})
}

// A lock is not kept after its unlock if its hold was asked for, even by a waiter that cannot ask again: a leader that resigns for
// such a waiter would otherwise keep it out.
func TestNotKeptWhenAsked(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		m := b.Mutex(b.name, rlock.WithAsked(), rlock.WithLinger(long))
		keep(t, b.Client, m)
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		conn, giveBack := b.rdb.Dedicate()
		defer giveBack()
		defer conn.Close()
		require.NoError(t, conn.Do(t.Context(), conn.B().Subscribe().Channel("redisson_lock__channel:{"+b.name+"}").Build()).Error())
		awaitAsked(t, ctx)
		require.NoError(t, unlock())
		require.False(t, b.exists(t, b.name))
		require.Zero(t, b.Stats().Idle)
	})
}

// Goroutines of two processes lock, export, adopt and linger and are asked, all at once, while the test sends forged messages.
// There is one holder at a time, tokens rise, and no key is left.
func TestAllTogether(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		finds := rlock.Options{Deadlock: rlock.Deadlock{After: 5 * time.Millisecond, Action: rlock.DeadlockFail}}
		b.Client = newClient(t, b.rdb, finds)
		clients := []*rlock.Client{b.Client, newClient(t, b.rdb, finds)}
		var (
			last    int64
			inside  sync.Mutex
			all     sync.WaitGroup
			tickets = make(chan string, 100)
			until   = time.Now().Add(100 * time.Millisecond)
		)
		section := func(ctx context.Context, m *rlock.Mutex) {
			if !inside.TryLock() {
				t.Error("two goroutines hold the lock")
				return
			}
			defer inside.Unlock()
			token, ok := m.FencingToken(ctx)
			if !ok || token <= last {
				t.Errorf("token %d after %d", token, last)
			}
			last = token
			sleep(rand.N(time.Millisecond))
		}
		all.Go(func() {
			random := rand.New(rand.NewPCG(9, 9))
			kinds := []string{"asked", "tried", "deadlock", "waits", "found", "other"}
			for time.Now().Before(until) {
				payload := strconv.FormatUint(uint64(10+random.IntN(4))*1e18+uint64(random.IntN(1000)), 10)
				if random.IntN(4) == 0 {
					payload = strings.Repeat(payload, random.IntN(500))
				}
				err := b.rdb.Do(context.Background(), b.rdb.B().Publish().Channel(ear(clients[random.IntN(2)])).
					Message("0 "+kinds[random.IntN(len(kinds))]+" "+payload).Build()).Error()
				if err != nil {
					t.Error(err)
				}
				sleep(rand.N(2 * time.Millisecond))
			}
		})
		for i := range 8 {
			c := clients[i%2]
			options := []rlock.Option{rlock.WithLinger(long), rlock.WithAsked()}
			m := c.FencedMutex(b.name, options[:i/2%3]...)
			random := rand.New(rand.NewPCG(uint64(i), 1))
			all.Go(func() {
				for time.Now().Before(until) {
					var ctx context.Context
					var unlock rlock.UnlockFunc
					var err error
					select {
					case ticket := <-tickets:
						ctx, unlock, err = c.Adopt(context.Background(), ticket, options[:random.IntN(3)]...)
						if err != nil {
							t.Error(err)
							return
						}
					default:
						wait, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(30))*time.Millisecond)
						ctx, unlock, err = m.Lock(wait)
						cancel()
						if err != nil {
							if !errors.Is(err, rlock.ErrNotAcquired) {
								t.Error(err)
							}
							continue
						}
					}
					section(ctx, m)
					if random.IntN(4) == 0 {
						ticket, err := rlock.Export(context.WithoutCancel(ctx))
						if err != nil {
							t.Error(err)
							return
						}
						tickets <- ticket
					}
					if err := unlock(); err != nil {
						t.Error(err)
					}
					sleep(rand.N(2 * time.Millisecond))
				}
			})
		}
		all.Wait()
		close(tickets)
		for ticket := range tickets {
			_, unlock, err := b.Adopt(context.Background(), ticket)
			require.NoError(t, err)
			require.NoError(t, unlock())
		}
		for _, c := range clients {
			require.NoError(t, c.Shutdown(context.Background()))
		}
		redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) && !b.exists(t, "rlock_queue:{"+b.name+"}") }, "no key is left")
		require.NoError(t, b.do(t, "DEL", "redisson_lock_token:{"+b.name+"}").Error())
	})
}
