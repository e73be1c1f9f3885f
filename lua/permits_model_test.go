package lua_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// A slot is the lowest number that no other permit has, below the number of all permits. This holds even if Redisson, which knows no slots,
// gives permits back or holds some.
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

// In random mixes of permits of this library and of Redisson, slots are never shared and stay below the number of permits.
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
			a.Lease = time.Hour // none ends by itself
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

// Random calls, sent twice, cancelled or late, on permits that expire: each permit has a single owner, and the sum stays right.
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
		a.Lease = time.Hour // none ends by itself
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
