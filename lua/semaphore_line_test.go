package lua_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// most is how many times a want is overtaken.
const most = 16

// Small wants of others overtake a large one 16 times, and then permits gather for it.
func TestSemaphoreOvertakingIsBounded(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	large, small := s.process(1), s.process(2)
	s.set(1)
	s.wait(1, []int64{2})
	for range most {
		s.try(2, []int64{1}, 0)
		s.release(2, 1, 1)
	}
	require.Empty(t, large.said())
	s.try(2, []int64{1})
	s.wait(2, []int64{1})
	s.release(9, 0, 1)
	heard(t, []*ear{large, small}, "", "")
	s.wait(1, []int64{2})
	s.wait(2, []int64{1})
	s.release(9, 1, 2)
	heard(t, []*ear{large, small}, look, "")
	s.wait(1, []int64{2}, 0)
	s.release(9, 1, 1)
	heard(t, []*ear{large, small}, "", look)
	s.wait(2, []int64{1}, 0)
	s.line()
}

// The same within the list of one process, and beside others.
func TestSemaphoreOvertakingInOneProcess(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	s.process(1)
	s.set(10)
	wants := append([]int64{11}, slices.Repeat([]int64{1}, 9)...)
	s.wait(1, wants, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	s.release(1, 9, 10)
	s.try(2, []int64{1, 1, 1}, 0, 1, 2)
	s.release(2, 3, 10)
	s.wait(1, wants, 1, 2, 3, 4) // 16
	s.release(1, 4, 10)
	s.wait(1, wants)
	s.try(2, []int64{1})
	s.wait(1, []int64{10}, 0) // another one, so its count is its own
	s.line()
}

// Only the first want that cannot be granted counts. A granted want ends its count.
func TestSemaphoreOvertakingCountsForTheFirst(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	ears := []*ear{s.process(1), s.process(2)}
	s.set(1)
	s.wait(1, []int64{2})
	s.wait(2, []int64{3})
	for range most {
		s.try(3, []int64{1}, 0)
		s.release(3, 1, 1)
	}
	s.try(3, []int64{1})
	s.release(9, 1, 2)
	heard(t, ears, look, "")
	s.wait(1, []int64{2}, 0)
	s.set(2)
	for range most {
		s.try(3, []int64{1}, 0)
		s.release(3, 1, 2)
	}
	s.try(3, []int64{1})
}

// A want may exceed all permits that will ever exist. Permits do not gather for it forever, and a waiter looks when that ends.
func TestSemaphoreGatheringEnds(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	ears := []*ear{s.process(1), s.process(2)}
	s.set(1)
	s.wait(1, []int64{99})
	for range most {
		s.try(2, []int64{1}, 0)
		s.release(2, 1, 1)
	}
	s.wait(2, []int64{1})
	s.later(4*time.Minute + 59*time.Second)
	again := s.wait(2, []int64{1}).Again
	require.True(t, again > 0 && again <= time.Second, "%v", again)
	heard(t, ears, "", "")
	s.later(time.Second)
	for range most {
		s.wait(2, []int64{1}, 0)
		s.release(2, 1, 1)
	}
	s.wait(2, []int64{1})
}

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
		require.Equal(t, []string{"1"}, inside.said(), "Redis had neither a counter nor a queue: it may have lost both")
		s.release(9, 1, 2)
		require.Empty(t, inside.said())
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
		require.Equal(t, []string{"01"}, outside.said(), "what is left")
		a.Cancel = true
		require.Equal(t, int64(3), s.use(a).Free)
		require.Equal(t, []string{"03"}, outside.said())
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
	s.wait(2, []int64{1}, 0)
	s.must("INCRBY", s.name, "2") // and it publishes that
	s.wait(1, []int64{2}, 0)
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
	for _, key := range []string{s.queue, s.requests} {
		ttl := s.number("PTTL", key)
		require.True(t, ttl > 45_000 && ttl <= 61_000, "%d", ttl)
	}
}
