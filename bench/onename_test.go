package main

import (
	"context"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// The claims of docs/coming-from.md about two libraries on one name, and about one inside the other under different names.
func TestOneNameInTwoLibraries(t *testing.T) {
	s, err := startServer(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(s.stop)

	goRedis := redis.NewClient(&redis.Options{Addr: s.addr})
	t.Cleanup(func() { _ = goRedis.Close() })
	locks, err := rlock.New(s.rdb, rlock.Options{})
	require.NoError(t, err)
	t.Cleanup(locks.Close)
	prefixed, err := rlock.New(s.rdb, rlock.Options{Prefix: "lock:"})
	require.NoError(t, err)
	t.Cleanup(prefixed.Close)
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: rueidis.ClientOption{InitAddress: []string{s.addr}}})
	require.NoError(t, err)
	t.Cleanup(locker.Close)
	mutexes, obtainer := redsync.New(goredis.NewPool(goRedis)), redislock.New(goRedis)

	// Each library tries once.
	tries := map[string]func(name string) (release func() error, err error){
		"rlock": func(name string) (func() error, error) {
			_, unlock, err := locks.Mutex(name).TryLock(t.Context(), 0)
			return unlock, err
		},
		"rlock with a prefix": func(name string) (func() error, error) {
			_, unlock, err := prefixed.Mutex(name).TryLock(t.Context(), 0)
			return unlock, err
		},
		"redsync": func(name string) (func() error, error) {
			m := mutexes.NewMutex(name)
			return func() error {
				_, err := m.Unlock()
				return err
			}, m.TryLock()
		},
		"redislock": func(name string) (func() error, error) {
			l, err := obtainer.Obtain(t.Context(), name, time.Minute, nil)
			return func() error { return l.Release(context.Background()) }, err
		},
		"rueidislock": func(name string) (func() error, error) {
			_, cancel, err := locker.TryWithContext(t.Context(), name)
			return func() error { cancel(); return nil }, err
		},
	}
	const notALock = "not a lock: the key holds another type than a hash (WRONGTYPE)"
	for _, c := range []struct{ holds, asks, gets string }{
		{"redsync", "rlock", notALock},
		{"redislock", "rlock", notALock},
		{"rlock", "redsync", "lock already taken"},
		{"rlock", "redislock", "WRONGTYPE"},
		{"rueidislock", "rlock", ""},
		{"rlock", "rueidislock", ""},
		{"redsync", "rlock with a prefix", ""},
		{"redislock", "rlock with a prefix", ""},
		{"rueidislock", "rlock with a prefix", ""},
	} {
		name := c.holds + " " + c.asks
		release, err := tries[c.holds](name)
		require.NoError(t, err, name)
		release2, err := tries[c.asks](name)
		if c.gets == "" {
			require.NoError(t, err, name)
			require.NoError(t, release2(), name)
		} else {
			require.ErrorContains(t, err, c.gets, name)
		}
		require.NoError(t, release(), name)
	}
}
