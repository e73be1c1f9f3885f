package lua_test

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// never is the expiry time of a permit that does not expire.
const never = "922337203685477"

// permits is a semaphore on a server, with permits that expire.
type permits struct {
	sem
	timeouts, slots string
}

func newPermits(t *testing.T, rdb rueidis.Client) permits {
	t.Helper()
	s := newSem(t, rdb)
	return permits{s, "{" + s.name + "}:timeout", "slots:{" + s.name + "}"}
}

func sharedPermits(t *testing.T) permits {
	t.Helper()
	return newPermits(t, redistest.Dial(t, redistest.Shared(t)))
}

// id returns the id of permit n.
func id(n int) (p lua.PermitID) {
	binary.BigEndian.PutUint64(p[8:], uint64(n))
	copy(p[:], "\x00\r\n\xff") // it can contain any byte
	return p
}

func ids(from, to int) (all []lua.PermitID) {
	for n := from; n <= to; n++ {
		all = append(all, id(n))
	}
	return all
}

func (s permits) request(i int) lua.PermitsArgs {
	return lua.PermitsArgs{SemaphoreArgs: s.sem.request(i), Timeouts: s.timeouts, Slots: s.slots, Lease: lease}
}

func (s permits) semaphore() lua.PermitSemaphore {
	return lua.PermitSemaphore{Semaphore: s.sem.request(0).Semaphore, Timeouts: s.timeouts, Slots: s.slots}
}

func (s permits) use(a lua.PermitsArgs) lua.PermitsReply {
	s.t.Helper()
	r, err := lua.UsePermits(s.t.Context(), s.rdb, a)
	require.NoError(s.t, err)
	return r
}

// take takes permits with these ids in one call.
func (s permits) take(i int, ids ...lua.PermitID) lua.PermitsReply {
	s.t.Helper()
	a := s.request(i)
	a.Wants, a.IDs = []int64{int64(len(ids))}, ids
	r := s.use(a)
	require.Equal(s.t, []int{0}, r.Granted)
	return r
}

// wait asks for one permit.
func (s permits) wait(i int, id lua.PermitID) lua.PermitsReply {
	s.t.Helper()
	a := s.request(i)
	a.Wants, a.IDs, a.Waits = []int64{1}, []lua.PermitID{id}, true
	return s.use(a)
}

func (s permits) give(i int, ids ...lua.PermitID) lua.PermitsReply {
	s.t.Helper()
	a := s.request(i)
	a.Release = ids
	return s.use(a)
}

func (s permits) look(of *lua.PermitID) lua.PermitsInfo {
	s.t.Helper()
	info, err := lua.LookPermits(s.t.Context(), s.rdb, s.semaphore(), of)
	require.NoError(s.t, err)
	return info
}

// requirePermits checks the numbers of free permits and of entries in the zset.
func (s permits) requirePermits(free, held int64) {
	s.t.Helper()
	require.Equal(s.t, free, s.free())
	require.Equal(s.t, held, s.number("ZCARD", s.timeouts))
	require.Equal(s.t, held, s.number("ZCARD", s.slots))
}

// expire makes permits expire at a time in the past.
func (s permits) expire(ago time.Duration, ids ...lua.PermitID) {
	s.t.Helper()
	for _, p := range ids {
		s.must("ZADD", s.timeouts, "XX", strconv.FormatInt(s.clock()-ago.Milliseconds(), 10), string(p[:]))
	}
}

func (s permits) clock() int64 {
	s.t.Helper()
	m, err := s.rdb.Do(s.t.Context(), s.rdb.B().Time().Build()).AsIntSlice()
	require.NoError(s.t, err)
	return m[0]*1000 + m[1]/1000
}

// A repeat gets the same answer and takes nothing more. released gives back once.
func TestPermitsTakeAndGive(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, l lab, sharded bool) {
		s := newPermits(t, l.rdb)
		s.sharded = sharded
		s.set(5)
		a := s.request(1)
		a.Wants, a.IDs, a.Waits = []int64{2, 6, 1}, append(ids(1, 2), append(ids(11, 16), id(7))...), true
		want := lua.PermitsReply{Slots: []int64{0, 1, 2}}
		want.Free, want.Done, want.Granted = 2, 1, []int{0, 2}
		for range 3 {
			got := s.use(a)
			got.Again = 0
			require.Equal(t, want, got)
			s.requirePermits(2, 3)
		}
		for _, n := range []int{1, 2, 7} {
			p := id(n)
			info := s.look(&p)
			require.True(t, info.Found && info.Exists && info.Free == 2 && info.Held == 3, "%+v", info)
			require.True(t, info.Left <= lease && info.Left > lease-slack, "%v", info.Left)
		}
		b := s.request(1)
		b.Release, b.Wants, b.IDs, b.Waits = []lua.PermitID{id(1), id(3), id(7)}, []int64{4}, ids(11, 14), true
		want = lua.PermitsReply{Slots: []int64{0, 2, 3, 4}, Released: []lua.Given{lua.PermitReleased, lua.PermitUnknown, lua.PermitReleased}}
		want.Free, want.Done, want.Granted = 0, 1, []int{0}
		for range 3 {
			require.Equal(t, want, s.use(b))
			s.requirePermits(0, 5)
		}
		s.line()
		s.give(1, append(ids(11, 14), id(2))...)
		s.requirePermits(5, 0)
		require.Equal(t, lua.PermitsInfo{Exists: true, Free: 5}, s.look(nil))
	})
}

// If the record is gone, the id itself distinguishes a repeat from a new request.
func TestPermitsRepeatWithoutRecord(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(5)
	a := s.request(1)
	a.Wants, a.IDs = []int64{2}, ids(1, 2)
	s.use(a)
	s.must("DEL", s.record(1))
	again := s.use(a)
	require.Equal(t, []int{0}, again.Granted)
	require.Equal(t, int64(3), again.Free)
	require.Equal(t, int64(3), s.free())
	require.Equal(t, int64(2), s.number("ZCARD", s.timeouts))
	require.Equal(t, []int64{0, 1}, again.Slots)

	s.must("DEL", s.record(1))
	a.Cancel = true
	s.use(a)
	s.requirePermits(5, 0)
}

func TestPermitsCancel(t *testing.T) {
	t.Parallel()
	for _, ran := range []bool{false, true} {
		t.Run(fmt.Sprint(ran), func(t *testing.T) {
			t.Parallel()
			s := sharedPermits(t)
			s.set(4)
			s.take(1, id(9))
			a := s.request(1)
			a.Release, a.Wants, a.IDs = []lua.PermitID{id(9)}, []int64{3, 9, 1}, ids(11, 23)
			if ran {
				require.Equal(t, []int{0, 2}, s.use(a).Granted)
			}
			end := a
			end.Cancel = true
			for range 3 {
				require.Empty(t, s.use(end).Granted)
				got := s.use(a)
				require.Empty(t, got.Granted)
				require.Equal(t, []lua.Given{lua.PermitReleased}, got.Released)
				s.requirePermits(4, 0)
			}
		})
	}
	t.Run("after it expired and was taken by another", func(t *testing.T) {
		t.Parallel()
		s := sharedPermits(t)
		s.set(1)
		a := s.request(1)
		a.Wants, a.IDs = []int64{1}, ids(1, 1)
		s.use(a)
		s.expire(0, id(1))
		s.take(2, id(2))
		a.Cancel = true
		s.use(a)
		s.requirePermits(0, 1)
	})
}

// The holder of a permit and a caller with its id may give it back in one call. Only one of the two counts.
func TestPermitsReleaseTwiceInACall(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(5)
	s.take(1, ids(1, 3)...)
	got := s.give(1, id(1), id(2), id(1), id(4), id(4), id(2)).Released
	require.Equal(t, []lua.Given{
		lua.PermitReleased, lua.PermitReleased, lua.PermitUnknown, lua.PermitUnknown, lua.PermitUnknown, lua.PermitUnknown,
	}, got)
	s.requirePermits(4, 1)
}

func TestPermitsTotal(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	set := func(n, free, done int64) {
		t.Helper()
		a := s.request(1)
		a.Change, a.N = lua.SetTotal, n
		for range 2 {
			r := s.use(a)
			require.Equal(t, free, r.Free)
			require.Equal(t, done, r.Done)
		}
		require.Equal(t, free, s.free())
	}
	set(0, 0, 1)
	require.Equal(t, int64(1), s.number("EXISTS", s.name))
	set(3, 3, 1)
	set(3, 3, 0)
	s.take(1, id(1), id(2))
	set(3, 1, 0)
	set(5, 3, 1)
	set(1, -1, 1)
	s.give(1, id(1))
	set(1, 0, 0)
	s.must("PEXPIRE", s.name, "180000")
	set(4, 3, 1)
	s.requireTTL(long)
}

// Added permits go to waiters. A want beyond all permits is in nobody's way until there are as many.
func TestPermitsWakes(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	ears := []*ear{s.process(1), s.process(2), s.process(3)}
	s.set(2)
	s.take(9, id(1))
	a := s.request(1)
	a.Wants, a.IDs, a.Waits = []int64{3}, ids(10, 12), true
	s.use(a)
	require.Equal(t, []int{0}, s.wait(2, id(20)).Granted, "behind a want that cannot be granted")
	s.give(2, id(20))
	b := s.request(2)
	b.Wants, b.IDs, b.Waits = []int64{5, 1}, ids(20, 25), true
	require.Equal(t, []int{1}, s.use(b).Granted, "beside one")
	s.wait(3, id(30))
	heard(t, ears, "", "", "")

	total := s.request(9)
	total.Change, total.N = lua.SetTotal, 4
	s.use(total)
	heard(t, ears, "", "", "")
	s.give(9, id(1))
	heard(t, ears, look, "", "")
	s.give(2, id(25))
	heard(t, ears, "", "", look)
}
