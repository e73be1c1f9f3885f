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

// Processes wait for a permit each, or for two, and others' calls give them theirs by messages, of which some are lost, or come too late. Some
// calls are sent twice or cancelled. Each permit has one owner, a waiter that has left gets none, and nobody sleeps while one is free.
func TestPermitsByMessageAreLikeTheirModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := sharedPermits(t)
	m := &givenModel{permits: s, random: rand.New(rand.NewPCG(seed, 0)), total: 3}
	s.set(m.total)
	for i := range 6 {
		m.processes = append(m.processes, &givenProcess{i: i + 1, ear: s.process(i + 1)})
	}
	for range 2000 {
		m.step()
		m.check()
	}
	require.Greater(t, m.taken, 100)
	for _, p := range m.processes { // each has its turn, and leaves nothing
		for len(p.held) > 0 || len(p.wants) > 0 {
			m.expireLost()
			if len(p.wants) > 0 {
				m.call(p, false)
			}
			if len(p.held) == 0 {
				p.wants = nil
				m.call(p, false)
			}
			m.give(p)
		}
	}
	m.expireLost()
	m.check()
	s.requirePermits(m.total, 0)
	s.line()
}

// givenProcess is a process of the model.
type givenProcess struct {
	i     int
	ear   *ear
	wants []lua.PermitID // of its waiters, for one permit each
	back  []lua.PermitID // of waiters that left, to be given back by the next call
	held  []lua.PermitID
	deaf  bool // it has lost a message: it has no place, and asks after a minute at the latest
}

// givenModel is the expected state of a semaphore whose permits are given by messages.
type givenModel struct {
	permits
	random    *rand.Rand
	processes []*givenProcess
	total     int64
	next      int
	lost      []lua.PermitID // given by messages that were lost, and not asked for yet
	taken     int            // by messages
}

func (m *givenModel) step() {
	p := m.processes[m.random.IntN(len(m.processes))]
	switch m.random.IntN(10) {
	case 0, 1, 2, 3:
		if len(p.wants) == 0 || len(p.wants) == 1 && m.random.IntN(10) == 0 {
			m.next++
			p.wants = append(p.wants, id(m.next))
		}
		m.call(p, m.random.IntN(4) == 0)
	case 4, 5, 6:
		m.give(p)
	case 7: // a waiter leaves
		if n := len(p.wants); n > 0 {
			at := m.random.IntN(n)
			p.back = append(p.back, p.wants[at])
			p.wants = slices.Delete(p.wants, at, at+1)
			m.call(p, m.random.IntN(4) == 0)
		}
	case 8: // a call is cancelled, whether it ran or not: all its waiters leave
		a := m.args(p)
		if m.random.IntN(2) == 0 {
			m.use(a)
		}
		a.Cancel = true
		m.use(a)
		m.forget(append(p.wants, p.back...)...)
		p.wants, p.back = nil, nil
		m.hear()
	case 9:
		m.expireLost()
		m.call(p, false)
	}
}

func (m *givenModel) args(p *givenProcess) lua.PermitsArgs {
	a := m.request(p.i)
	a.Waits, a.Offers, a.Release, a.IDs = true, len(p.wants) == 1, slices.Clone(p.back), slices.Clone(p.wants)
	for range p.wants {
		a.Wants = append(a.Wants, 1)
	}
	return a
}

// call is one request of a process for its waiters.
func (m *givenModel) call(p *givenProcess, twice bool) {
	m.t.Helper()
	a := m.args(p)
	r := m.use(a)
	p.deaf = false
	if twice {
		require.Equal(m.t, r.Granted, m.use(a).Granted)
	}
	for _, i := range slices.Backward(r.Granted) {
		p.held = append(p.held, p.wants[i])
		p.wants = slices.Delete(p.wants, i, i+1)
	}
	for i, given := range r.Released {
		require.True(m.t, given == lua.PermitUnknown || slices.Contains(m.lost, p.back[i]), "it was not given")
	}
	m.forget(append(slices.Clone(p.held), p.back...)...)
	p.back = nil
	m.hear()
}

// forget notes that these are not lost any more.
func (m *givenModel) forget(ids ...lua.PermitID) {
	m.lost = slices.DeleteFunc(m.lost, func(p lua.PermitID) bool { return slices.Contains(ids, p) })
}

func (m *givenModel) give(p *givenProcess) {
	m.t.Helper()
	if len(p.held) > 0 {
		require.Equal(m.t, []lua.Given{lua.PermitReleased}, m.permits.give(p.i, p.held[0]).Released)
		p.held = p.held[1:]
		m.hear()
	}
}

// expireLost ends the leases of permits of which nobody knows.
func (m *givenModel) expireLost() {
	m.expire(0, m.lost...)
	m.lost = nil
}

// hear makes processes take what they were given, or look. Some messages are lost.
func (m *givenModel) hear() {
	m.t.Helper()
	for _, p := range m.processes {
		for _, said := range p.ear.said() {
			owner, _, _ := strings.Cut(said, " ")
			at := slices.IndexFunc(p.wants, func(id lua.PermitID) bool { return id.String() == owner })
			switch {
			case said == look:
				m.call(p, false)
			case owner == "?":
			case at < 0:
				m.t.Fatalf("%d gets %q and wants %v", p.i, said, p.wants)
			case m.random.IntN(4) == 0:
				m.lost, p.deaf = append(m.lost, p.wants[at]), true
			default:
				m.taken++
				p.held = append(p.held, p.wants[at])
				p.wants = slices.Delete(p.wants, at, at+1)
			}
		}
	}
}

func (m *givenModel) check() {
	m.t.Helper()
	info, seen, waits := m.look(nil), make(map[lua.PermitID]bool), 0
	for _, p := range m.processes {
		for _, id := range p.held {
			require.False(m.t, seen[id], "two owners")
			require.True(m.t, m.look(&id).Found)
			seen[id] = true
		}
		if len(p.wants) > 0 && !p.deaf {
			waits++
		}
	}
	for _, id := range m.lost {
		require.False(m.t, seen[id], "it is not lost")
	}
	require.Equal(m.t, int64(len(seen)+len(m.lost)), info.Held)
	require.Equal(m.t, m.total, info.Free+info.Held)
	if info.Free > 0 && info.Free == m.free() { // otherwise some have expired, and the next call finds them
		require.Zero(m.t, waits, "they sleep while %d are free", info.Free)
	}
}
