package rlocktest

import (
	"cmp"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// passing passes the lock through waiting handles with those watchdog times, in order, and returns their owners. Each holds it for long enough
// to be renewed.
func (c *Client) passing(of func(i int) *rlock.Client, kind func(*rlock.Client, ...rlock.Option) rlock.Locker, all ...time.Duration) (owners []string) {
	_, first, err := kind(of(0), rlock.WithWatchdog(all[0])).Lock(c.t.Context())
	require.NoError(c.t, err)
	done := make(chan struct{})
	for i, d := range all {
		l := kind(of(i), rlock.WithWatchdog(d))
		go func() { // ends itself
			defer func() { done <- struct{}{} }()
			if err := do(context.Background(), l, func(ctx context.Context) error {
				owners = append(owners, rlock.Owner(ctx)) // they exclude each other
				if left := c.left("x"); left > d {
					c.t.Errorf("%v: %v at first", d, left)
				}
				time.Sleep(2 * time.Second) // if it was granted, its first renewal is over
				for range 20 {
					time.Sleep(d / 10)
					if left := c.left("x"); left > d || left < d/2 {
						c.t.Errorf("%v: %v later", d, left)
					}
				}
				return ctx.Err()
			}); err != nil {
				c.t.Error(err)
			}
		}()
		time.Sleep(100 * time.Millisecond)
	}
	require.NoError(c.t, first())
	for range all {
		<-done
	}
	return owners
}

// A lock passed between handles has each handle's watchdog time, within a process and across processes.
func TestPassingBetweenWatchdogTimes(t *testing.T) {
	const short, usual, long = 900 * time.Millisecond, 8 * time.Second, 16 * time.Second
	times := []time.Duration{5 * time.Second, short, short, long, long, usual, short, 5 * time.Second}
	for name, kind := range map[string]func(*rlock.Client, ...rlock.Option) rlock.Locker{"mutex": mutex, "fenced": fenced, "fair": fair, "write": write} {
		for _, handOff := range []rlock.HandOff{{For: time.Hour}, {Most: -1}} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					locks := NewWith(t, rlock.Options{HandOff: handOff, WatchdogTimeout: usual})
					owners := locks.passing(func(int) *rlock.Client { return locks.Client }, kind, times...)
					require.Len(t, owners, len(times))
					elsewhere := locks.Elsewhere()
					locks.passing(func(i int) *rlock.Client { return []*rlock.Client{locks.Client, elsewhere}[i%2] }, kind, times...)
				})
			})
		}
	}
}

// A hold passes between goroutines in memory, as one owner in Redis, if their watchdog times are equal, however they are set.
func TestPassingInMemoryNeedsOneWatchdogTime(t *testing.T) {
	for name, kind := range map[string]func(*rlock.Client, ...rlock.Option) rlock.Locker{"mutex": mutex, "fenced": fenced} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := NewWith(t, rlock.Options{HandOff: rlock.HandOff{For: time.Hour}})
				var owners []string
				var done []chan struct{}
				_, unlock, err := kind(locks.Client).Lock(t.Context())
				require.NoError(t, err)
				for _, options := range [][]rlock.Option{
					nil, {rlock.WithWatchdog(rlock.DefaultWatchdogTimeout)}, {rlock.WithWatchdog(9 * time.Second)}, {rlock.WithWatchdog(9 * time.Second)}, nil,
				} {
					ended := make(chan struct{})
					done = append(done, ended)
					go func() { // ends itself
						defer close(ended)
						if err := do(t.Context(), kind(locks.Client, options...), func(ctx context.Context) error {
							owners = append(owners, rlock.Owner(ctx))
							return nil
						}); err != nil {
							t.Error(err)
						}
					}()
					synctest.Wait()
				}
				require.NoError(t, unlock())
				for _, ended := range done {
					<-ended
				}
				same := func(a, b int) bool { return owners[a] == owners[b] }
				require.Equal(t, []bool{true, false, true, false}, []bool{same(0, 1), same(1, 2), same(2, 3), same(3, 4)}, "%v", owners)
			})
		})
	}
}

// The next goroutine gets only its own watchdog time, even if the previous hold had more left.
func TestPassingAfterALongerReentry(t *testing.T) {
	for name, options := range map[string][]rlock.Option{"watchdog": {rlock.WithWatchdog(time.Hour)}, "lease": {rlock.WithLease(time.Hour)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const d = 3 * time.Second
				locks := New(t)
				l := mutex(locks.Client, rlock.WithWatchdog(d))
				ctx, unlock, err := l.Lock(t.Context())
				require.NoError(t, err)
				_, inner, err := mutex(locks.Client, options...).Lock(ctx)
				require.NoError(t, err)
				require.NoError(t, inner())
				require.Greater(t, locks.left("x"), time.Minute)
				next := make(chan error)
				go func() { // ends itself
					next <- do(t.Context(), l, func(context.Context) error {
						locks.requireRenewed("x", d)
						return nil
					})
				}()
				synctest.Wait()
				require.NoError(t, unlock())
				require.NoError(t, <-next)
			})
		})
	}
}

// Readers admitted together share a hold, too, if their watchdog times are equal.
func TestReadersLetInTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := NewWith(t, rlock.Options{HandOff: rlock.HandOff{For: time.Hour}})
		_, unlock, err := write(locks.Client).Lock(t.Context())
		require.NoError(t, err)
		type reader struct {
			d     time.Duration
			owner string
		}
		in, leave := make(chan reader), make(chan struct{})
		times := []time.Duration{20 * time.Second, 20 * time.Second, 3 * time.Second, 3 * time.Second}
		for _, d := range times {
			go func() { // ends itself
				if err := do(context.Background(), read(locks.Client, rlock.WithWatchdog(d)), func(ctx context.Context) error {
					in <- reader{d, rlock.Owner(ctx)}
					<-leave
					return ctx.Err()
				}); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		require.NoError(t, unlock())
		of := make(map[string]time.Duration)
		for range times {
			r := <-in
			require.Equal(t, r.d, cmp.Or(of[r.owner], r.d), "%s", r.owner)
			of[r.owner] = r.d
		}
		require.Less(t, len(of), len(times), "%v", of)
		for owner, d := range of {
			locks.requireRenewed("{x}:"+owner+":rwlock_timeout:1", d)
		}
		close(leave)
		synctest.Wait()
		require.Empty(t, locks.server.Keys())
	})
}

// Readers of one process with equal watchdog times share a hold in Redis. Readers with different ones have separate holds.
func TestReadersOfDifferentWatchdogTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := NewWith(t, rlock.Options{HandOff: rlock.HandOff{For: time.Hour}})
		var unlocks []rlock.UnlockFunc
		lock := func(d time.Duration) string {
			ctx, unlock, err := read(locks.Client, rlock.WithWatchdog(d)).Lock(t.Context())
			require.NoError(t, err)
			unlocks = append(unlocks, unlock)
			return rlock.Owner(ctx)
		}
		const short, long = 3 * time.Second, 20 * time.Second
		first := lock(long)
		require.Equal(t, first, lock(long))
		other := lock(short)
		require.NotEqual(t, first, other)
		require.Equal(t, other, lock(short))
		require.NotEqual(t, other, lock(long))
		time.Sleep(time.Minute)
		left := locks.left("{x}:" + other + ":rwlock_timeout:1")
		require.Greater(t, left, short/2)
		require.LessOrEqual(t, left, short)
		locks.requireRenewed("{x}:"+first+":rwlock_timeout:1", long)
		for _, unlock := range unlocks {
			require.NoError(t, unlock())
		}
		require.Empty(t, locks.server.Keys())
	})
}
