package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// rows are the lines of "rlock top", name first, of which only the first n cells are kept.
func rows(r result, n int) (all []string) {
	for line := range strings.Lines(r.out) {
		all = append(all, strings.Join(strings.Split(strings.TrimSuffix(line, "\n"), "\t")[:n], " "))
	}
	return all
}

func TestTop(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	holds := newLocks(t, rdb)
	require.Equal(t, result{}, call(t, s.Addr(), "top"))

	first, _ := lock(t.Context(), t, holds.Mutex("job"))
	lock(t.Context(), t, holds.Mutex("idle")) // for which nobody waits
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
	// As Redisson waits for locks that nobody holds: two threads of one process for a fair one. The last is ours, by which nobody waits
	// who does not listen to the unlock channel, too.
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
}

func subscribe(t *testing.T, s *redistest.Server, channels ...string) {
	t.Helper()
	rdb := s.Client(t)
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
		"redisson_sc:{a}":              nil,
		"news":                         nil,
	} {
		require.Equal(t, keys, keysOf(channel), channel)
	}
}

func TestTopScreen(t *testing.T) {
	t.Parallel()
	locks := []wanted{
		{state: state{Name: "job", Kind: "mutex", TTL: 2000, Holders: []holder{{Owner: "a:1", Depth: 1}}}, Waiting: 3, Since: 1.25},
		{state: state{Name: "free"}, Waiting: 1},
		{state: state{Name: "below"}, Waiting: 1},
	}
	at := func(err error) error { return err }
	text := string(topScreen("here:1", locks, at, nil, 5, 46))
	lines := strings.Split(text, "\r\n")
	require.Len(t, lines, 5, "no more than fit")
	require.Regexp(t, `^\x1b\[Hrlock top  here:1  \d\d:\d\d:\d\d  3 waited for, 1 o\x1b\[K$`, lines[0])
	require.Equal(t, "NAME   WAITING  KIND   HOLDER  SINCE  TTL\x1b[K", lines[2])
	require.Equal(t, "job    3        mutex  a:1     1.2s   2.0s\x1b[K", lines[3])
	require.Equal(t, "free   1        -      free    -      -\x1b[K\x1b[J", lines[4])
	require.Contains(t, string(topScreen("here:1", locks, at, errors.New("rlock: down"), 5, 40)), "\r\ndown\x1b[K")
}
