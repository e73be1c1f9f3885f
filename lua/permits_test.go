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
			require.True(t, s.remains(info.Left, lease), "%v", info.Left)
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

// A permit keeps its number in a repeat of the call that took it.
func TestPermitsRepeatHasItsNumber(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(3)
	s.take(1, id(1))
	a := s.request(2)
	a.Wants, a.IDs = []int64{1}, ids(2, 2)
	first := s.use(a)
	require.Equal(t, []int64{1}, first.Slots)
	again := s.use(a)
	require.Equal(t, []int{0}, again.Granted)
	require.Equal(t, first.Slots, again.Slots)
	s.requirePermits(1, 2)
}

func TestPermitsForever(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(1)
	a := s.request(1)
	a.Wants, a.IDs, a.Lease = []int64{1}, ids(1, 1), lua.Forever
	s.use(a)
	score, err := s.do("ZRANGE", s.timeouts, "0", "0", "WITHSCORES").ToAny()
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(score), "9.22337203685477e+14")
	a = s.request(1)
	a.Release, a.Wants, a.IDs, a.Lease = ids(1, 1), []int64{1}, ids(2, 2), 1<<62
	s.use(a)
	score, err = s.do("ZRANGE", s.timeouts, "0", "0", "WITHSCORES").ToAny()
	require.NoError(t, err)
	require.NotContains(t, fmt.Sprint(score), ".5") // an integer, or Redisson fails
	p := id(2)
	require.True(t, s.look(&p).Found)
}

// 10,000 expired permits are reclaimed in portions, and every call works.
func TestPermitsManyExpired(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(0)
	const many = 10_000
	cmd := s.rdb.B().Eval().Script(`for i = 1, tonumber(ARGV[1]) do redis.call('zadd', KEYS[1], i, string.format('%016d', i)) end`).Numkeys(1).
		Key(s.timeouts).Arg(strconv.Itoa(many)).Build()
	require.True(t, rueidis.IsRedisNil(s.rdb.Do(t.Context(), cmd).Error()))
	require.Equal(t, lua.PermitsInfo{Exists: true, Free: many}, s.look(nil))

	ear := s.process(1)
	calls, a := 0, s.request(1)
	for { // a process wants more than one portion, and asks until it has it
		a.Wants, a.IDs, a.Waits = []int64{900}, ids(1, 900), true
		r := s.use(a)
		calls++
		if len(r.Granted) > 0 {
			break
		}
		require.True(t, r.More)
		require.Equal(t, time.Millisecond, r.Again)
		a = s.request(1)
	}
	require.Equal(t, 2, calls)
	require.Equal(t, lua.PermitsInfo{Exists: true, Free: many - 900, Held: 900}, s.look(nil))
	s.give(1, ids(1, 900)...)
	for range 30 {
		if !s.give(2, id(5000)).More {
			break
		}
	}
	s.requirePermits(many, 0)
	require.Empty(t, ear.said())
}

// If no process asks for more, a message makes those in line ask.
func TestPermitsManyExpiredWhileOthersWait(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(0)
	ear := s.process(1)
	lent := func(left time.Duration) { // at once: they must not expire before the request
		args, end := []string{"ZADD", s.timeouts}, strconv.FormatInt(s.clock()+left.Milliseconds(), 10)
		for n := range 1200 {
			p := id(n)
			args = append(args, end, string(p[:]))
		}
		s.must(args...)
	}
	lent(time.Hour)
	a := s.request(1)
	a.Wants, a.IDs, a.Waits = []int64{1000}, ids(2001, 3000), true
	require.Equal(t, minute, s.use(a).Again)
	lent(-time.Millisecond)
	require.True(t, s.give(2, id(9999)).More)
	require.Equal(t, []string{look}, ear.said())
	for range 2 {
		a.Request = s.sem.request(1).Request
		if r := s.use(a); len(r.Granted) > 0 {
			require.Equal(t, lua.PermitsInfo{Exists: true, Free: 200, Held: 1000}, s.look(nil))
			return
		}
	}
	t.Fatal("not granted")
}

// Renewal never shortens a lease, and never revives an expired permit.
func TestPermitsRenew(t *testing.T) {
	t.Parallel()
	s, other := sharedPermits(t), sharedPermits(t)
	other.name, other.timeouts = other.name+"2", other.timeouts+"2"
	s.set(100)
	s.take(1, ids(1, 100)...)
	s.expire(0, id(1))
	s.expire(-time.Hour, id(2))
	p := id(3)
	s.must("ZADD", s.timeouts, never, string(p[:]))
	other.must("SET", other.timeouts, "a")
	got, err := lua.RenewPermits(t.Context(), s.rdb, long, []lua.PermitsToRenew{
		{s.timeouts, ids(1, 100)}, {other.timeouts, ids(1, 2)}, {s.timeouts, nil}, {s.timeouts + "3", ids(1, 1)}, {s.timeouts, ids(100, 101)},
	})
	require.NoError(t, err)
	require.Equal(t, 105, len(got))
	for i, verdict := range got {
		want := lua.Renewed
		if i == 0 || i >= 100 && i != 103 {
			want = lua.Gone
		}
		require.Equal(t, want, verdict, "%d", i)
	}
	for n, left := range map[int]time.Duration{2: time.Hour, 4: long, 100: long} {
		p := id(n)
		got := s.look(&p).Left
		require.True(t, s.remains(got, left), "%d: %v", n, got)
	}
	require.Equal(t, lua.Forever, s.look(&p).Left)
	p = id(1)
	require.False(t, s.look(&p).Found)
}

// Each want may have its own lease. Those in line know the next permit to expire.
func TestPermitsLeasesOfWants(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(4)
	a := s.request(1)
	a.Wants, a.IDs, a.Leases = []int64{2, 9, 1, 1}, ids(1, 13), []time.Duration{time.Minute, time.Hour, 5 * time.Second, lua.Forever}
	r := s.use(a)
	require.Equal(t, []int{0, 2, 3}, r.Granted)
	require.LessOrEqual(t, r.Again, 5*time.Second+time.Millisecond)
	for i, want := range map[int]time.Duration{1: time.Minute, 2: time.Minute, 12: 5 * time.Second, 13: lua.Forever} {
		of := id(i)
		left := s.look(&of).Left
		require.True(t, left == want || want != lua.Forever && left <= want && left > want-4*time.Second, "%d has %v", i, left)
	}
	b := s.request(1)
	b.Wants, b.IDs, b.Leases = []int64{1}, ids(14, 14), []time.Duration{1, 2}
	_, err := lua.UsePermits(t.Context(), s.rdb, b)
	require.Error(t, err)
}

// A holder trusts a permit for its whole lease, so the permit exists that long, wherever the server's clock is within a millisecond.
func TestPermitsLastForAllOfTheirLease(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(1000)
	trusted := func(p lua.PermitID, lease time.Duration, call func()) {
		t.Helper()
		at, err := s.rdb.Do(t.Context(), s.rdb.B().Time().Build()).AsIntSlice()
		require.NoError(t, err)
		call()
		until := (at[0]*1_000_000 + at[1] + lease.Microseconds()) / 1000 // in this millisecond it is trusted, so it has not expired
		if ends := s.number("ZSCORE", s.timeouts, string(p[:])); ends <= until {
			t.Errorf("the permit expires at %d, and is trusted until %d", ends, until)
		}
	}
	for n := range 100 {
		p := id(n)
		trusted(p, lease, func() { s.take(1, p) })
		trusted(p, long, func() {
			_, err := lua.RenewPermits(t.Context(), s.rdb, long, []lua.PermitsToRenew{{Timeouts: s.timeouts, IDs: []lua.PermitID{p}}})
			require.NoError(t, err)
		})
		trusted(p, lease, func() {
			_, err := lua.SetPermitLease(t.Context(), s.rdb, s.semaphore(), p, lease)
			require.NoError(t, err)
		})
		require.LessOrEqual(t, s.look(&p).Left, lease)
	}
}

// Impossible requests are never sent.
func TestPermitsBadCalls(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(5000)
	for _, change := range []func(a *lua.PermitsArgs){
		func(a *lua.PermitsArgs) { a.IDs = ids(1, 2) },
		func(a *lua.PermitsArgs) { a.Wants, a.IDs = []int64{1001}, ids(1, 1001) },
		func(a *lua.PermitsArgs) { a.Release = ids(1, 1001) },
	} {
		a := s.request(1)
		change(&a)
		_, err := lua.UsePermits(t.Context(), s.rdb, a)
		require.Error(t, err)
	}
	s.take(1, ids(1, 1000)...)
	s.give(1, ids(1, 1000)...)
	s.requirePermits(5000, 0)
}
