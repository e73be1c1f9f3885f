package lua_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// most is how often a want is overtaken.
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

// The first of the wants that cannot be granted is the one that counts. A granted want ends its count.
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

// A want may be larger than there will ever be permits: they do not gather for it for ever, and a waiter looks when
// that ends.
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

// Outsiders hear how many permits are free, and only when there are outsiders and permits.
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

// Where no queue can be, all get the message, including members of a queue.
func TestSemaphoreWithoutQueue(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	everybody, first := s.listen(false), s.process(1)
	s.wait(1, []int64{1})
	a := s.request(2)
	a.Queue, a.Wants, a.Waits = "", []int64{1, 1}, true
	require.Equal(t, minute, s.use(a).Again)
	s.line(1)
	a = s.request(9)
	a.Queue, a.N = "", 1
	s.use(a)
	require.Equal(t, []string{"1"}, everybody.said())
	require.Empty(t, first.said())
	a = s.request(2)
	a.Queue, a.Wants, a.Waits = "", []int64{1, 1}, true
	require.Equal(t, []int{0}, s.use(a).Granted)
}

// Redisson's calls come in between: its permits count like ours, and there may be fewer than were reserved.
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

// A refused process learns when the counter ends, and the counter keeps its end.
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

// A queue that nobody asks in any more goes, and so does the record.
func TestSemaphoreLeavesNothing(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	s.wait(1, []int64{1})
	for _, key := range []string{s.queue, s.requests} {
		ttl := s.number("PTTL", key)
		require.True(t, ttl > 45_000 && ttl <= 61_000, "%d", ttl)
	}
}

// Keys with another content are errors, and nothing is changed.
func TestSemaphoreForeign(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(s sem){
		"hash":           func(s sem) { s.must("HSET", s.name, "a", "1") },
		"text":           func(s sem) { s.must("SET", s.name, "three") },
		"fraction":       func(s sem) { s.must("SET", s.name, "1.5") },
		"places":         func(s sem) { s.set(3); s.must("SET", s.requests, "a") },
		"queue":          func(s sem) { s.set(3); s.must("SET", s.queue, "a") },
		"queue is a map": func(s sem) { s.set(3); s.must("HSET", s.queue, "a", "b") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sharedSem(t)
			spoil(s)
			before, err := s.do("DUMP", s.name).ToString()
			require.NoError(t, err)
			for _, waits := range []bool{false, true} {
				if name == "places" && !waits { // nobody is in line
					continue
				}
				a := s.request(1)
				a.N, a.Wants, a.Waits = 1, []int64{1, 9}, waits
				_, err := lua.UseSemaphore(t.Context(), s.rdb, a)
				require.ErrorIs(t, err, lua.ErrNoCounter)
			}
			after, err := s.do("DUMP", s.name).ToString()
			require.NoError(t, err)
			require.Equal(t, before, after)
			require.Zero(t, s.number("EXISTS", s.record(1)))
		})
	}
}

// A number that Redis cannot add changes nothing.
func TestSemaphoreOverflow(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	s.must("SET", s.name, "9223372036854775807")
	a := s.request(1)
	a.N = 1
	_, err := lua.UseSemaphore(t.Context(), s.rdb, a)
	require.ErrorContains(t, err, "overflow")
	require.Zero(t, s.number("EXISTS", s.record(1)))
	s.must("SET", s.name, "3")
	require.Equal(t, lua.SemaphoreReply{Free: 4, Done: 1}, s.use(a))
}

// A server without memory gives permits back all the same.
func TestSemaphoreWithoutMemory(t *testing.T) {
	t.Parallel()
	s := newSem(t, redistest.Start(t).Client(t))
	s.set(1)
	s.wait(1, []int64{1}, 0)
	s.must("CONFIG", "SET", "maxmemory", "1")
	require.ErrorContains(t, s.do("INCRBY", s.name, "1").Error(), "OOM")
	s.release(1, 1, 1)
	s.wait(1, []int64{2})
	s.release(1, 1, 2)
	s.wait(1, []int64{2}, 0)
}

// Random calls of processes that hear their messages. Some are sent twice, cancelled or late, and some processes stop
// or die. Permits are neither lost nor made, and nobody sleeps while its permits are free.
func TestSemaphoreIsLikeItsModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := sharedSem(t)
	m := &semModel{sem: s, random: random, total: 6}
	s.set(m.total)
	for i := range 5 {
		m.processes = append(m.processes, &semProcess{id: i + 1, ear: s.process(i + 1)})
	}
	for range 800 {
		m.step()
		m.check()
	}
	// All stop asking for more, and give back: every wait is served.
	for range 1000 {
		busy := false
		for _, p := range m.processes {
			if p.held > 0 {
				m.call(p, p.held, false)
			}
			m.hear()
			busy = busy || p.held > 0 || len(p.wants) > 0
		}
		m.check()
		if !busy {
			break
		}
	}
	for _, p := range m.processes {
		require.Zero(t, p.held)
		require.Empty(t, p.wants)
	}
	require.Equal(t, m.total, s.free())
	s.line()
}

// semProcess is a process of the model.
type semProcess struct {
	id    int
	ear   *ear
	wants []int64
	held  int64
}

// semModel is the expected state of a semaphore.
type semModel struct {
	sem
	random    *rand.Rand
	processes []*semProcess
	total     int64
	late      []lua.SemaphoreArgs // copies of calls that were sent more than once
}

func (m *semModel) step() {
	p := m.processes[m.random.IntN(len(m.processes))]
	switch m.random.IntN(10) {
	case 0, 1, 2, 3: // somebody wants permits
		if len(p.wants) < 4 {
			p.wants = append(p.wants, 1+m.random.Int64N(m.total))
		}
		m.call(p, 0, m.random.IntN(4) == 0)
	case 4, 5, 6: // some are given back
		if p.held > 0 {
			m.call(p, 1+m.random.Int64N(p.held), m.random.IntN(4) == 0)
		}
	case 7: // somebody gives up
		if len(p.wants) > 0 {
			p.wants = slices.Delete(p.wants, 0, 1)
			m.call(p, 0, false)
		}
	case 8: // a single try, cancelled
		a := m.request(p.id)
		a.Wants = []int64{1 + m.random.Int64N(m.total)}
		if m.random.IntN(2) == 0 {
			m.use(a)
		}
		m.late = append(m.late, a)
		a.Cancel = true
		m.use(a)
		m.hear()
	case 9: // a copy comes late
		if len(m.late) > 0 {
			m.use(m.late[m.random.IntN(len(m.late))])
			m.hear()
		}
	}
}

// call is one request of a process: it gives n back, and wants permits for its waiters. Then notified processes look.
func (m *semModel) call(p *semProcess, n int64, twice bool) {
	m.t.Helper()
	a := m.request(p.id)
	a.N, a.Wants, a.Waits = n, slices.Clone(p.wants), true
	r := m.use(a)
	if twice {
		again := m.use(a)
		require.Equal(m.t, r.Granted, again.Granted)
		m.late = append(m.late, a)
	}
	p.held -= n
	for _, i := range slices.Backward(r.Granted) {
		p.held += p.wants[i]
		p.wants = slices.Delete(p.wants, i, i+1)
	}
	m.hear()
}

// hear makes notified processes look.
func (m *semModel) hear() {
	m.t.Helper()
	for _, p := range m.processes {
		if slices.Contains(p.ear.said(), look) {
			m.call(p, 0, false)
		}
	}
}

func (m *semModel) check() {
	m.t.Helper()
	free, held, waits := m.free(), int64(0), 0
	for _, p := range m.processes {
		held += p.held
		if len(p.wants) > 0 {
			waits++
		}
	}
	require.GreaterOrEqual(m.t, free, int64(0))
	require.Equal(m.t, m.total, free+held)
	require.Equal(m.t, waits, len(m.places()))
	if free == 0 || waits == 0 {
		return
	}
	// All notified processes have looked. So the first want of the first in line does not fit, or none would wait.
	first := m.places()[0]
	for _, p := range m.processes {
		if client(p.id) == first {
			require.Greater(m.t, p.wants[0], free, "%s sleeps while %d are free", first, free)
		}
	}
	gathers, err := m.do("HGET", m.requests, first).ToString()
	require.NoError(m.t, err)
	if overtaken := strings.Fields(gathers)[1]; len(overtaken) > 2 {
		return
	}
	for _, p := range m.processes {
		for _, want := range p.wants {
			require.Greater(m.t, want, free, "%d waits for %d, and %d are free: %s", p.id, want, free, gathers)
		}
	}
}

// semaphoreCommands are the commands that the script needs.
var semaphoreCommands = []string{
	"get", "hdel", "hmget", "hset", "incrby", "mget", "pexpire", "pttl", "publish", "pubsub|numsub", "set", "time", "zadd", "zrange", "zrem",
}

// Semaphores work for a user with these rights alone. Each right is needed.
func TestSemaphoreRights(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	s := newSem(t, srv.Client(t))
	limited := s.limited(srv.Addr(), semaphoreCommands, s.name, s.requests+"*", s.queue)
	outside := s.outsider(false)
	first := s.process(1)
	use := func(a lua.SemaphoreArgs) error {
		_, err := lua.UseSemaphore(t.Context(), limited, a)
		return err
	}
	everything := func() (errs []error) {
		s.must("DEL", s.name)
		wait, set, release, leave := s.request(1), s.request(2), s.request(3), s.request(1)
		wait.Wants, wait.Waits, leave.Waits = []int64{3, 1}, true, true
		set.Change, set.N = lua.TrySet, 1
		release.N = 1
		take := s.request(3)
		take.Wants = []int64{1}
		for _, a := range []lua.SemaphoreArgs{wait, set, release, leave, take} {
			errs = append(errs, use(a))
		}
		return errs
	}
	require.NoError(t, errors.Join(everything()...))
	require.Contains(t, first.said(), look)
	require.Equal(t, []string{"01", "02"}, outside.said())
	for _, command := range semaphoreCommands {
		s.forbid(command)
		err := errors.Join(everything()...)
		if command == "publish" || command == "pubsub|numsub" { // the change is made all the same
			require.NoError(t, err)
			said := outside.said()
			require.Equal(t, command == "publish", len(said) == 0, "%q", said)
		} else {
			require.True(t, strings.Contains(fmt.Sprint(err), "permission") || strings.Contains(fmt.Sprint(err), "run this command"), "%s: %v", command, err)
		}
		s.must("ACL", "SETUSER", "limited", "+"+command)
		require.NoError(t, use(s.request(1)))
		first.said()
		outside.said()
	}
}

// limited returns the connection of a user that may call these commands in scripts, for these keys.
func (s sem) limited(addr string, commands []string, keys ...string) rueidis.Client {
	s.t.Helper()
	rule := []string{"ACL", "SETUSER", "limited", "reset", "resetchannels", "on", ">secret", "&" + s.channel + "*", "+@connection", "+evalsha", "+eval"}
	for _, key := range keys {
		rule = append(rule, "~"+key)
	}
	for _, command := range commands {
		rule = append(rule, "+"+command)
	}
	s.must(rule...)
	return redistest.Dial(s.t, addr, func(o *rueidis.ClientOption) { o.Username, o.Password, o.DisableCache = "limited", "secret", true })
}

// forbid takes a right from that user.
func (s sem) forbid(command string) {
	s.t.Helper()
	what, _, _ := strings.Cut(command, "|")
	s.must("ACL", "SETUSER", "limited", "-"+what)
}
