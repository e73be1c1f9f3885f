package lua_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// keep is how long permits are reserved for a notified process: longer than any test takes.
const keep = 50 * time.Second

// minute is how long processes sleep without messages.
const minute = time.Minute

// sem is a semaphore on a server.
type sem struct {
	lab
	requests string
	sharded  bool
	numbers  map[int]int64 // of the last request of each process
}

func newSem(t *testing.T, rdb rueidis.Client) sem {
	t.Helper()
	l := newLab(t, rdb)
	return sem{lab: l, requests: "requests:{" + l.name + "}", numbers: make(map[int]int64)}
}

func sharedSem(t *testing.T) sem {
	t.Helper()
	return newSem(t, redistest.Dial(t, redistest.Shared(t)))
}

// request returns a new request of process i.
func (s sem) request(i int) lua.SemaphoreArgs {
	s.numbers[i]++
	return lua.SemaphoreArgs{
		Semaphore: lua.Semaphore{
			Name: s.name, Requests: s.requests, Queue: s.queue, Publish: lua.Publish{Name: s.channel, Sharded: s.sharded}, Client: client(i), Keep: keep,
		},
		Request: s.numbers[i],
	}
}

func (s sem) use(a lua.SemaphoreArgs) lua.SemaphoreReply {
	s.t.Helper()
	r, err := lua.UseSemaphore(s.t.Context(), s.rdb, a)
	require.NoError(s.t, err)
	return r
}

// wait asks for permits for a process's waiters, and requires which of them are granted.
func (s sem) wait(i int, wants []int64, granted ...int) {
	s.t.Helper()
	s.asks(i, wants, true, granted...)
}

// try asks once.
func (s sem) try(i int, wants []int64, granted ...int) {
	s.t.Helper()
	s.asks(i, wants, false, granted...)
}

func (s sem) asks(i int, wants []int64, waits bool, granted ...int) {
	s.t.Helper()
	a := s.request(i)
	a.Wants, a.Waits = wants, waits
	r := s.use(a)
	require.True(s.t, slices.Equal(granted, r.Granted), "%v of %v are granted, want %v", r.Granted, wants, granted)
	require.Equal(s.t, len(granted) < len(wants), r.Again > 0)
}

// release gives permits back and requires the number free afterwards.
func (s sem) release(i int, n, free int64) {
	s.t.Helper()
	a := s.request(i)
	a.N = n
	require.Equal(s.t, lua.SemaphoreReply{Free: free, Done: 1}, s.use(a))
	require.Equal(s.t, free, s.free())
}

func (s sem) set(n int64) { s.t.Helper(); s.must("SET", s.name, strconv.FormatInt(n, 10)) }

func (s sem) free() int64 {
	s.t.Helper()
	n, _, err := lua.FreePermits(s.t.Context(), s.rdb, s.name)
	require.NoError(s.t, err)
	return n
}

// process listens to the messages for a process.
func (s sem) process(i int) *ear {
	s.t.Helper()
	return s.lab.process(i, s.sharded)
}

// line requires these processes in the queue.
func (s sem) line(want ...int) {
	s.t.Helper()
	var clients []string
	for _, i := range want {
		clients = append(clients, client(i))
	}
	s.requirePlaces(clients...)
	n, err := s.do("HKEYS", s.requests).AsStrSlice()
	require.NoError(s.t, err)
	require.Equal(s.t, len(want), len(n), "exactly these processes have a field")
	require.Equal(s.t, int64(len(want)), s.number("ZCARD", s.ends()), "and an end")
}

// heard requires these messages to the processes, in order. "" stands for no message, or a hint to look later.
func heard(t *testing.T, ears []*ear, want ...string) {
	t.Helper()
	heardAll(t, ears, true, want...)
}

func heardAll(t *testing.T, ears []*ear, now bool, want ...string) {
	t.Helper()
	for i, e := range ears {
		said := slices.DeleteFunc(e.said(), func(m string) bool { return now && m != look && strings.HasPrefix(m, "? ") })
		require.Equal(t, want[i], strings.Join(said, ", "), "process %d", i+1)
	}
}

const look = "? 0"

// later advances the time, by a millisecond more: all places end earlier. Who was called has half a millisecond more than its time, and all
// of this may take less.
func (s sem) later(by time.Duration) {
	s.t.Helper()
	by += time.Millisecond
	const script = `
		for _, client in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
			redis.call('ZINCRBY', KEYS[1], -ARGV[1], client)
		end`
	err := s.do("EVAL", script, "1", s.ends(), strconv.FormatInt(by.Milliseconds(), 10)).Error()
	require.True(s.t, rueidis.IsRedisNil(err), "%v", err)
}

// ends returns the key of the times at which places end.
func (s sem) ends() string { return s.queue + ":ends" }

// A release notifies exactly the waiters for which permits are free, in order, and nobody behind one that wants more.
func TestSemaphoreWakesWhoFits(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, l lab, sharded bool) {
		s := newSem(t, l.rdb)
		s.sharded = sharded
		var ears []*ear
		for i := 1; i <= 5; i++ {
			ears = append(ears, s.process(i))
		}
		s.wait(1, []int64{2, 2})
		s.wait(2, []int64{5})
		s.wait(3, []int64{1})
		s.wait(4, []int64{1})
		s.wait(5, []int64{1})
		s.release(9, 4, 4)
		heardAll(t, ears, false, look, "", "", "", s.lookIn(keep+time.Millisecond))
		s.release(9, 1, 5)
		heardAll(t, ears, false, "", s.lookIn(keep/2), "", "", "")

		// Nobody else gets the permits, and none behind the large request.
		s.try(9, []int64{1})
		s.wait(5, []int64{1})
		s.line(1, 2, 3, 4, 5)
		s.wait(1, []int64{2, 2}, 0, 1)
		s.line(2, 3, 4, 5)
		s.wait(3, []int64{1})
		s.release(9, 4, 5)
		heard(t, ears, "", look, "", "", "")
		s.wait(2, []int64{5}, 0)
		s.line(3, 4, 5)
		s.release(9, 2, 2)
		heard(t, ears, "", "", look, look, "")
		s.wait(4, []int64{1}, 0)
		s.wait(3, []int64{1}, 0)
		s.line(5)
		require.Zero(t, s.free())
	})
}

// lookIn is the message that makes a process in line look after d.
func (s sem) lookIn(d time.Duration) string { return fmt.Sprintf("? %d", d.Milliseconds()) }

// If the queue alone is lost, the next process in line makes those that were there ask again, or each newcomer would come before them.
func TestSemaphoreQueueIsLostBeforeNewcomers(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	s.set(0)
	ears := []*ear{s.process(1), s.process(2), s.process(3)}
	s.wait(1, []int64{1})
	s.wait(2, []int64{1})
	s.wait(4, []int64{1}) // it does not listen
	s.must("DEL", s.queue)
	s.wait(3, []int64{1})
	heard(t, ears, look, look, "")
	s.wait(1, []int64{1})
	s.wait(2, []int64{1})
	s.line(3, 1, 2)
	heard(t, ears, "", "", "")
	require.Equal(t, int64(3), s.number("ZCARD", s.ends()))
	require.Equal(t, int64(3), s.number("HLEN", s.requests))
}

// However many processes are stopped, and wherever they are in line, each costs the others one reservation time at most.
func TestSemaphoreManyStopped(t *testing.T) {
	t.Parallel()
	for _, before := range []int{1, 2, 3, 5, 8, 12, 20} {
		for _, behind := range []int{0, before} {
			t.Run(fmt.Sprintf("%d, %d", before, behind), func(t *testing.T) {
				t.Parallel()
				b := &bed{sem: sharedSem(t), began: time.Now()}
				b.set(0)
				for i := range before + 1 + behind {
					p := &sleeper{id: i + 1, ear: b.process(i + 1), wants: []int64{int64(1 + i%3)}, stopped: i != before}
					b.all = append(b.all, p)
					b.ask(p, 0)
				}
				a := b.request(99)
				a.Keep, a.N = sleepKeep, 2
				sent := b.now()
				b.use(a)
				b.hear(sent)
				live, began := b.all[before], b.passed
				live.wants[0] = min(live.wants[0], 2)
				for len(live.wants) > 0 && b.passed < began+5*time.Minute {
					b.pass(max(live.due-b.now(), time.Millisecond)) // nothing happens before
				}
				bound := time.Duration(before+behind) * (sleepKeep + 100*time.Millisecond) // see late in line.lua
				require.True(t, b.passed-began <= bound, "%v", b.passed-began)
			})
		}
	}
}

// A stopped process that wants more than there is blocks the others for a reservation time. While it lives, it shows that.
func TestSemaphoreStoppedBeforeOthers(t *testing.T) {
	t.Parallel()
	b := &bed{sem: sharedSem(t), began: time.Now()}
	b.set(1)
	large := &sleeper{id: 1, ear: b.process(1), wants: []int64{5}}
	small := &sleeper{id: 2, ear: b.process(2), wants: []int64{1}}
	b.all = []*sleeper{large, small}
	b.ask(large, 0)
	require.True(t, large.due >= minute, "it is in nobody's way")
	b.pass(5 * time.Second)
	b.ask(small, 0)
	b.pass(time.Minute)
	b.line(1, 2)
	require.NotEmpty(t, small.wants, "first come, first served")
	large.stopped = true
	b.pass(sleepKeep)
	require.Empty(t, small.wants)
	b.line()
}

// In a busy line those that have joined since ask in time, so few messages are needed for that.
func TestSemaphoreLookersComeAlong(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	const n, rounds = 10, 200
	var ears []*ear
	for i := range n {
		ears = append(ears, s.process(i+1))
		s.wait(i+1, []int64{1})
	}
	later := 0
	for round := range rounds {
		s.release(9, 1, 1)
		first := round % n
		for i, e := range ears {
			for _, m := range e.said() {
				require.Equal(t, m == look, i == first)
				if m != look {
					later++
				}
			}
		}
		s.wait(first+1, []int64{1}, 0)
		s.wait(first+1, []int64{1})
	}
	require.LessOrEqual(t, later, rounds/(n-2))
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

// A server without memory still accepts returned permits.
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

// sleeper is a process that asks after a message, or at its own time.
type sleeper struct {
	id      int
	ear     *ear
	wants   []int64
	due     time.Duration // when it asks
	late    time.Duration // how much later than the script that named the time, at most
	stopped bool
}

// bed holds the sleepers and their clock.
type bed struct {
	sem
	all  []*sleeper
	held int64

	began  time.Time
	passed time.Duration // by pass
}

// now is the time on the clock of the scripts: the machine's time passes, too.
func (b *bed) now() time.Duration { return time.Since(b.began) + b.passed }

const sleepKeep = 2 * time.Second // how long permits are reserved here

// ask is a request of a process, and its answer.
func (b *bed) ask(p *sleeper, gives int64) {
	b.t.Helper()
	a := b.request(p.id)
	a.Keep, a.N, a.Wants, a.Waits = sleepKeep, gives, slices.Clone(p.wants), true
	sent := b.now()
	r := b.use(a)
	b.held -= gives
	for _, i := range slices.Backward(r.Granted) {
		b.held += p.wants[i]
		p.wants = slices.Delete(p.wants, i, i+1)
	}
	p.due, p.late = b.now()+r.Again, b.now()-sent
	b.hear(sent)
}

// hear makes processes read the messages of a call.
func (b *bed) hear(sent time.Duration) {
	b.t.Helper()
	for _, p := range b.all {
		for _, said := range p.ear.said() {
			ms, err := strconv.Atoi(strings.TrimPrefix(said, "? "))
			require.NoError(b.t, err)
			if due := b.now() + time.Duration(ms)*time.Millisecond; due < p.due {
				p.due, p.late = due, b.now()-sent
			}
		}
	}
}

// pass advances the clock: each live process that is due asks.
func (b *bed) pass(d time.Duration) {
	b.t.Helper()
	for end := b.now() + d; ; {
		until := max(end, b.now())
		var next *sleeper
		for _, p := range b.all {
			if !p.stopped && len(p.wants) > 0 && p.due-p.late <= until && (next == nil || p.due < next.due) {
				next = p
			}
		}
		to := end
		if next != nil {
			to = next.due
		}
		if by := (to - b.now() + time.Millisecond - 1).Truncate(time.Millisecond); by > 0 { // not too early
			b.later(by)
			b.passed += by
		}
		if next == nil {
			return
		}
		b.ask(next, 0)
	}
}

// awake requires that no live process sleeps while the permits for its first want are free, unless they gather for a process before it.
func (b *bed) awake() {
	b.t.Helper()
	free := b.free()
	require.Equal(b.t, int64(6), free+b.held)
	// The first in line wants more than is free, if it lives.
	for _, first := range b.places() {
		for _, p := range b.all {
			if client(p.id) == first && !p.stopped {
				require.Greater(b.t, p.wants[0], free, "%d wants %v, %d are free, at %v, due %v", p.id, p.wants, free, b.now(), p.due)
				return
			}
		}
	}
}

// No process oversleeps a release, even if some are stopped: each costs the others one reservation time.
func TestSemaphoreNobodySleeps(t *testing.T) {
	t.Parallel()
	for stopped, within := range map[int]time.Duration{0: time.Millisecond, 1: sleepKeep + time.Second, 4: 4*sleepKeep + time.Second} {
		t.Run(fmt.Sprint(stopped), func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			b := &bed{sem: sharedSem(t), began: time.Now()}
			b.set(6)
			for i := range 6 {
				b.all = append(b.all, &sleeper{id: i + 1, ear: b.process(i + 1)})
			}
			for range 60 {
				for range 8 {
					p := b.all[random.IntN(len(b.all))]
					switch what := random.IntN(8); {
					case p.stopped:
					case what < 4 && len(p.wants) < 3:
						p.wants = append(p.wants, 1+random.Int64N(4))
						b.ask(p, 0)
					case what < 6 && b.held > 0:
						b.ask(p, 1+random.Int64N(b.held))
					case what == 6 && len(p.wants) > 0:
						p.wants = p.wants[1:]
						b.ask(p, 0)
					default:
						b.pass(time.Duration(random.IntN(1500)) * time.Millisecond)
					}
					if random.IntN(4) == 0 { // some others are stopped now
						for _, p := range b.all {
							p.stopped = false
						}
						for _, i := range random.Perm(len(b.all))[:stopped] {
							b.all[i].stopped = true
						}
					}
				}
				b.pass(within)
				b.awake()
			}
		})
	}
}
