package rlock_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// lastToken is the highest token: numbers in Lua scripts are exact up to 2^53.
const lastToken int64 = 1<<53 - 1

// Tokens rise, or the call fails. Above lastToken they would repeat, a negative number is not a token, and 0 means none. After a
// failure the counter is unchanged, and no other key is left.
func TestFencingCounterOutOfRange(t *testing.T) {
	for start, want := range map[string]int{ // tokens until the error
		"9007199254740985": 6, "9007199254740990": 1, "9007199254740991": 0, "9007199254740992": 0, "1764000000000000000": 0,
		"9223372036854775807": 0, "-1": 0, "-2": 0, "-9223372036854775808": 0, "1.5": 0,
	} {
		for how, locker := range map[string]func(b fixture) rlock.Locker{
			"one":   func(b fixture) rlock.Locker { return b.FencedMutex(b.name) },
			"write": func(b fixture) rlock.Locker { return b.FencedRWMutex(b.name).Write() },
			"all":   func(b fixture) rlock.Locker { return rlock.All(b.FencedMutex(b.name), b.Mutex(b.name+":2")) },
		} {
			runVirtual(t, how+"/"+start, func(t *testing.T, b fixture) {
				key := "redisson_lock_token:{" + b.name + "}"
				require.NoError(t, b.do(t, "SET", key, start).Error())
				defer b.do(t, "DEL", key)
				last, got := int64(0), 0
				var err error
				for err == nil && got <= want {
					_, err = rlock.DoValue(context.Background(), locker(b), func(ctx context.Context) (struct{}, error) {
						token, ok := rlock.FencingToken(ctx, b.name)
						require.True(t, ok)
						require.Greater(t, token, last)
						last = token
						got++
						return struct{}{}, nil
					})
				}
				require.Equal(t, want, got)
				require.NotErrorIs(t, err, rlock.ErrUnreachable)
				if start != "1.5" { // for this value the error comes from Redis
					require.ErrorContains(t, err, "TOKEN the fencing counter is ")
				}
				if now, err := b.do(t, "GET", key).ToString(); want == 0 {
					require.NoError(t, err)
					require.Equal(t, start, now, "the counter is unchanged")
				}
				require.False(t, b.exists(t, b.name))
				require.False(t, b.exists(t, b.name+":2"))
			})
		}
	}
}

// If the tokens run out while a goroutine waits, the unlock succeeds and the waiter gets the error.
func TestFencingCounterEndsAtAHandOff(t *testing.T) {
	for _, where := range []string{"here", "another process"} {
		runVirtual(t, where, func(t *testing.T, b fixture) {
			key := "redisson_lock_token:{" + b.name + "}"
			require.NoError(t, b.do(t, "SET", key, strconv.FormatInt(lastToken-1, 10)).Error())
			defer b.do(t, "DEL", key)
			m := b.FencedMutex(b.name)
			a := locked(t, m)
			token, _ := m.FencingToken(a.ctx)
			require.Equal(t, lastToken, token)
			require.NoError(t, m.Do(a.ctx, nothing), "a re-entry needs no token")
			waiter := b.Client
			if where != "here" {
				waiter = newClient(t, b.rdb)
			}
			next := lockAsync(t, waiter.FencedMutex(b.name))
			b.awaitSubscribers(t, b.name, 1)
			b.awaitWaiters(t, 1)
			require.NoError(t, a.unlock())
			require.ErrorContains(t, next.get(t, testTimeout).err, "TOKEN")
			redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "the lock is free")
		})
	}
}
