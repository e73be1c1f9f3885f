package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

func TestLs(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := s.Client(t)
		require.Equal(t, result{}, call(t, s.Addr(), "ls"))
		foreign(t, c)
		locks := newLocks(t, c)
		lock(t.Context(), t, locks.Mutex("job:1"))
		lock(t.Context(), t, locks.FencedMutex("job:2"))
		lock(t.Context(), t, locks.FairMutex("p[x]:job"))
		lock(t.Context(), t, locks.RWMutex("rw").Read())
		lock(t.Context(), t, newLocks(t, c).RWMutex("rw").Read()) // of another process: within one, readers would share
		lock(t.Context(), t, locks.RWMutex("w\n").Write())
		lock(t.Context(), t, locks.FencedRWMutex("wf").Write())
		// In Redisson's format.
		require.NoError(t, c.Do(t.Context(), c.B().Hset().Key("java").FieldValue().FieldValue("285475da-9152-4c83-822a-67ee2f116a79:54", "1").Build()).Error())

		require.NoError(t, c.Do(t.Context(), c.B().Pexpire().Key("java").Milliseconds(30_000_000_000).Build()).Error())
		require.Contains(t, call(t, s.Addr(), "ls", "java").err, `"java"`)
		require.NoError(t, c.Do(t.Context(), c.B().Persist().Key("java").Build()).Error())
		r := call(t, s.Addr(), "ls")
		require.Equal(t, "rlock: no expiry within a day: \"java\"; if a holder is gone, free its lock by rlock unlock -force NAME\n", r.err)
		var got []string
		for line := range strings.Lines(r.out) {
			cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
			require.Len(t, cells, 5)
			got = append(got, cells[0]+" "+cells[1]+" "+cells[3])
			if cells[0] == "java" {
				require.Equal(t, "none", cells[4])
			}
		}
		require.Equal(t, []string{`java mutex 1`, `job:1 mutex 1`, `job:2 fenced 1`, `p[x]:job fair 1`, `rw read 1`, `"w\n" write 1`, `wf write 1`}, got)
		require.Contains(t, r.out, " and 1 more\t")

		require.Len(t, strings.Split(call(t, s.Addr(), "ls", "job:*").out, "\n"), 2+1)
		r = call(t, s.Addr(), "ls", "-json", "-prefix", "p[x]:")
		var one state
		require.NoError(t, json.Unmarshal([]byte(r.out), &one))
		require.Equal(t, "job", one.Name)

		require.NoError(t, c.Do(t.Context(), c.B().Del().Key("java").Build()).Error())
		r = call(t, s.Addr(), "ls", "-limit", "2")
		require.Len(t, strings.Split(r.out, "\n"), 2+1)
		require.Equal(t, "rlock: stopped at -limit 2; there may be more\n", r.err)
	})
}

// With any number of keys, each command visits few of them, and only locks are read.
func TestLsIsBounded(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	fill := `for i = 1, 3000 do redis.call('hset', 'h' .. i, 'f', i) end return 1`
	require.NoError(t, c.Do(t.Context(), c.B().Eval().Script(fill).Numkeys(0).Build()).Error())
	locks := newLocks(t, c)
	for i := range 3 {
		lock(t.Context(), t, locks.Mutex(fmt.Sprint("job:", i)))
	}
	before := redistest.Commands(t, c)
	require.Len(t, strings.Split(call(t, s.Addr(), "ls").out, "\n"), 3+1)
	after := redistest.Commands(t, c)
	require.GreaterOrEqual(t, after["scan"]-before["scan"], int64(3000/scanStep))
	require.Equal(t, int64(3), after["hgetall"]-before["hgetall"])
	require.Zero(t, after["keys"])
}

// A SCAN that never ends is reported.
func TestLsOfAnEndlessCursor(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	m.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
		if cmd != "SCAN" {
			return false
		}
		c.WriteLen(2)
		c.WriteBulk("7")
		c.WriteLen(0)
		return true
	})
	r := call(t, m.Addr(), "ls")
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, m.Addr()+": SCAN does not advance")
	require.Regexp(t, `^rlock: [^\n]*\n$`, r.err)
}

// An expiry further away than a Duration reaches is as long as that. miniredis has no such expiry.
func TestLongestExpiry(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	lock(t.Context(), t, newLocks(t, c).Mutex("job"))
	require.NoError(t, c.Do(t.Context(), c.B().Pexpire().Key("job").Milliseconds(9_999_999_999_999).Build()).Error())
	r := call(t, s.Addr(), "ls")
	require.Contains(t, r.out, "\t9223372036.9s\n")
	require.Contains(t, r.err, `no expiry within a day: "job"`)
	require.Contains(t, call(t, s.Addr(), "show", "job").out, "free it by rlock unlock -force")
}
