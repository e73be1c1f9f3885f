package lua_test

import (
	"fmt"
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
	n = slices.DeleteFunc(n, func(field string) bool { return field == "watch" })
	require.Equal(s.t, len(want), len(n), "exactly these processes have a field")
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

// later advances the time of places and of the watch by changing their data in Redis.
func (s sem) later(by time.Duration) {
	s.t.Helper()
	fields, err := s.do("HGETALL", s.requests).AsStrMap()
	require.NoError(s.t, err)
	for field, value := range fields {
		words := strings.Fields(value)
		for i, word := range words {
			if n, err := strconv.ParseInt(word, 10, 64); err == nil && n > 1e12 {
				words[i] = strconv.FormatInt(n-by.Milliseconds(), 10)
			}
		}
		s.must("HSET", s.requests, field, strings.Join(words, " "))
	}
}

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

// A release notifies exactly the waiters for which permits are free, in order.
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
		heardAll(t, ears, false, look, "", "", s.watchedIn(keep), s.watchedIn(keep))
		s.release(9, 1, 5)
		heardAll(t, ears, false, "", "", look, "", "")
		s.release(9, 0, 5)
		heardAll(t, ears, false, "", "", "", "", "")

		// Nobody else gets their reserved permits, except those before them.
		s.try(9, []int64{1})
		s.wait(5, []int64{1})
		s.line(1, 2, 3, 4, 5)
		s.wait(1, []int64{2, 2}, 0, 1)
		s.line(2, 3, 4, 5)
		s.wait(3, []int64{1}, 0)
		s.line(2, 4, 5)
		require.Zero(t, s.free())
		heard(t, ears, "", "", "", "", "")
	})
}

// watchedIn is the message that makes a process in line look after d.
func (s sem) watchedIn(d time.Duration) string { return fmt.Sprintf("? %d", d.Milliseconds()) }

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

// A process that leaves makes way, and others get its reserved permits.
func TestSemaphoreLeave(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	ears := []*ear{s.process(1), s.process(2), s.process(3)}
	s.set(1)
	s.wait(1, []int64{3})
	s.wait(2, []int64{2})
	s.wait(3, []int64{1}, 0)
	s.wait(3, []int64{1})
	s.release(3, 1, 1)
	heard(t, ears, "", "", look)
	s.release(3, 1, 2)
	heard(t, ears, "", look, "")
	s.wait(2, nil)
	heard(t, ears, "", "", "")
	s.wait(2, []int64{1}, 0) // what process 3 does not want
	s.line(1, 3)
	s.wait(3, nil)
	s.line(1)
	s.wait(1, nil)
	s.wait(1, nil)
	require.Zero(t, s.number("EXISTS", s.queue))
	require.Equal(t, int64(1), s.free())
}

// A process that does not listen is dropped, even if there are permits for it.
func TestSemaphoreDead(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	ears := []*ear{s.process(3), s.process(5)}
	s.wait(1, []int64{1})
	s.wait(2, []int64{9})
	s.wait(3, []int64{1})
	s.wait(4, []int64{9})
	s.wait(5, []int64{9})
	s.wait(6, []int64{1})
	s.release(9, 3, 3)
	require.Equal(t, []string{look}, ears[0].said())
	s.line(3, 5)
	require.Equal(t, []string{s.watchedIn(keep)}, ears[1].said())
}

// A place without its field is no reason to sleep forever.
func TestSemaphorePlaceWithoutField(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	ears := []*ear{s.process(1), s.process(2)}
	s.wait(1, []int64{1})
	s.wait(2, []int64{1})
	s.must("HDEL", s.requests, client(1))
	s.release(9, 1, 1)
	heard(t, ears, look, look)
	s.line(2)
	s.must("DEL", s.requests)
	s.try(3, []int64{1}, 0)
	heard(t, ears, "", look)
	require.Zero(t, s.number("EXISTS", s.queue))
}

// A stopped process is passed over after its reservation time: a message made another one look then.
func TestSemaphoreStopped(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	var ears []*ear
	for i := 1; i <= 4; i++ {
		ears = append(ears, s.process(i))
		s.wait(i, []int64{1})
	}
	s.release(9, 1, 1)
	heardAll(t, ears, false, look, "", s.watchedIn(keep), s.watchedIn(keep))
	require.Equal(t, minute, s.wait(2, []int64{1}).Again)
	s.later(keep)
	s.wait(4, []int64{1})
	heard(t, ears, "", look, "", "")
	s.line(2, 3, 4)
	s.later(keep)
	s.wait(3, []int64{1}, 0)
	s.line(4)
	s.wait(1, []int64{1}) // it has lost its place
	s.line(4, 1)
}

// In a line that processes join, each joiner looks in case a process is stopped, so no message is needed.
func TestSemaphoreWatchersComeAlong(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	var ears []*ear
	for i := range 3 {
		ears = append(ears, s.process(i+1))
		s.wait(i+1, []int64{1})
	}
	for round := range 20 {
		s.release(9, 1, 1)
		want := []string{"", "", ""}
		want[round%3] = look
		if round == 0 {
			want = []string{look, s.watchedIn(keep), s.watchedIn(keep)}
		}
		heardAll(t, ears, false, want...)
		first := round%3 + 1
		s.wait(first, []int64{1}, 0)
		again := s.wait(first, []int64{1}).Again
		require.True(t, again == minute && first == 1 || again <= keep && again > keep-slack, "two are enough; %d: %v", round, again)
	}
	ear := s.process(4)
	s.wait(4, []int64{1})
	s.release(9, 1, 1) // the third of them is stopped
	heardAll(t, ears, false, "", "", look)
	s.later(keep)
	s.wait(2, []int64{1}) // it looks
	heardAll(t, append(ears, ear), false, look, "", "", "")
}
