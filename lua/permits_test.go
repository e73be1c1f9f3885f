package lua_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// never is the expiry time of a permit that does not expire.
const never = "922337203685477"

// permits is a semaphore whose permits expire, on a server.
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

// take takes permits with these ids at once.
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

// requirePermits checks the sums: so many are free, and so many in the zset.
func (s permits) requirePermits(free, held int64) {
	s.t.Helper()
	require.Equal(s.t, free, s.free())
	require.Equal(s.t, held, s.number("ZCARD", s.timeouts))
	require.Equal(s.t, held, s.number("ZCARD", s.slots))
}

// expire makes permits expire so long ago.
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

// A repeat answers the same and takes nothing more; released is released once.
func TestPermitsTakeAndGive(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, l lab, sharded bool) {
		s := newPermits(t, l.rdb)
		s.sharded = sharded
		s.set(5)
		a := s.request(1)
		a.Wants, a.IDs, a.Waits = []int64{2, 4, 1}, ids(1, 7), true
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

// The id itself tells a repeat from a new request, if the record is gone.
func TestPermitsRepeatWithoutRecord(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(5)
	a := s.request(1)
	a.Wants, a.IDs = []int64{2}, ids(1, 2)
	s.use(a)
	s.must("DEL", s.record(1)+":permits")
	again := s.use(a)
	require.Equal(t, []int{0}, again.Granted)
	require.Equal(t, int64(3), again.Free)
	require.Equal(t, int64(3), s.free())
	require.Equal(t, int64(2), s.number("ZCARD", s.timeouts))
	require.Equal(t, []int64{0, 1}, again.Slots)

	s.must("DEL", s.record(1)+":permits")
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

// An expired permit differs from an unknown one as long as it exists.
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

// The holder of a permit and a caller with its id may give it back in one call: only one of them counts.
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

// An expired permit goes to the next to ask, even one of Redisson's, whose ids may be texts.
func TestPermitsExpire(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.must("ZADD", s.timeouts, "12345", "0123456789abcdef0123456789abcdef")
	s.take(1, id(1))
	s.requirePermits(0, 1)

	// A refused process looks when the next permit expires.
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

// 10,000 expired permits come back in portions, and every call works.
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
	for { // somebody wants more than one portion, and asks until there are so many
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

// If nobody asks for more, a message makes those in line ask.
func TestPermitsManyExpiredWhileOthersWait(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(0)
	ear := s.process(1)
	for n := range 1200 {
		p := id(n)
		s.must("ZADD", s.timeouts, strconv.FormatInt(s.clock()+20_000, 10), string(p[:]))
	}
	a := s.request(1)
	a.Wants, a.IDs, a.Waits = []int64{1000}, ids(2001, 3000), true
	require.True(t, s.use(a).Again < 21*time.Second)
	for n := range 1200 {
		s.expire(0, id(n))
	}
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

// A slot is the lowest number that no other permit has, and below the number of all permits. That holds even when
// Redisson gives permits back, which knows no slots, or has some.
func TestPermitsSlots(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(6)
	for n := range 4 {
		require.Equal(t, []int64{int64(n)}, s.take(1, id(n)).Slots)
	}
	s.give(1, id(2), id(0))
	require.Equal(t, []int64{0, 2, 4}, s.take(1, id(10), id(11), id(12)).Slots)
	s.give(1, id(12), id(3))
	require.Equal(t, []int64{3}, s.take(1, id(13)).Slots)
	s.expire(0, id(1))
	require.Equal(t, []int64{1}, s.take(1, id(14)).Slots)

	redisson := func(removed ...int) {
		for _, n := range removed {
			p := id(n)
			require.Equal(t, int64(1), s.number("ZREM", s.timeouts, string(p[:])))
			s.must("INCRBY", s.name, "1")
		}
	}
	// held: 10=0 14=1 11=2 13=3
	redisson(10, 13)
	s.must("ZADD", s.timeouts, never, "redisson's own 1")
	s.must("DECRBY", s.name, "1")
	require.Equal(t, []int64{4, 5}, s.take(1, id(20), id(21)).Slots, "any two below 6")
	require.Equal(t, []int64{0}, s.take(1, id(22)).Slots, "those of gone permits, when they are needed")
	require.Zero(t, s.free())
	require.Equal(t, int64(5), s.number("ZCARD", s.slots))
}

// Random permits of this library and Redisson's: slots are never shared, and below the number of permits.
func TestPermitsSlotsAreLikeTheirModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := sharedPermits(t)
	const total = 20
	s.set(total)
	held, strangers := make(map[lua.PermitID]int64), make(map[lua.PermitID]bool)
	next := 0
	pick := func() (p lua.PermitID) {
		n := random.IntN(len(held))
		for p = range held {
			if n == 0 {
				break
			}
			n--
		}
		return p
	}
	for range 600 {
		free := total - len(held) - len(strangers)
		switch what := random.IntN(6); {
		case what < 3 && free > 0:
			n := 1 + random.IntN(min(free, 3))
			a := s.request(1)
			a.Wants, a.IDs = []int64{int64(n)}, ids(next, next+n-1)
			next += n
			r := s.use(a)
			require.Equal(t, []int{0}, r.Granted)
			for i, slot := range r.Slots {
				require.True(t, slot >= 0 && slot < total, "%d", slot)
				for other, taken := range held {
					require.NotEqual(t, taken, slot, "%v has it", other)
				}
				held[a.IDs[i]] = slot
			}
		case what == 3 && len(held) > 0: // one is given back, or expires
			p := pick()
			if random.IntN(2) == 0 {
				require.Equal(t, []lua.Given{lua.PermitReleased}, s.give(1, p).Released)
			} else {
				s.expire(0, p)
			}
			delete(held, p)
		case what == 4 && len(held) > 0: // Redisson reclaims one
			p := pick()
			s.must("ZREM", s.timeouts, string(p[:]))
			s.must("INCRBY", s.name, "1")
			delete(held, p)
		case what == 5: // Redisson takes or gives one
			if len(strangers) > 0 && random.IntN(2) == 0 {
				for p := range strangers {
					s.must("ZREM", s.timeouts, string(p[:]))
					s.must("INCRBY", s.name, "1")
					delete(strangers, p)
					break
				}
			} else if s.free() > 0 {
				p := id(1_000_000 + next)
				next++
				s.must("ZADD", s.timeouts, never, string(p[:]))
				s.must("DECRBY", s.name, "1")
				strangers[p] = true
			}
		}
		info := s.look(nil)
		require.Equal(t, int64(len(held)+len(strangers)), info.Held)
		require.Equal(t, int64(total), info.Free+info.Held)
	}
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

// Added permits go to waiters, and a want beyond all permits makes nobody wait for ever.
func TestPermitsWakes(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	ears := []*ear{s.process(1), s.process(2), s.process(3)}
	s.set(1)
	s.take(9, id(1))
	a := s.request(1)
	a.Wants, a.IDs, a.Waits = []int64{3}, ids(10, 12), true
	s.use(a)
	for n := range 3 * most {
		s.give(9, id(1))
		require.Equal(t, []int{0}, s.wait(2, id(20)).Granted, "%d", n)
		s.give(2, id(20))
		require.Equal(t, []int{0}, s.wait(9, id(1)).Granted)
	}
	// A want that can be granted later is overtaken 16 times, beside or behind such a one.
	for _, i := range []int{1, 3} {
		s.must("SET", s.name, "2")
		a = s.request(i)
		a.Wants, a.IDs, a.Waits = []int64{4, 3}, ids(10*i, 10*i+6), true
		if i == 3 {
			a.Wants, a.IDs = []int64{3}, ids(30, 32)
		}
		s.use(a)
		for range most {
			b := s.request(2)
			b.Wants, b.IDs = []int64{1}, ids(20, 20)
			require.Equal(t, []int{0}, s.use(b).Granted)
			s.give(2, id(20))
		}
		b := s.request(2)
		b.Wants, b.IDs = []int64{1}, ids(20, 20)
		require.Empty(t, s.use(b).Granted)
		a = s.request(i)
		a.Waits = true
		s.use(a)
		a = s.request(1)
		a.Wants, a.IDs, a.Waits = []int64{4}, ids(10, 13), true
		s.use(a)
	}
	a = s.request(1)
	a.Wants, a.IDs, a.Waits = []int64{3}, ids(10, 12), true
	s.use(a)
	s.must("SET", s.name, "0")
	heard(t, ears, "", "", "")

	s.wait(3, id(30))
	total := s.request(9)
	total.Change, total.N = lua.SetTotal, 4
	s.use(total)
	heard(t, ears, look, "", "")
	s.give(9, id(1))
	heard(t, ears, "", "", look)
}

// Waiters that would sleep longer notice a permit with a short lease, and a lease that is shortened.
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
	heardAll(t, ears, false, "", "", "")
	a := s.request(9)
	a.Wants, a.IDs, a.Lease = []int64{1}, ids(2, 2), 10*time.Second
	require.Equal(t, []int{0}, s.use(a).Granted)
	heardAll(t, ears, false, "", "? 10001", "? 10001")

	held, err := lua.SetPermitLease(t.Context(), s.rdb, s.semaphore(), id(1), 3*time.Second)
	require.NoError(t, err)
	require.True(t, held)
	heardAll(t, ears, false, "", "? 3001", "? 3001")
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
	s.line(1, 2, 3)
}

// Renewal never shortens, and revives nothing.
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

// If the counter expires, so do the permits.
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

func TestPermitsForeign(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(s permits){
		"hash":     func(s permits) { s.must("HSET", s.name, "a", "1") },
		"text":     func(s permits) { s.must("SET", s.name, "three") },
		"places":   func(s permits) { s.set(3); s.must("SET", s.requests, "a") },
		"queue":    func(s permits) { s.set(3); s.must("SET", s.queue, "a") },
		"timeouts": func(s permits) { s.set(3); s.must("SET", s.timeouts, "a") },
		"slots":    func(s permits) { s.set(3); s.must("SET", s.slots, "a") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sharedPermits(t)
			spoil(s)
			before, err := s.do("DUMP", s.name).ToString()
			require.NoError(t, err)
			a := s.request(1)
			a.N, a.Wants, a.IDs, a.Release, a.Waits = 1, []int64{1}, ids(1, 1), ids(2, 2), true
			_, err = lua.UsePermits(t.Context(), s.rdb, a)
			require.ErrorIs(t, err, lua.ErrNoCounter)
			after, err := s.do("DUMP", s.name).ToString()
			require.NoError(t, err)
			require.Equal(t, before, after)
		})
	}
	s := sharedPermits(t)
	s.must("SET", s.timeouts, "a")
	_, err := lua.LookPermits(t.Context(), s.rdb, s.semaphore(), nil)
	require.ErrorIs(t, err, lua.ErrNoCounter)
	_, err = lua.SetPermitLease(t.Context(), s.rdb, s.semaphore(), id(1), lease)
	require.ErrorIs(t, err, lua.ErrNoCounter)
}

// Impossible requests are not sent.
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

// The commands that scripts of permits need beside those of semaphores.
var permitsCommands = append([]string{"zcard", "zcount", "zinterstore", "zmscore", "zrangebyscore", "zscore"}, semaphoreCommands...)

func TestPermitsRights(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	s := newPermits(t, srv.Client(t))
	limited := s.limited(srv.Addr(), permitsCommands, s.name, s.requests+"*", s.queue, s.timeouts, s.slots)
	everything := func() error {
		s.must("DEL", s.name)
		s.must("DEL", s.timeouts)
		p := id(99)
		s.must("ZADD", s.slots, "1", string(p[:]))
		total, take, give := s.request(1), s.request(1), s.request(1)
		total.Change, total.N = lua.SetTotal, 2
		take.Wants, take.IDs, take.Waits = []int64{1, 1, 1}, ids(1, 3), true
		give.Release, give.Waits = ids(1, 2), true
		var errs []error
		use := func(a lua.PermitsArgs) {
			_, err := lua.UsePermits(t.Context(), limited, a)
			errs = append(errs, err)
		}
		use(total)
		use(take)
		s.expire(0, id(2))
		_, err1 := lua.SetPermitLease(t.Context(), limited, s.semaphore(), id(1), lease)
		_, err2 := lua.RenewPermits(t.Context(), limited, lease, []lua.PermitsToRenew{{s.timeouts, ids(1, 1)}})
		_, err3 := lua.LookPermits(t.Context(), limited, s.semaphore(), nil)
		use(give)
		return errors.Join(append(errs, err1, err2, err3)...)
	}
	require.NoError(t, everything())
	for _, command := range permitsCommands[:6] {
		s.forbid(command)
		err := fmt.Sprint(everything())
		require.True(t, strings.Contains(err, "permission") || strings.Contains(err, "run this command"), "%s: %v", command, err)
		s.must("ACL", "SETUSER", "limited", "+"+command)
		require.NoError(t, everything())
	}
}

// Random calls, sent twice, cancelled or late, with permits that expire: each permit has one owner, and the sum is
// right.
func TestPermitsAreLikeTheirModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := sharedPermits(t)
	const total = 7
	s.set(total)
	ears := []*ear{s.process(1), s.process(2), s.process(3)}
	held := make(map[lua.PermitID]bool)
	var late []lua.PermitsArgs
	next := 0
	owned := func() (all []lua.PermitID) {
		for p := range held {
			all = append(all, p)
		}
		slices.SortFunc(all, func(a, b lua.PermitID) int { return strings.Compare(a.String(), b.String()) })
		return all
	}
	for range 600 {
		a := s.request(1 + random.IntN(3))
		if all := owned(); len(all) > 0 && random.IntN(2) == 0 {
			random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			a.Release = all[:1+random.IntN(len(all))]
		}
		for range random.IntN(3) {
			a.Wants = append(a.Wants, 1+random.Int64N(4))
			n := int(a.Wants[len(a.Wants)-1])
			a.IDs = append(a.IDs, ids(next, next+n-1)...)
			next += n
		}
		a.Waits = random.IntN(2) == 0
		ran, cancelled := random.IntN(5) > 0, random.IntN(4) == 0
		var r lua.PermitsReply
		if ran || !cancelled {
			r = s.use(a)
		}
		if cancelled {
			a.Cancel = true
			r = s.use(a)
			a.Cancel = false
		}
		if random.IntN(3) == 0 {
			require.Equal(t, r.Granted, s.use(a).Granted)
			late = append(late, a)
		}
		for i, p := range a.Release {
			require.Equal(t, lua.PermitReleased, r.Released[i])
			delete(held, p)
		}
		at, slot := 0, 0
		for i, n := range a.Wants {
			if slices.Contains(r.Granted, i) {
				for _, p := range a.IDs[at : at+int(n)] {
					require.False(t, held[p])
					held[p] = true
					slot++
				}
			}
			at += int(n)
		}
		require.Equal(t, len(r.Slots), slot)
		if all := owned(); len(all) > 0 && random.IntN(5) == 0 {
			s.expire(0, all[0])
			delete(held, all[0])
		}
		if len(late) > 0 && random.IntN(3) == 0 {
			s.use(late[random.IntN(len(late))])
		}
		info := s.look(nil)
		require.Equal(t, int64(len(held)), info.Held)
		require.Equal(t, int64(total), info.Free+info.Held)
		require.GreaterOrEqual(t, s.free(), int64(0))
		for _, e := range ears {
			e.said()
		}
	}
}

// Each want may have a lease of its own; those in line know the next to expire.
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

// A holder trusts a permit for all of its lease. So it exists that long, whatever part of a millisecond the server's
// clock has begun.
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
