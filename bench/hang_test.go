//go:build unix

package main

import (
	"context"
	"regexp"
	"strconv"
	"syscall"
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

// The row of README.md about a deadline while Redis hangs: the server is stopped for five seconds, and each library locks a free name with
// its default client, under a ctx of 100 ms.
func TestDeadlineWhileRedisHangs(t *testing.T) {
	const hang, deadline, soon = 5 * time.Second, 100 * time.Millisecond, time.Second
	s, err := startServer(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(s.stop)
	info, err := s.rdb.Do(t.Context(), s.rdb.B().Info().Section("server").Build()).ToString()
	require.NoError(t, err)
	pid, err := strconv.Atoi(regexp.MustCompile(`process_id:(\d+)`).FindStringSubmatch(info)[1])
	require.NoError(t, err)

	goRedis := redis.NewClient(&redis.Options{Addr: s.addr})
	t.Cleanup(func() { _ = goRedis.Close() })
	locks, err := rlock.Open("redis://"+s.addr, rlock.Options{})
	require.NoError(t, err)
	t.Cleanup(locks.Close)
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: rueidis.ClientOption{InitAddress: []string{s.addr}}})
	require.NoError(t, err)
	t.Cleanup(locker.Close)
	mutexes, obtainer := redsync.New(goredis.NewPool(goRedis)), redislock.New(goRedis)

	libraries := []struct {
		name string
		late bool // returns when the server goes on
		lock func(ctx context.Context) error
	}{
		{"rlock", false, func(ctx context.Context) error {
			_, _, err := locks.Mutex("order").Lock(ctx)
			return err
		}},
		{"rueidislock", false, func(ctx context.Context) error {
			_, _, err := locker.WithContext(ctx, "order")
			return err
		}},
		{"redsync", true, func(ctx context.Context) error { return mutexes.NewMutex("redsync").LockContext(ctx) }},
		{"redislock", true, func(ctx context.Context) error {
			_, err := obtainer.Obtain(ctx, "redislock", time.Minute, nil)
			return err
		}},
	}
	for _, l := range libraries {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		resumed := time.AfterFunc(hang, func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		err := l.lock(ctx)
		took := time.Since(began)
		cancel()
		t.Logf("%s: %v after a deadline of %v: %v", l.name, took.Round(time.Millisecond), deadline, err)
		if l.late {
			require.Greater(t, took, soon, l.name)
		} else {
			require.Less(t, took, soon, l.name)
			require.Error(t, err)
		}
		resumed.Stop()
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	}
}
