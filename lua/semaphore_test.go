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

// ends returns the key of the times at which places end.
func (s sem) ends() string { return s.queue + ":ends" }

// The record of a call that is all done gets its expiry once in a second of the process.
func TestSemaphoreRecordExpires(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	record := s.requests + ":" + client(1)
	call := func(number int64) time.Duration {
		t.Helper()
		s.numbers[1] = number - 1
		a := s.request(1)
		a.N = 1
		s.use(a)
		left, err := s.rdb.Do(t.Context(), s.rdb.B().Pttl().Key(record).Build()).AsInt64()
		require.NoError(t, err)
		return time.Duration(left) * time.Millisecond
	}
	shorten := func() {
		t.Helper()
		require.NoError(t, s.rdb.Do(t.Context(), s.rdb.B().Pexpire().Key(record).Milliseconds(time.Minute.Milliseconds()).Build()).Error())
	}
	isNew := func(left time.Duration) bool { return left > time.Minute && left <= 122*time.Second }
	require.True(t, isNew(call(1)))
	shorten()
	require.True(t, call(999_999) <= time.Minute)
	require.True(t, isNew(call(1_000_000)))
	shorten()
	require.True(t, call(1_000_001) <= time.Minute)
	require.NoError(t, s.rdb.Do(t.Context(), s.rdb.B().Del().Key(record).Build()).Error())
	require.True(t, isNew(call(1_000_002)))
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

// A process that joins behind as many others as there are free permits gets none: it is not compared with each of them.
func TestSemaphoreJoinsACrowd(t *testing.T) {
	t.Parallel()
	s := newSem(t, redistest.Start(t).Client(t))
	s.set(2)
	s.wait(9, []int64{2}, 0)
	for i := range 5 {
		s.process(i + 1)
		s.wait(i+1, []int64{1})
	}
	s.release(9, 2, 2)
	s.process(6)
	before := redistest.Commands(t, s.rdb)
	s.wait(6, []int64{1})
	after := redistest.Commands(t, s.rdb)
	for _, command := range []string{"hmget", "zmscore"} { // of its own place
		require.Equal(t, int64(1), after[command]-before[command], "%s", command)
	}
	s.line(1, 2, 3, 4, 5, 6)
	s.wait(2, []int64{1}, 0)
	s.wait(1, []int64{1}, 0)
	s.line(3, 4, 5, 6)

	// A permit that this very call brings goes to the first.
	a := s.request(7)
	s.process(7)
	third := s.process(3)
	a.N, a.Wants, a.Waits = 1, []int64{1}, true
	require.Empty(t, s.use(a).Granted)
	require.Equal(t, []string{look}, third.said())
	s.wait(3, []int64{1}, 0)
	s.line(4, 5, 6, 7)
}

// Another library has given a permit back, and told nobody in line, because all have died. A process that joins behind them gets it.
func TestSemaphoreJoinsTheDead(t *testing.T) {
	t.Parallel()
	s := sharedSem(t)
	s.set(0)
	for i := range 3 {
		s.wait(i+1, []int64{1})
	}
	s.must("INCR", s.name)
	s.process(6)
	s.wait(6, []int64{1}, 0)
	s.line()
}
