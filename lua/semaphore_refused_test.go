package lua_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

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

// Keys with other content are errors, and no call changes them.
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
	record, err := s.do("GET", s.record(1)).ToString()
	require.NoError(t, err)
	require.Empty(t, record)
	s.must("SET", s.name, "3")
	require.Equal(t, lua.SemaphoreReply{Free: 4, Done: 1}, s.use(a))
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

// semaphoreCommands are the commands that the script needs.
var semaphoreCommands = []string{
	"get", "hdel", "hmget", "hset", "incrby", "mget", "pexpire", "pttl", "publish", "pubsub|numsub", "set", "time", "zadd", "zcard", "zcount", "zmscore", "zrange",
	"zrem",
}

// These rights suffice for semaphores, and each is needed.
func TestSemaphoreRights(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	s := newSem(t, srv.Client(t))
	limited := s.limited(srv.Addr(), semaphoreCommands, s.name, s.requests+"*", s.queue+"*")
	outside := s.outsider(false)
	first := s.process(1)
	use := func(a lua.SemaphoreArgs) error {
		_, err := lua.UseSemaphore(t.Context(), limited, a)
		return err
	}
	everything := func() (errs []error) {
		s.must("DEL", s.name)
		wait, set, release, leave := s.request(1), s.request(2), s.request(3), s.request(1)
		wait.Wants, wait.Waits, leave.Waits = []int64{1, 3}, true, true
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
