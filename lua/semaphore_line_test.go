package lua_test

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// Outsiders receive the number of free permits, but only if there are outsiders and free permits.
func TestSemaphoreOutsiders(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, dial func() rueidis.Client, sharded bool) {
		t.Helper()
		s := newSem(t, dial())
		s.sharded = sharded
		inside := s.listen(sharded)
		first := s.process(1)
		s.release(9, 1, 1)
		require.Equal(t, []string{"1"}, inside.said(), "nobody is in line, but somebody believes so: Redis may have lost that")
		s.release(9, 1, 2)
		require.Equal(t, []string{"2"}, inside.said())
		s.try(9, []int64{2}, 0)
		s.wait(1, []int64{1})

		other := s
		other.rdb = dial()
		outside := other.outsider(sharded)
		s.release(9, 1, 1)
		require.Equal(t, []string{"01"}, outside.said())
		require.Equal(t, []string{look}, first.said())
		s.wait(1, []int64{1}, 0)
		require.Empty(t, outside.said())

		s.set(-3)
		s.release(9, 3, 0)
		require.Empty(t, outside.said(), "Redisson fails at 0, and at less")
		a := s.request(9)
		a.N, a.Wants = 3, []int64{2}
		require.Equal(t, int64(1), s.use(a).Free)
		require.Equal(t, []string{"1"}, outside.said(), "what is left")
		a.Cancel = true
		require.Equal(t, int64(3), s.use(a).Free)
		require.Equal(t, []string{"3"}, outside.said())
		s.use(a)
		require.Empty(t, outside.said())
		s.must("DEL", s.name)
		a = s.request(9)
		a.Change, a.N = lua.TrySet, 4
		s.use(a)
		require.Equal(t, []string{"4"}, outside.said())
	}
	t.Run("standalone", func(t *testing.T) {
		t.Parallel()
		test(t, func() rueidis.Client { return redistest.Dial(t, redistest.Shared(t)) }, false)
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3, 0)
		test(t, func() rueidis.Client { return c.Client(t) }, true)
	})
}

// Redisson calls in between: its permits count like ours, so fewer permits may be free than were reserved.
func TestSemaphoreBesideRedisson(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	ears := []*ear{s.process(1), s.process(2)}
	s.wait(1, []int64{2})
	s.wait(2, []int64{1})
	s.release(9, 3, 3)
	heard(t, ears, look, look)
	s.must("DECRBY", s.name, "2")
	s.wait(1, []int64{2})
	s.wait(2, []int64{1})
	s.must("INCRBY", s.name, "2") // and it publishes that
	s.wait(1, []int64{2}, 0)
	s.wait(2, []int64{1}, 0)
	s.line()
	require.Zero(t, s.free())
}

// A refused process learns when the counter expires, and the counter keeps its expiry.
func TestSemaphoreExpires(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	s.must("SET", s.name, "2", "PX", "20000")
	again := s.wait(1, []int64{3}).Again
	require.True(t, again > 5*time.Second && again <= short+time.Millisecond, "%v", again)
	s.wait(1, nil)
	s.try(1, []int64{1}, 0)
	s.release(1, 1, 2)
	s.requireTTL(short)
	a := s.request(1)
	a.Change = lua.Drain
	s.use(a)
	s.requireTTL(short)
	s.must("PEXPIRE", s.name, "1")
	redistest.Eventually(t, 5*time.Second, func() bool { return s.number("EXISTS", s.name) == 0 }, "the counter expires")
	require.Equal(t, minute, s.wait(1, []int64{1}).Again)
	s.release(1, 1, 1)
	s.requireTTL(noExpiry)
}

// A queue that no process asks in any more expires, and so does the record.
func TestSemaphoreLeavesNothing(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	s.wait(1, []int64{1})
	for _, key := range []string{s.queue, s.requests, s.ends()} {
		ttl := s.number("PTTL", key)
		require.True(t, ttl > 45_000 && ttl <= 60_000+keep.Milliseconds(), "%d", ttl)
	}
}
