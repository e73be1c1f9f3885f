package lua_test

import (
	"fmt"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// A repeat gets the same answer, and takes and gives nothing.
func TestSemaphoreRepeat(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, l lab, sharded bool) {
		s := newSem(t, l.rdb)
		s.sharded = sharded
		s.set(7)
		a := s.request(1)
		a.Wants, a.Waits = []int64{4, 4, 1}, true
		want := lua.SemaphoreReply{Free: 3, Done: 1, Granted: []int{0}, Again: minute}
		require.Equal(t, want, s.use(a))
		want.Again = 0
		for range 2 {
			require.Equal(t, want, s.use(a))
		}
		s.line(1)

		s.wait(1, nil)

		// Returned permits are given back once, and permits taken in the same call are taken once.
		b := s.request(1)
		b.N, b.Wants = 4, []int64{1, 9}
		require.Equal(t, lua.SemaphoreReply{Free: 6, Done: 1, Granted: []int{0}, Again: minute}, s.use(b))
		for range 2 {
			require.Equal(t, lua.SemaphoreReply{Free: 6, Done: 1, Granted: []int{0}}, s.use(b))
		}

		// A refused request stays refused, even if permits are free now.
		c := s.request(2)
		c.Wants = []int64{7}
		require.Equal(t, minute, s.use(c).Again)
		s.set(7)
		require.Equal(t, lua.SemaphoreReply{Free: 7, Done: 1}, s.use(c))
		require.Equal(t, int64(7), s.free())
	})
}

func TestSemaphoreCancel(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		gives     int64
		ran       bool
		want      []int64
		cancelled int64 // free permits after that, of 3
	}{
		"after it took some":              {0, true, []int64{2, 2, 1}, 3},
		"before it ran":                   {0, false, []int64{2}, 3},
		"after it was refused":            {0, true, []int64{4}, 3},
		"after it gave some and took one": {2, true, []int64{1}, 5},
		"before it could":                 {2, false, []int64{1}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sharedSem(t)
			s.set(3)
			a := s.request(1)
			a.N, a.Wants = row.gives, row.want
			if row.ran {
				s.use(a)
			}
			end := a
			end.Cancel = true
			for range 3 {
				require.Equal(t, lua.SemaphoreReply{Free: row.cancelled, Done: 1}, s.use(end))
				require.Equal(t, lua.SemaphoreReply{Free: row.cancelled, Done: 1}, s.use(a), "a copy that comes late")
				require.Equal(t, row.cancelled, s.free())
			}
		})
	}
}

// The permits of a cancelled request go to waiters.
func TestSemaphoreCancelWakes(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	ears := []*ear{s.process(1), s.process(2)}
	s.set(3)
	a := s.request(1)
	a.Wants = []int64{3}
	require.Equal(t, []int{0}, s.use(a).Granted)
	s.wait(2, []int64{3})
	a.Cancel = true
	s.use(a)
	heard(t, ears, "", look)
	s.wait(2, []int64{3}, 0)
	s.line()
}

// A process's record keeps its last request for two minutes.
func TestSemaphoreRecord(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	s.set(9)
	for range 3 {
		for i := 1; i <= 3; i++ {
			s.try(i, []int64{1}, 0)
		}
	}
	for i := 1; i <= 3; i++ {
		text, err := s.do("GET", s.record(i)).ToString()
		require.NoError(t, err)
		require.Equal(t, "3|1|1|1||", text)
		ttl := s.number("PTTL", s.record(i))
		require.True(t, ttl > 100_000 && ttl <= 121_000, "%d", ttl)
	}
	require.Zero(t, s.number("EXISTS", s.requests), "the line is empty")

	s.must("SET", s.record(1), "3") // cut off, or of somebody else
	s.must("SET", s.record(2), "x")
	s.must("DEL", s.record(3))
	s.must("HSET", s.record(3), "a", "b")
	for i := 1; i <= 3; i++ {
		s.release(i, 1, int64(i))
	}
}

// A copy of a call does nothing after another call of the same process, whatever the call is and whether or not it ran before.
func TestSemaphoreLateCopies(t *testing.T) {
	t.Parallel()
	for _, ran := range []bool{false, true} {
		t.Run(fmt.Sprint(ran), func(t *testing.T) {
			t.Parallel()
			s := sharedSem(t)
			ear := s.process(1)
			s.set(5)
			var copies []lua.SemaphoreArgs
			add := func(change func(a *lua.SemaphoreArgs)) {
				a := s.request(1)
				change(&a)
				copies = append(copies, a)
			}
			add(func(a *lua.SemaphoreArgs) { a.Wants = []int64{2} })
			add(func(a *lua.SemaphoreArgs) { a.N = 2 })
			add(func(a *lua.SemaphoreArgs) { a.Wants, a.Waits = []int64{9}, true })
			add(func(a *lua.SemaphoreArgs) { a.Waits = true })
			add(func(a *lua.SemaphoreArgs) { a.Change = lua.Drain })
			add(func(a *lua.SemaphoreArgs) { a.N = 5 })
			for _, a := range copies {
				if ran {
					s.use(a)
				}
			}
			s.try(1, []int64{1}, 0)
			for _, cancel := range []bool{false, true} {
				for _, a := range copies {
					a.Cancel = cancel
					require.Equal(t, lua.SemaphoreReply{Free: 4}, s.use(a))
				}
			}
			require.Equal(t, int64(4), s.free())
			s.line()
			require.Empty(t, ear.said())
		})
	}
}
