package lua_test

import (
	"fmt"
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

// record returns the key of the outcome of process i's last request.
func (s sem) record(i int) string { return s.requests + ":" + client(i) }

// wait asks for permits for a process's waiters, and requires which of them are granted.
func (s sem) wait(i int, wants []int64, granted ...int) lua.SemaphoreReply {
	s.t.Helper()
	return s.asks(i, wants, true, granted...)
}

// try asks once.
func (s sem) try(i int, wants []int64, granted ...int) {
	s.t.Helper()
	s.asks(i, wants, false, granted...)
}

func (s sem) asks(i int, wants []int64, waits bool, granted ...int) lua.SemaphoreReply {
	s.t.Helper()
	a := s.request(i)
	a.Wants, a.Waits = wants, waits
	r := s.use(a)
	require.True(s.t, slices.Equal(granted, r.Granted), "%v of %v are granted, want %v", r.Granted, wants, granted)
	require.Equal(s.t, len(granted) < len(wants), r.Again > 0)
	return r
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

func TestSemaphoreChanges(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		before     string // "": there is no counter
		change     lua.Change
		n          int64
		want, done int64
		gone       bool // there is none afterwards
	}{
		"set":                      {"", lua.TrySet, 5, 5, 1, false},
		"set to none":              {"", lua.TrySet, 0, 0, 1, false},
		"set again":                {"3", lua.TrySet, 5, 3, 0, false},
		"set, and none are free":   {"0", lua.TrySet, 5, 0, 0, false},
		"release":                  {"3", lua.Add, 2, 5, 1, false},
		"release, and none is set": {"", lua.Add, 2, 2, 1, false},
		"nothing":                  {"", lua.Add, 0, 0, 1, true},
		"fewer":                    {"3", lua.Add, -5, -2, 1, false},
		"release if it exists":     {"3", lua.AddIfExists, 2, 5, 1, false},
		"release if it does not":   {"", lua.AddIfExists, 2, 0, 0, true},
		"drain":                    {"3", lua.Drain, 0, 0, 3, false},
		"drain nothing":            {"", lua.Drain, 0, 0, 0, true},
		"drain fewer than none":    {"-3", lua.Drain, 0, -3, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sharedSem(t)
			if row.before != "" {
				s.must("SET", s.name, row.before, "EX", "180")
			}
			a := s.request(1)
			a.Change, a.N = row.change, row.n
			for range 3 { // a repeat changes nothing, and says the same
				require.Equal(t, lua.SemaphoreReply{Free: row.want, Done: row.done}, s.use(a))
				n, exists, err := lua.FreePermits(t.Context(), s.rdb, s.name)
				require.NoError(t, err)
				require.Equal(t, !row.gone, exists)
				require.Equal(t, row.want, n)
			}
			if row.before != "" {
				s.requireTTL(long)
			}
			require.Zero(t, s.number("EXISTS", s.queue))
			require.Positive(t, s.number("PTTL", s.record(1)))
		})
	}
}

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

// A call that gives back and takes again first serves the processes in line.
func TestSemaphoreReleaseAndWait(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	ears := []*ear{s.process(1), s.process(2)}
	s.set(2)
	s.wait(1, []int64{1, 1, 1}, 0, 1)
	s.line(1)
	s.wait(2, []int64{1})
	s.line(1, 2)

	a := s.request(1) // its own place is the first
	a.N, a.Wants, a.Waits = 1, []int64{1, 1}, true
	require.Equal(t, []int{0}, s.use(a).Granted)
	s.line(2, 1)
	heard(t, ears, "", "")
	a.Request = s.request(1).Request
	require.Empty(t, s.use(a).Granted)
	heard(t, ears, "", look)
	s.line(2, 1)
	s.wait(2, nil)
	heard(t, ears, look, "")
	s.line(1)
	s.wait(1, []int64{1, 1, 1}, 0)
	s.line(1)
}

// A process that leaves makes way.
func TestSemaphoreLeave(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	ears := []*ear{s.process(1), s.process(2), s.process(3)}
	s.set(1)
	s.wait(1, []int64{3})
	s.wait(2, []int64{2})
	s.wait(3, []int64{1})
	heard(t, ears, "", "", "")
	s.wait(1, nil)
	s.line(2, 3)
	s.release(9, 1, 2)
	heard(t, ears, "", look, "")
	s.wait(2, nil)
	heard(t, ears, "", "", look)
	s.wait(3, []int64{1}, 0)
	s.wait(3, nil)
	s.wait(3, nil)
	require.Zero(t, s.number("EXISTS", s.queue))
	require.Equal(t, int64(1), s.free())
}

// A process that does not listen is dropped when it comes to its turn, whatever it wants.
func TestSemaphoreDead(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	ear := s.process(3)
	s.wait(1, []int64{1})
	s.wait(2, []int64{9})
	s.wait(3, []int64{1})
	s.wait(4, []int64{9})
	s.release(9, 3, 3)
	require.Equal(t, []string{look}, ear.said())
	s.line(3)
}

// A place without its wants, or without its end, is no reason to sleep forever.
func TestSemaphorePlaceWithoutField(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	ears := []*ear{s.process(1), s.process(2)}
	s.wait(1, []int64{1})
	s.wait(2, []int64{1})
	s.must("DEL", s.requests)
	s.release(9, 1, 1)
	heard(t, ears, look, look)
	s.wait(2, []int64{1}, 0)
	s.wait(1, []int64{1})
	s.line(1)
	s.must("DEL", s.ends())
	s.release(9, 1, 1)
	heard(t, ears, look, "")
	s.wait(1, []int64{1}, 0)
	s.line()
}

// If the queue is lost, all processes that believe to be in line hear of the next release.
func TestSemaphoreQueueIsLost(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	inside := s.listen(false)
	s.set(0)
	s.process(1)
	s.wait(1, []int64{1})
	s.must("DEL", s.queue)
	s.release(9, 1, 1)
	require.Equal(t, []string{"1"}, inside.said())
	s.wait(1, []int64{1}, 0)
	s.must("DEL", s.ends(), s.requests)
	s.line()
}

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

// A stopped process is passed over after its reservation time: a message made another one ask then.
func TestSemaphoreStopped(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	var ears []*ear
	for i := 1; i <= 6; i++ {
		ears = append(ears, s.process(i))
		require.Equal(t, minute, s.wait(i, []int64{1}).Again)
	}
	s.release(9, 1, 1)
	heardAll(t, ears, false, look, "", "", "", "", s.lookIn(keep+time.Millisecond)) // the next time is beyond the minute after which all ask
	s.later(keep)
	s.wait(2, []int64{1}, 0)
	s.line(3, 4, 5, 6)
	s.wait(1, []int64{1}) // it has lost its place
	s.line(3, 4, 5, 6, 1)
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
				b.use(a)
				b.hear()
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
