package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// rows are the lines of "rlock top", name first, reduced to the first n cells.
func rows(r result, n int) (all []string) {
	for line := range strings.Lines(r.out) {
		all = append(all, strings.Join(strings.Split(strings.TrimSuffix(line, "\n"), "\t")[:n], " "))
	}
	return all
}

func TestTop(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		rdb := s.Client(t)
		holds := newLocks(t, rdb)
		require.Equal(t, result{}, call(t, s.Addr(), "top"))

		first, _ := lock(t.Context(), t, holds.Mutex("job"))
		lock(t.Context(), t, holds.Mutex("idle")) // without waiters
		second, _ := lock(t.Context(), t, holds.RWMutex("rw").Write())
		third, _ := lock(t.Context(), t, holds.Mutex("{x}"))
		for range 2 {
			c := newLocks(t, s.Client(t))
			waitFor(t, c, c.Mutex("job"))
		}
		for _, m := range []func(*rlock.Client) *rlock.Mutex{
			func(c *rlock.Client) *rlock.Mutex { return c.RWMutex("rw").Read() },
			func(c *rlock.Client) *rlock.Mutex { return c.Mutex("{x}") },
		} {
			c := newLocks(t, s.Client(t))
			waitFor(t, c, m(c))
		}
		// In Redisson's format, waiters for free locks: two threads of one process for a fair lock. The last is this library's, whose waiters also
		// listen to the unlock channel.
		const java = "285475da-9152-4c83-822a-67ee2f116a79"
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Set().Key("text").Value("x").Build()).Error())
		subscribe(t, s, "redisson_lock__channel:{java}", "redisson_lock__channel:{text}", "redisson_lock__channel:{fair}:"+java+":12",
			"redisson_lock__channel:{fair}:"+java+":13", "redisson_lock__channel:{job}:"+java)

		want := []string{
			"job 2 mutex " + rlock.Owner(first), "fair 1 - free", "java 1 - free", "rw 1 write " + rlock.Owner(second), "text 1 - " + errNoLock.Error(), "{x} 1 mutex " + rlock.Owner(third),
		}
		redistest.Eventually(t, patience, func() bool { return len(rows(call(t, s.Addr(), "top"), 4)) == len(want) }, "all wait")
		redistest.Eventually(t, patience, func() bool { return rows(call(t, s.Addr(), "top"), 2)[0] == "job 2" }, "both wait")
		require.Equal(t, want, rows(call(t, s.Addr(), "top"), 4))

		var seen []wanted
		for line := range strings.Lines(call(t, s.Addr(), "top", "-json", "-n", "2", "-prefix", "jo").out) {
			var w wanted
			require.NoError(t, json.Unmarshal([]byte(line), &w))
			require.Equal(t, "b", w.Name)
			require.EqualValues(t, 2, w.Waiting)
			seen = append(seen, w)
		}
		require.Len(t, seen, 2)
		require.Zero(t, seen[0].Since)
		require.Greater(t, seen[1].Since, 0.5, "the same holder, a second later")
	})
}

func subscribe(t *testing.T, s *redistest.Server, channels ...string) {
	t.Helper()
	rdb := s.Client(t, redistest.Single) // of a cluster's nodes, this one
	done := make(chan struct{})
	go func() { // ends with the client, which the test closes
		defer close(done)
		_ = rdb.Receive(t.Context(), rdb.B().Subscribe().Channel(channels...).Build(), func(rueidis.PubSubMessage) {})
	}()
	t.Cleanup(func() { <-done })
	redistest.Eventually(t, patience, func() bool {
		n, err := rdb.Do(t.Context(), rdb.B().PubsubNumsub().Channel(channels...).Build()).AsIntMap()
		return err == nil && n[channels[len(channels)-1]] == 1
	}, "it listens")
}

func TestKeysOf(t *testing.T) {
	t.Parallel()
	for channel, keys := range map[string][]string{
		"redisson_lock__channel:{a}":   {"a", "{a}"},
		"redisson_lock__channel:{a}:b": {"{a}:b"},
		"redisson_lock__channel:a{b}":  {"a{b}"},
		"redisson_lock__channel:{{a}}": {"{{a}}"},
		"redisson_rwlock:{a:b}":        {"a:b", "{a:b}"},
		"redisson_sc:{a}":              {"a", "{a}"},
		latchChannelOf("a"):            {"a"},
		latchChannelOf("{a}"):          {"{a}"},
		"news":                         nil,
	} {
		require.Equal(t, keys, keysOf(channel), channel)
	}
}

func TestTopScreen(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const owner = "00000000-0000-0000-0000-000000000000:1"
		locks := []wanted{
			{state: state{Name: strings.Repeat("job", 20), Kind: "mutex", TTL: 2000, Holders: []holder{{Owner: owner, Depth: 1}}}, Waiting: 3, Since: 1.25},
			{state: state{Name: "free"}, Waiting: 1},
			{state: state{Name: "below"}, Waiting: 1},
		}
		now := time.Now()
		lines := func(seen sight, trouble error) []string {
			return strings.Split(string(topScreen("here:1", seen, trouble, 5, 54)), "\r\n")
		}
		all := lines(sight{locks: locks, at: now}, nil)
		require.Len(t, all, 5, "no more than fit")
		require.Regexp(t, `^\x1b\[Hrlock top  here:1  \d\d:\d\d:\d\d  3 waited for, 1 of them h\x1b\[K$`, all[0])
		require.Equal(t, "NAME        WAITING  KIND   SINCE  TTL   HOLDER\x1b[K", all[2])
		require.Equal(t, "jobjobjob…  3        mutex  1.2s   2.0s  00000000-0000\x1b[K", all[3], "only the holder is cut off")
		require.Equal(t, "free        1        -      -      -     free\x1b[K\x1b[J", all[4])
		require.Contains(t, lines(sight{locks: locks, left: 7, at: now}, nil)[0], "10 waited for; of t")

		// A deadlock adds a column.
		circle := circles{many: 1, of: map[string]int{owner: 1}}
		circle.mark(locks)
		all = strings.Split(string(topScreen("here:1", sight{locks: locks, at: now, deadlocks: circle}, nil, 5, 75)), "\r\n")
		require.Regexp(t, `  1 deadlock  `, all[0])
		require.Equal(t, "NAME                   WAITING  KIND   SINCE  TTL   DEADLOCK  HOLDER\x1b[K", all[2])
		require.Equal(t, "jobjobjobjobjobjobjo…  3        mutex  1.2s   2.0s  1         00000000-0000\x1b[K", all[3])
		require.Equal(t, "free                   1        -      -      -     -         free\x1b[K\x1b[J", all[4])
		for text, c := range map[string]circles{"": {}, "2 deadlocks  ": {many: 2}, "deadlocks unknown  ": {err: errors.New("no")}} {
			require.Equal(t, text, c.text())
		}

		// Redis is silent: the screen shows nothing as current.
		all = lines(sight{}, errors.New("rlock: no answer"))
		require.NotContains(t, all[0], "waited")
		require.Equal(t, "no answer\x1b[K\x1b[J", all[1])
		all = lines(sight{locks: locks, at: now}, errors.New("down\x1b[2J"))
		require.Equal(t, `down\x1b[2J`+"\x1b[K", all[1])
		require.Equal(t, "as it was at "+now.Format(time.TimeOnly)+"\x1b[K", all[2])
	})
}

// With more locks than it reads, top says how many it leaves out.
func TestTopSaysWhatItLeavesOut(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		const more = 3
		var channels []string
		for i := range topMost + more {
			channels = append(channels, fmt.Sprintf("redisson_lock__channel:{job:%d}", i))
		}
		subscribe(t, s, channels...)
		subscribe(t, s, "redisson_lock__channel:{most}", "redisson_lock__channel:{most}:00000000-0000-0000-0000-000000000000:1")
		for _, flags := range [][]string{nil, {"-json"}} {
			r := call(t, s.Addr(), append([]string{"top"}, flags...)...)
			require.Equal(t, topMost, strings.Count(r.out, "\n"))
			require.Equal(t, fmt.Sprintf("rlock: showing the %d most contended locks; %d more have waiters\n", topMost, more+1), r.err)
		}
	})
}
