package main

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// Names and values from Redis reach a terminal as plain text.
func TestNothingFromRedisControlsTheTerminal(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	do := func(cmd ...string) {
		t.Helper()
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Arbitrary(cmd...).Build()).Error())
	}
	const (
		evil  = "\x1b]0;owned\a\u009b31m\u202e\xff\x1b[2J"
		shown = `\x1b]0;owned\a\u009b31m\u202e\xff\x1b[2J`
		java  = "285475da-9152-4c83-822a-67ee2f116a79:54"
	)
	harmless := func(what string, r result, says string) {
		t.Helper()
		text := r.out + r.err
		require.False(t, strings.ContainsFunc(strings.NewReplacer("\n", "", "\t", "").Replace(text), upsets), "%s: %q", what, text)
		require.Contains(t, text, says, what)
	}
	for _, name := range []string{"job", evil} {
		do("RPUSH", "redisson_lock_queue:{"+name+"}", evil)
		do("ZADD", "rlock_queue:{"+name+"}", "1", evil)
		do("ZADD", "rlock_writers:{"+name+"}", "1", evil)
		do("HSET", name, java, "1")
		do("PEXPIRE", name, "60000")
		do("SET", "redisson_lock_token:{"+name+"}", evil)
	}
	do("SET", "text"+evil, "x")
	subscribe(t, s, "redisson_lock__channel:{"+evil+"}", "redisson_lock__channel:{text"+evil+"}")
	for _, name := range []string{"job", evil} {
		harmless("show", call(t, s.Addr(), "show", name), shown)
		harmless("show -json", call(t, s.Addr(), "show", "-json", name), `\u009b31m\u202e`)
	}
	harmless("show text", call(t, s.Addr(), "show", "text"+evil), shown)
	harmless("ls", call(t, s.Addr(), "ls"), shown)
	harmless("ls -json", call(t, s.Addr(), "ls", "-json"), `\u009b`)
	harmless("top", call(t, s.Addr(), "top"), shown)
	harmless("token", call(t, s.Addr(), "token", evil), shown)
	harmless("doctor", call(t, s.Addr(), "doctor", "-name", evil), shown)
	harmless("run text", call(t, s.Addr(), "run", "-wait", "0", "text"+evil, "--", "true"), "")
	harmless("misuse", call(t, s.Addr(), evil), shown)
	harmless("flag", call(t, s.Addr(), "ls", "-"+evil), shown)
	harmless("unlock", call(t, s.Addr(), "unlock", "-force", "-yes", "job"), shown)
	harmless("unlock", call(t, s.Addr(), "unlock", "-force", "-yes", "job"), "not held")
}

// Nor do a server's errors.
func TestNoErrorOfRedisControlsTheTerminal(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		const evil, shown = "ERR \x1b]0;owned\a\x1b[2J\x1b[31mno", `\x1b]0;owned\a\x1b[2J\x1b[31mno`
		for command, viewers := range map[string][]string{
			"PUBSUB CHANNELS rlock_client:{*}": {"top", "deadlocks"}, "PUBSUB": {"top", "deadlocks", "ls", "doctor"}, "HRANDFIELD": {"show", "ls", "top"}, "SCAN": {"ls"},
		} {
			proxy := redistest.StartProxy(t, s.Addr())
			proxy.OnRequest(redistest.Each(command, redistest.Fail(evil)))
			for _, viewer := range viewers {
				args := []string{viewer}
				if viewer == "show" {
					args = append(args, "job")
				}
				r := call(t, proxy.Addr(), args...)
				text := strings.NewReplacer("\n", "", "\t", "").Replace(r.out + r.err)
				require.False(t, strings.ContainsFunc(text, upsets), "%s: %q", viewer, text)
				if command != "HRANDFIELD" && viewer != "doctor" {
					require.Contains(t, text, shown, viewer)
				}
			}
		}
	})
}

// Nor does a run that is refused.
func TestNoRefusalControlsTheTerminal(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const evil = "\x1b]0;owned\a\u009b31m\u202e\xff\x1b[2J"
		s := redistest.Start(t)
		lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex(evil))
		r := call(t, s.Addr(), "run", "-wait", "0", evil, "--", "true")
		require.Equal(t, exitNotAcquired, r.code)
		require.False(t, strings.ContainsFunc(strings.TrimSuffix(r.err, "\n"), upsets), "%q", r.err)
		require.Contains(t, r.err, `\x1b]0;owned\a\u009b31m\u202e\xff\x1b[2J`)
	})
}

// run -v prints the holder as plain text.
func TestRunVerboseIsClean(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	putOwner(t, s, "285475da-9152-4c83-822a-67ee2f116a79:54")
	r := start(t, nil, "run", "-v", "-wait", "4s", "-addr", s.Addr(), "job", "--", "true")
	redistest.Eventually(t, patience, func() bool { return strings.Contains(r.err.String(), "waiting: held by") }, "it waits")
	putOwner(t, s, "\x1b[31mevil\x1b[2J") // not an owner: the library may report it
	got := r.rest()
	require.NotContains(t, got.err, "\x1b")
}

// The JSON has the bytes of a name that is not valid UTF-8.
func TestJSONOfOtherBytes(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newLocks(t, s.Client(t))
		const name = "job\xff\xfe"
		for _, n := range []string{name, "ключ"} {
			lock(t.Context(), t, c.Mutex(n))
			other := newLocks(t, s.Client(t))
			waitFor(t, other, other.Mutex(n))
		}
		for _, args := range [][]string{{"show", "-json", name}, {"ls", "-json"}, {"top", "-json"}} {
			names := make(map[string]bool)
			for line := range strings.Lines(call(t, s.Addr(), args...).out) {
				var l struct {
					Name  string `json:"name"`
					Bytes string `json:"name_base64"`
				}
				require.NoError(t, json.Unmarshal([]byte(line), &l))
				if l.Bytes != "" {
					text, err := base64.StdEncoding.DecodeString(l.Bytes)
					require.NoError(t, err)
					l.Name = string(text)
				}
				names[l.Name] = true
			}
			require.True(t, names[name], args)
			require.Equal(t, args[0] != "show", names["ключ"], args)
		}
	})
}
