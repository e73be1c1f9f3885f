package rlock_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
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
		one, unlock, err := m.Lock(ctx)
		require.NoError(t, err)
		check(one, true, 1)
		check(ctx, true, 0)
		check(rlock.Detach(one), true, 0)
		two, unlockTwo, err := m.Lock(one)
		require.NoError(t, err)
		check(two, true, 2)
		require.NoError(t, unlockTwo())
		check(one, true, 1)
		require.NoError(t, unlock())
		check(context.WithoutCancel(one), false, 0)

		b.do(t, "HSET", b.name, foreignOwner, "1")
		ttl, err := m.TTL(ctx)
		require.NoError(t, err)
		require.Equal(t, rlock.NoExpiry, ttl)
		b.do(t, "DEL", b.name)
	})
}

func TestForceUnlock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 2 * shortWatchdog
		b := newFixture(t, rlock.Options{WatchdogTimeout: watchdog})
		m := b.Mutex(b.name)
		ok, err := m.ForceUnlock(context.Background())
		require.NoError(t, err)
		require.False(t, ok)

		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		waiting := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
		b.awaitSubscribers(t, b.name, 1)
		ok, err = m.ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, ok)

		next := waiting.get(t, watchdog/2) // earlier than the lease would end
		require.NoError(t, next.err)
		<-ctx.Done() // at the next renewal
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
		require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
		require.Equal(t, map[string]int64{rlock.Owner(next.ctx): 1}, b.fields(t, b.name), "the new hold is untouched")
		require.NoError(t, next.unlock())
	})
}

// oneConn is for tests that count all commands. With several connections, rueidis picks one at random for each keyed command,
// and opens it, with commands of its own, when it first picks it.
func oneConn(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }

// An uncontended Lock and its unlock are two script calls, and Redis receives nothing else.
func TestUncontendedCostsTwoCommands(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		rdb, watch := s.Client(t, oneConn), s.Client(t)
		m := newClient(t, rdb).Mutex("uncontended")
		pair := func() {
			_, unlock, err := m.Lock(context.Background())
			require.NoError(t, err)
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
	})
}

// MONITOR shows the two script calls of uncontended Locks and unlocks in turn, and no other command. It marks commands sent
// by the scripts as coming from "lua".
func TestMonitorShowsTwoCommandsPerPair(t *testing.T) {
	s := redistest.Start(t)
	m := newClient(t, s.Client(t, oneConn)).Mutex("monitored")
	pair := func() {
		_, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		require.NoError(t, unlock())
	}
	pair() // loads the scripts
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, "MONITOR\r\n")
	require.NoError(t, err)
	lines := bufio.NewReader(conn)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n", line)

	const n = 50
	for range n {
		pair()
	}
	last := fixture{rdb: s.Client(t)} // sent after all pairs
	require.NoError(t, last.do(t, "ECHO", "the end").Error())
	var seen []string // command and script
	for {
		line, err := lines.ReadString('\n') // +1700000000.123456 [0 127.0.0.1:5000] "EVALSHA" "6b1b…" …
		require.NoError(t, err)
		from, command, ok := strings.Cut(line, "] ")
		require.True(t, ok, line)
		words := strings.Fields(command)
		switch {
		case strings.HasSuffix(from, " lua"):
			continue
		case strings.EqualFold(words[0], `"PING"`): // rueidis sends one per second and connection
			continue
		case strings.EqualFold(words[0], `"EVALSHA"`):
			seen = append(seen, words[1])
			continue
		case len(seen) < 2*n:
			require.Fail(t, "another command", line)
		}
		break // first command of last's connection
	}
	require.Len(t, seen, 2*n)
	for i, script := range seen {
		require.Equal(t, seen[i%2], script, "acquire and release alternate")
	}
	require.NotEqual(t, seen[0], seen[1])
}

func TestTryLock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		ctx, unlock, err := m.TryLock(context.Background(), 0)
		require.NoError(t, err)
		_, unlockInner, err := m.TryLock(ctx, 0)
		require.NoError(t, err, "re-enters")
		require.NoError(t, unlockInner())

		for _, wait := range []time.Duration{-1, 0, time.Millisecond, 100 * time.Millisecond} {
			began := time.Now()
			got, noop, err := m.TryLock(context.Background(), wait)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's ctx has no deadline")
			require.Equal(t, context.Background(), got)
			require.ErrorIs(t, noop(), rlock.ErrNotHeld)
			require.GreaterOrEqual(t, time.Since(began), wait)
			require.Less(t, time.Since(began), wait+soon)
		}

		waiting := lockAsync(t, tryFor{m, 10 * time.Second})
		b.awaitSubscribers(t, b.name, 1)
		require.NoError(t, unlock())
		waiting.getAndUnlock(t, 5*time.Second)
	})
}

func TestCancelledWait(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		_, unlock, err := m.Lock(t.Context())
		require.NoError(t, err)

		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		got, _, err := m.Lock(ctx)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, ctx, got)
		require.Regexp(t, `^rlock: "`+b.name+`": not acquired after \d+ms: held by this client as [-0-9a-f]{36}:\d+, with [0-9.]+s left `+
			`\(if this caller has it, use the ctx that its Lock returned\): context deadline exceeded$`, err.Error())

		_, _, err = m.Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded, "ctx was done before the call")

		mine := errors.New("mine")
		caused, cancelCaused := context.WithCancelCause(context.Background())
		cancelCaused(mine)
		_, _, err = m.Lock(caused)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, mine, "the error includes the cause")
		b.awaitSubscribers(t, b.name, 0)
		require.NoError(t, unlock())
	})
}
