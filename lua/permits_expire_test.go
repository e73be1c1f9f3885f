package lua_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// An expired permit differs from an unknown permit while its record exists.
func TestPermitsReleaseOfExpired(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(2)
	s.take(1, id(1), id(2))
	s.expire(0, id(1))
	p := id(1)
	info := s.look(&p)
	require.Equal(t, lua.PermitsInfo{Exists: true, Free: 1, Held: 1}, info)
	require.Equal(t, []lua.Given{lua.PermitExpired, lua.PermitReleased}, s.give(1, id(1), id(2)).Released)
	require.Equal(t, []lua.Given{lua.PermitUnknown}, s.give(1, id(1)).Released)
	s.requirePermits(2, 0)
}

// An expired permit goes to the next process that asks, even a Redisson process, whose ids may be texts.
func TestPermitsExpire(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.must("ZADD", s.timeouts, "12345", "0123456789abcdef0123456789abcdef")
	s.take(1, id(1))
	s.requirePermits(0, 1)

	// A refused process looks again when the next permit expires.
	s.expire(-20*time.Second, id(1))
	again := s.wait(2, id(2)).Again
	require.True(t, again > 5*time.Second && again <= 20*time.Second, "%v", again)
	s.expire(0, id(1))
	r := s.wait(2, id(2))
	require.Equal(t, []int{0}, r.Granted)
	require.Equal(t, []int64{0}, r.Slots)
	s.requirePermits(0, 1)
	s.line()

	// If permits do not expire, waiters look once a minute.
	s.must("ZADD", s.timeouts, never, "0123456789abcdef")
	p := id(2)
	_, err := lua.SetPermitLease(t.Context(), s.rdb, s.semaphore(), p, lua.Forever)
	require.NoError(t, err)
	require.Equal(t, minute, s.wait(3, id(3)).Again)
	require.Equal(t, lua.Forever, s.look(&p).Left)
	require.True(t, s.look(&p).Found)
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

// Waiters that would sleep longer notice a permit with a short lease, and a shortened lease.
func TestPermitsShortLeaseIsLookedAt(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	ears := []*ear{s.process(1), s.process(2), s.process(3)}
	s.set(2)
	s.take(9, id(1))
	for i := 1; i <= 3; i++ {
		a := s.request(i)
		a.Wants, a.IDs, a.Waits = []int64{2}, ids(10*i, 10*i+1), true
		s.use(a)
	}
	heardAll(t, ears, false, s.lookIn(keep/2), "", "") // it keeps the others from the permit that is free
	a := s.request(1)
	a.Wants, a.IDs, a.Lease, a.Waits = []int64{1, 2}, ids(2, 4), 10*time.Second, true
	require.Equal(t, []int{0}, s.use(a).Granted)
	heardAll(t, ears, false, "", "", "") // it asks then itself

	held, err := lua.SetPermitLease(t.Context(), s.rdb, s.semaphore(), id(1), 3*time.Second)
	require.NoError(t, err)
	require.True(t, held)
	heardAll(t, ears, false, "", "", "? 3001")
	held, err = lua.SetPermitLease(t.Context(), s.rdb, s.semaphore(), id(1), time.Hour)
	require.NoError(t, err)
	require.True(t, held)
	heardAll(t, ears, false, "", "", "")
	held, err = lua.SetPermitLease(t.Context(), s.rdb, s.semaphore(), id(77), time.Hour)
	require.NoError(t, err)
	require.False(t, held)
	s.expire(0, id(1))
	held, err = lua.SetPermitLease(t.Context(), s.rdb, s.semaphore(), id(1), time.Hour)
	require.NoError(t, err)
	require.False(t, held)
	s.line(2, 3, 1)
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
		require.True(t, got <= left && got > left-slack, "%d: %v", n, got)
	}
	require.Equal(t, lua.Forever, s.look(&p).Left)
	p = id(1)
	require.False(t, s.look(&p).Found)
}

// If the counter expires, the permits expire with it.
func TestPermitsOfACounterThatExpires(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.must("SET", s.name, "3", "PX", "20000")
	s.take(1, id(1))
	for _, key := range []string{s.name, s.timeouts, s.slots} {
		ttl := s.number("PTTL", key)
		require.True(t, ttl > 5000 && ttl <= 20_000, "%s %d", key, ttl)
	}
	r := s.request(2)
	r.Wants, r.IDs = []int64{3}, ids(2, 4)
	again := s.use(r).Again
	require.True(t, again > 5*time.Second && again <= 20_001*time.Millisecond, "%v", again)
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
