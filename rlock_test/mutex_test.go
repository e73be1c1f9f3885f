package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func TestQueries(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		ctx := context.Background()
		m := b.Mutex(b.name)
		require.Equal(t, b.name, m.Name())

		check := func(ctx context.Context, locked bool, count int) {
			t.Helper()
			isLocked, err := m.IsLocked(ctx)
			require.NoError(t, err)
			require.Equal(t, locked, isLocked)
			isHeld, err := m.IsHeld(ctx)
			require.NoError(t, err)
			require.Equal(t, count > 0, isHeld)
			n, err := m.HoldCount(ctx)
			require.NoError(t, err)
			require.Equal(t, count, n)
			ttl, err := m.TTL(ctx)
			require.NoError(t, err)
			if locked {
				require.Greater(t, ttl, 25*time.Second)
				require.LessOrEqual(t, ttl, rlock.DefaultWatchdogTimeout)
			} else {
				require.Zero(t, ttl)
			}
		}
		check(ctx, false, 0)
		one, unlock := enter(t, ctx, m)
		check(one, true, 1)
		check(ctx, true, 0)
		check(rlock.Detach(one), true, 0)
		n, err := newClient(t, b.rdb).Mutex(b.name).HoldCount(one)
		require.NoError(t, err)
		require.Zero(t, n, "another Client has another lock, though of that name")
		two, unlockTwo := enter(t, one, m)
		check(two, true, 2)
		require.NoError(t, unlockTwo())
		check(one, true, 1)
		require.NoError(t, unlock())
		check(context.WithoutCancel(one), false, 0)
		forced, err := m.ForceUnlock(ctx)
		require.NoError(t, err)
		require.False(t, forced, "it is free")

		b.do(t, "HSET", b.name, foreignOwner, "1")
		ttl, err := m.TTL(ctx)
		require.NoError(t, err)
		require.Equal(t, rlock.NoExpiry, ttl)
		b.do(t, "DEL", b.name)
	})
}

// oneConn is for tests that count all commands. With several connections, rueidis picks one at random for each keyed command,
// and opens it, with commands of its own, when it first picks it.
func oneConn(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }

// An uncontended Lock and its unlock are two script calls, and Redis receives nothing else.
func TestUncontendedCostsTwoCommands(t *testing.T) {
	s := redistest.Start(t)
	rdb, watch := s.Client(t, oneConn), s.Client(t)
	m := newClient(t, rdb).Mutex("uncontended")
	pair := func() {
		_, unlock := enter(t, context.Background(), m)
		require.NoError(t, unlock())
	}
	pair() // loads the scripts
	before := redistest.Commands(t, watch)
	const n = 100
	for range n {
		pair()
	}
	after := redistest.Commands(t, watch)
	require.EqualValues(t, 2*n, after["evalsha"]-before["evalsha"])
	inScripts := map[string]int64{"pttl": n, "hincrby": n, "pexpire": n, "zrange": n, "hdel": n, "publish": n}
	for name, calls := range after {
		if name == "evalsha" || name == "info" || name == "ping" || name == "command" { // rueidis sends PING itself
			continue
		}
		require.Equal(t, inScripts[name], calls-before[name], name)
	}
}
