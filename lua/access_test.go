package lua_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
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
	for range 2 {
		for count := 1; count <= 2; count++ {
			flush()
			a := l.wants(me)
			a.Count = count
			require.Equal(t, lua.Acquired, l.acquire(a).Status)
			require.Equal(t, mine(count), l.fields())
		}
		flush()
		require.Equal(t, lua.HandedOff, l.releases(l.handOff(true)).Status)
		require.Equal(t, nexts("1"), l.fields())
		flush()
		require.Equal(t, handedOff, l.releases(l.handBack()))
		flush()
		require.Equal(t, []lua.Renewal{lua.Renewed}, l.renews(lease, me))
		for count := 1; count >= 0; count-- {
			flush()
			a := l.frees(me)
			a.Count = count
			require.Equal(t, freed, l.releases(a))
		}
		require.Equal(t, []string{"0"}, ear.said())
		require.Empty(t, l.fields())
		flush()
		require.False(t, l.forces())
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
				requireSaid(t, err, scriptOf(call))
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

// Where no script can run, each call returns the reason, and changes nothing.
func TestNoScriptRuns(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		spoil func(s *redistest.Server, l lab)
		text  string
		is    error
	}{
		// Its master does not exist, so it serves reads of its data.
		"a replica":          {func(_ *redistest.Server, l lab) { l.must("REPLICAOF", "127.0.0.1", "1") }, "READONLY", nil},
		"a closed client":    {func(_ *redistest.Server, l lab) { l.rdb.Close() }, "", rueidis.ErrClosing},
		"the server is gone": {func(s *redistest.Server, _ lab) { s.Kill() }, "", nil},
		"a late reply":       {func(s *redistest.Server, _ lab) { s.Pause() }, "", context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			l := newLab(t, s.Client(t, func(o *rueidis.ClientOption) { o.DisableRetry = true }))
			l.hold(me, "1", short)
			row.spoil(s, l)
			ctx, cancel := t.Context(), func() {}
			if row.is == context.DeadlineExceeded {
				ctx, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
			}
			defer cancel()
			for call, err := range calls(ctx, l.rdb, l) {
				require.ErrorContains(t, err, row.text, call)
				if row.is != nil {
					require.ErrorIs(t, err, row.is, call)
				}
				var said *rueidis.RedisError
				require.Equal(t, row.text != "", errors.As(err, &said), call)
				require.ErrorContains(t, err, scriptOf(call))
			}
			if row.text != "" {
				require.Equal(t, mine(1), l.fields())
				l.requireTTL(short)
			}
		})
	}
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

		wants, frees := l.wants(me), l.frees(next)
		wants.Fence, frees.Publish = l.fence, p
		require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: 1}, l.acquire(wants))
		require.Equal(t, lua.ReleaseReply{Status: lua.HandedOff, Token: 2}, l.releases(l.handOff(true)))
		require.Equal(t, []lua.Renewal{lua.Renewed}, l.renews(lease, next))
		require.Empty(t, sharded.said())
		require.Equal(t, freed, l.releases(frees))
		require.Equal(t, []string{"0"}, sharded.said())

		l.hold(other, "1", long)
		forced, err := lua.Force(t.Context(), rdb, l.name, p)
		require.NoError(t, err)
		require.True(t, forced)
		require.Equal(t, []string{"0"}, sharded.said())
		require.Empty(t, plain.said())
	}
}
