package lua_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// calls runs each script on a lock that the owner holds twice. Each hand-off is followed by a hand-off back.
func calls(ctx context.Context, c rueidis.Client, l lab) map[string]error {
	p := lua.Publish{Name: l.channel}
	errs := make(map[string]error)
	_, errs["acquire"] = lua.Acquire(ctx, c, lua.AcquireArgs{Name: l.name, Fence: l.fence, Owner: me, Lease: lease, Count: 2})
	_, errs["hand-off"] = lua.Release(ctx, c, l.handOff(true))
	if errs["hand-off"] == nil {
		_, errs["hand-off"] = lua.Release(ctx, c, l.handBack())
	}
	_, errs["renew"] = lua.Renew(ctx, c, lease, []lua.Hold{{Name: l.name, Owner: me}})
	_, errs["release"] = lua.Release(ctx, c, lua.ReleaseArgs{Name: l.name, Owner: me, Publish: p})
	_, errs["force"] = lua.Force(ctx, c, l.name, p)
	return errs
}

// scriptOf returns the name of a call's script.
func scriptOf(call string) string {
	if call == "hand-off" {
		return "release script: "
	}
	return call + " script: "
}

func TestServerWithoutTheScripts(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Start(t).Client(t))
	flush := func() { require.NoError(t, l.rdb.Do(t.Context(), l.rdb.B().ScriptFlush().Build()).Error()) }
	ear := l.listen(false)
	p := lua.Publish{Name: l.channel}
	for range 2 {
		for count := 1; count <= 2; count++ {
			flush()
			got, err := lua.Acquire(t.Context(), l.rdb, lua.AcquireArgs{Name: l.name, Owner: me, Lease: lease, Count: count})
			require.NoError(t, err)
			require.Equal(t, lua.Acquired, got.Status)
			require.Equal(t, mine(count), l.fields())
		}
		flush()
		_, err := lua.Release(t.Context(), l.rdb, l.handOff(true))
		require.NoError(t, err)
		require.Equal(t, nexts("1"), l.fields())
		flush()
		back, err := lua.Release(t.Context(), l.rdb, l.handBack())
		require.NoError(t, err)
		require.Equal(t, lua.ReleaseReply{Status: lua.HandedOff}, back)
		flush()
		renewed, err := lua.Renew(t.Context(), l.rdb, lease, []lua.Hold{{Name: l.name, Owner: me}})
		require.NoError(t, err)
		require.Equal(t, []lua.Renewal{lua.Renewed}, renewed)
		for count := 1; count >= 0; count-- {
			flush()
			got, err := lua.Release(t.Context(), l.rdb, lua.ReleaseArgs{Name: l.name, Owner: me, Count: count, Lease: lease, Publish: p})
			require.NoError(t, err)
			require.Equal(t, freed, got)
		}
		require.Equal(t, []string{"0"}, ear.said())
		require.Empty(t, l.fields())
		flush()
		forced, err := lua.Force(t.Context(), l.rdb, l.name, p)
		require.NoError(t, err)
		require.False(t, forced)
	}
}

// user creates a user with these rules, and returns a client that acts as it.
func user(t *testing.T, s *redistest.Server, rules string) rueidis.Client {
	t.Helper()
	admin := s.Client(t)
	cmd := admin.B().Arbitrary("ACL", "SETUSER", "tester", "reset", "on", ">secret").Args(strings.Fields(rules)...).Build()
	require.NoError(t, admin.Do(t.Context(), cmd).Error())
	return s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "tester", "secret" })
}

// notAllowed is the server's error for a forbidden command in a script. Only Redis 7.2 and later names the command.
const notAllowed = "run (this|the '[a-z]+') command"

func TestForbiddenCalls(t *testing.T) {
	t.Parallel()
	const everything = "~* &* +@all "
	for _, row := range []struct {
		name, rules string
		names       string // must appear in the error
		fail        string // the calls that fail
		fields      map[string]string
	}{
		{"evalsha", everything + "-evalsha", "evalsha", "acquire hand-off renew release force", mine(2)},
		// Redis checks the keys before the script starts, so single keys get no verdicts.
		{"the key", "~other &* +@all", "key", "acquire hand-off renew release force", mine(2)},
		{"the channel", "~* resetchannels &other +@all", "channel", "release", map[string]string{}},
		{"publish", everything + "-publish", notAllowed, "release", map[string]string{}},
		{"hdel", everything + "-hdel", notAllowed, "hand-off release", map[string]string{}},
		{"del", everything + "-del", notAllowed, "force", map[string]string{}},
		{"hget", everything + "-hget", notAllowed, "acquire", map[string]string{}},
		{"hrandfield", everything + "-hrandfield", notAllowed, "force", map[string]string{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			l := newLab(t, s.Client(t))
			l.hold(me, "2", short)
			limited := user(t, s, row.rules)
			for call, err := range calls(t.Context(), limited, l) {
				if !strings.Contains(row.fail, call) {
					require.NoError(t, err, call)
					continue
				}
				var said *rueidis.RedisError
				require.ErrorAs(t, err, &said, call)
				require.ErrorContains(t, err, scriptOf(call))
				require.Regexp(t, row.names, err)
			}
			require.Equal(t, row.fields, l.fields())
		})
	}
}

// Redis 7 checks keys before a script runs: a forbidden key stops the whole batch, and nothing in it is renewed.
func TestRenewBatchWithAForbiddenKey(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client(t)
	a, b := newLab(t, admin), newLab(t, admin)
	a.hold(me, "1", short)
	b.hold(me, "1", short)
	limited := user(t, s, "~"+a.name+" &* +@all")
	_, err := lua.Renew(t.Context(), limited, lease, []lua.Hold{{Name: a.name, Owner: me}, {Name: b.name, Owner: me}})
	require.ErrorContains(t, err, "NOPERM")
	a.requireTTL(short)
	b.requireTTL(short)
	got, err := lua.Renew(t.Context(), limited, lease, []lua.Hold{{Name: a.name, Owner: me}})
	require.NoError(t, err)
	require.Equal(t, []lua.Renewal{lua.Renewed}, got)
	a.requireTTL(lease)
}

// If an error prevents reading the keys but not running the script, each key gets its own verdict.
func TestRenewRefused(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := newLab(t, s.Client(t))
	l.hold(me, "1", short)
	got, err := lua.Renew(t.Context(), user(t, s, "~* &* +@all -hexists"), lease, []lua.Hold{{Name: l.name, Owner: me}, {Name: l.name, Owner: other}})
	require.NoError(t, err)
	require.Equal(t, []lua.Renewal{lua.Refused, lua.Refused}, got)
	l.requireTTL(short)
}

// A hold without an expiry would last forever.
func TestAcquireThatCannotExpireLeavesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := newLab(t, s.Client(t))
	limited := user(t, s, "~* &* +@all -pexpire")
	_, err := lua.Acquire(t.Context(), limited, lua.AcquireArgs{Name: l.name, Owner: me, Lease: lease, Count: 1})
	var said *rueidis.RedisError
	require.ErrorAs(t, err, &said)
	require.Regexp(t, notAllowed, err)
	require.Empty(t, l.fields())
}

func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := newLab(t, s.Client(t))
	l.hold(me, "1", short)
	// Its master does not exist, so it serves reads of its data.
	replica := l.rdb.B().Arbitrary("REPLICAOF", "127.0.0.1", "1").Build()
	require.NoError(t, l.rdb.Do(t.Context(), replica).Error())
	for call, err := range calls(t.Context(), l.rdb, l) {
		require.ErrorContains(t, err, "READONLY", call)
		require.ErrorContains(t, err, scriptOf(call))
	}
	require.Equal(t, mine(1), l.fields())
	l.requireTTL(short)
}

func TestClosedClient(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	closed := redistest.Dial(t, redistest.Shared(t))
	closed.Close()
	for call, err := range calls(t.Context(), closed, l) {
		require.ErrorIs(t, err, rueidis.ErrClosing, call)
		require.ErrorContains(t, err, scriptOf(call))
	}
}

func TestServerGone(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := newLab(t, s.Client(t, func(o *rueidis.ClientOption) { o.DisableRetry = true }))
	s.Kill()
	for call, err := range calls(t.Context(), l.rdb, l) {
		require.Error(t, err, call)
		var said *rueidis.RedisError
		require.False(t, errors.As(err, &said), call)
	}
}

func TestReplyTooLate(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := newLab(t, s.Client(t))
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for call, err := range calls(ctx, l.rdb, l) {
		require.ErrorIs(t, err, context.DeadlineExceeded, call)
	}
	s.Resume()
}

func TestShardedPublishOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	rdb := cluster.Client(t)
	for range 5 { // names of several slots
		l := newLab(t, rdb)
		require.Equal(t, cluster.Slot(t, l.name), cluster.Slot(t, l.channel))
		sharded, plain := l.listen(true), l.listen(false)
		p := lua.Publish{Name: l.channel, Sharded: true}

		got, err := lua.Acquire(t.Context(), rdb, lua.AcquireArgs{Name: l.name, Fence: l.fence, Owner: me, Lease: lease, Count: 1})
		require.NoError(t, err)
		require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: 1}, got)
		handed, err := lua.Release(t.Context(), rdb, l.handOff(true))
		require.NoError(t, err)
		require.Equal(t, lua.ReleaseReply{Status: lua.HandedOff, Token: 2}, handed)
		renewed, err := lua.Renew(t.Context(), rdb, lease, []lua.Hold{{Name: l.name, Owner: next}})
		require.NoError(t, err)
		require.Equal(t, []lua.Renewal{lua.Renewed}, renewed)
		require.Empty(t, sharded.said())

		released, err := lua.Release(t.Context(), rdb, lua.ReleaseArgs{Name: l.name, Owner: next, Publish: p})
		require.NoError(t, err)
		require.Equal(t, freed, released)
		require.Equal(t, []string{"0"}, sharded.said())

		l.hold(other, "1", long)
		forced, err := lua.Force(t.Context(), rdb, l.name, p)
		require.NoError(t, err)
		require.True(t, forced)
		require.Equal(t, []string{"0"}, sharded.said())
		require.Empty(t, plain.said())
	}
}
