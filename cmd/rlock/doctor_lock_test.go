package main

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// The doctor says why Lock would fail, with the cure, even if no setting shows it.
func TestDoctorTakesALock(t *testing.T) {
	t.Parallel()
	lock := func(addr string) finding {
		t.Helper()
		all := diagnosis(t, call(t, addr, "doctor", "-json"))
		i := slices.IndexFunc(all, func(f finding) bool { return f.Check == "lock" })
		require.GreaterOrEqual(t, i, 0)
		return all[i]
	}
	s := redistest.Start(t, "--dbfilename", "taken.rdb")
	c := s.Client(t)
	set := func(name, value string) {
		t.Helper()
		require.NoError(t, c.Do(t.Context(), c.B().ConfigSet().ParameterValue().ParameterValue(name, value).Build()).Error())
	}
	set("min-replicas-to-write", "1")
	require.Regexp(t, `^Mutex fails: .*NOREPLICAS`, lock(s.Addr()).Found)
	require.Contains(t, lock(s.Addr()).Means, "connect them")
	set("min-replicas-to-write", "0")
	require.Equal(t, "ok", lock(s.Addr()).Status)

	// A snapshot that cannot be written.
	require.NoError(t, c.Do(t.Context(), c.B().Set().Key("a").Value("b").Build()).Error())
	dir, err := c.Do(t.Context(), c.B().ConfigGet().Parameter("dir").Build()).AsStrMap()
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir["dir"], "taken.rdb"), 0o700))
	set("save", "3600 1")
	require.NoError(t, c.Do(t.Context(), c.B().Bgsave().Build()).Error())
	redistest.Eventually(t, patience, func() bool { return lock(s.Addr()).Status == "bad" }, "the snapshot has failed")
	require.Regexp(t, `^Mutex fails: .*MISCONF`, lock(s.Addr()).Found)
	require.Contains(t, lock(s.Addr()).Means, "stop-writes-on-bgsave-error")
	set("save", "")
}

// On a cluster it takes a lock on each master.
func TestDoctorTakesALockAtEachMaster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	bad := cluster.Nodes()[1]
	c := bad.Client(t, redistest.Single)
	require.NoError(t, c.Do(t.Context(), c.B().ConfigSet().ParameterValue().ParameterValue("min-replicas-to-write", "1").Build()).Error())
	r := call(t, cluster.Addrs()[0], "doctor", "-json")
	require.Equal(t, exitFailed, r.code)
	for _, f := range diagnosis(t, r) {
		if f.Check == "lock" {
			require.Equal(t, f.Status == "bad", len(f.Servers) == 1 && f.Servers[0] == bad.Addr(), f)
		}
	}
}

// On some imitations only the answer to whoever finds the lock taken is wrong.
func TestDoctorTakesATakenLock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for broken, want := range map[string][]string{
			"":                     {"bad Mutex fails: while it is taken: acquire script: wrong number of elements"},
			"redisson_lock_queue:": {"warn FairMutex fails: while it is taken: acquire script: wrong number of elements", "ok taken, refused to another, and released"},
		} {
			s := redistest.Start(t)
			proxy := redistest.StartProxy(t, s.Addr())
			first := ""
			proxy.OnRequest(func(cmd []string) redistest.Action {
				if !strings.HasPrefix(cmd[0], "EVAL") || !strings.Contains(strings.Join(cmd, " "), broken) {
					return redistest.Pass
				}
				if first = cmp.Or(first, ownerOf(cmd)); ownerOf(cmd) != first {
					return redistest.Fail("ERR wrong number of elements")
				}
				return redistest.Pass
			})
			var got []string
			for _, f := range foundBy("lock", diagnosis(t, call(t, proxy.Addr(), "doctor", "-json"))) {
				got = append(got, f.Status+" "+f.Found)
			}
			require.Equal(t, want, got)
			requireEmpty(t, s)
		}
	})
}

// A server that forgets a lock lets two in.
func TestDoctorSeesTwoOwners(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c, proxy, first := s.Client(t), redistest.StartProxy(t, s.Addr()), ""
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if strings.HasPrefix(cmd[0], "EVAL") {
				if first = cmp.Or(first, ownerOf(cmd)); ownerOf(cmd) != first {
					_ = c.Do(t.Context(), c.B().Flushall().Build()).Error()
				}
			}
			return redistest.Pass
		})
		r := call(t, proxy.Addr(), "doctor", "-json")
		require.Equal(t, exitFailed, r.code)
		found := foundBy("lock", diagnosis(t, r))
		require.Equal(t, "bad", found[0].Status)
		require.Equal(t, "Mutex fails: two have it at once", found[0].Found)
	})
}

// ownerOf returns the Client's id in a script's call.
func ownerOf(call []string) string {
	return regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}:`).FindString(strings.Join(call, " "))
}

// A doctor that is stopped leaves nothing without an expiry: here, its last command does not arrive.
func TestDoctorLeavesNothingForGood(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		proxy := redistest.StartProxy(t, s.Addr())
		proxy.OnRequest(redistest.Each("DEL", redistest.Fail("ERR stopped")))
		require.Zero(t, call(t, proxy.Addr(), "doctor").code)
		c := s.Client(t)
		keys, err := c.Do(t.Context(), c.B().Keys().Pattern("*").Build()).AsStrSlice()
		require.NoError(t, err)
		require.Len(t, keys, 1, "the counter of fenced locks")
		left, err := c.Do(t.Context(), c.B().Pttl().Key(keys[0]).Build()).AsInt64()
		require.NoError(t, err)
		require.Positive(t, left)
	})
}

// Some proxies route scripts by their first key, and refuse those without one.
func TestDoctorEvaluatesWithAKey(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.StartProxy(t, s.Addr())
	proxy.OnRequest(func(cmd []string) redistest.Action {
		if (cmd[0] == "EVAL" || cmd[0] == "EVALSHA") && cmd[2] == "0" {
			return redistest.Fail("ERR wrong number of arguments for 'eval' command")
		}
		return redistest.Pass
	})
	require.Equal(t, "ok", statuses(diagnosis(t, call(t, proxy.Addr(), "doctor", "-json")))["scripts"])
	// Without the right to that key, the rest is known.
	c := s.Client(t)
	require.NoError(t, c.Do(t.Context(), c.B().Arbitrary("ACL", "SETUSER", "shop", "on", ">pw", "~shop:*", "+@all").Build()).Error())
	got := statuses(diagnosis(t, call(t, "redis://shop:pw@"+s.Addr(), "doctor", "-json")))
	require.Equal(t, "ok", got["scripts"])
	require.Equal(t, "unknown", got["lock"])
}

// Before a server, or a proxy, that does not subscribe, a Lock that waits fails.
func TestDoctorWithoutSubscribe(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for _, protocol := range []string{"", "?protocol=2"} {
			s := redistest.Start(t)
			proxy := redistest.StartProxy(t, s.Addr())
			for _, command := range []string{"SUBSCRIBE", "PUBSUB"} {
				proxy.OnRequest(redistest.Each(command, redistest.Fail("ERR unknown command '"+command+"', with args beginning with: ")))
			}
			r := call(t, "redis://"+proxy.Addr()+protocol, "doctor", "-json")
			require.Equal(t, exitFailed, r.code)
			all := diagnosis(t, r)
			require.Equal(t, "ok", statuses(all)["lock"])
			found := foundBy("pub/sub", all)
			require.Len(t, found, 1)
			require.Equal(t, "bad", found[0].Status)
			require.Contains(t, found[0].Found, "unknown command 'SUBSCRIBE'")
			require.Contains(t, found[0].Means, "proxy")
			require.Empty(t, foundBy("wake", all))
			requireEmpty(t, s)
		}
	})
}

// Nor does a Lock wake where messages or subscriptions get lost.
func TestDoctorOfADeafServer(t *testing.T) {
	for lost, c := range map[string]struct {
		faulty func(*redistest.Proxy)
		found  string
	}{
		"messages":      {func(p *redistest.Proxy) { p.OnReply(redistest.Each("MESSAGE", redistest.Drop)) }, "^a Lock that waits fails: it was not woken by the unlock$"},
		"subscriptions": {func(p *redistest.Proxy) { p.OnRequest(redistest.Each("SUBSCRIBE", redistest.Drop)) }, "takes no subscription; .*: no answer yet$"},
		"connections":   {func(p *redistest.Proxy) { p.OnRequest(redistest.Each("SUBSCRIBE", redistest.Cut)) }, "takes no subscription; .*: EOF$"},
	} {
		t.Run(lost, func(t *testing.T) {
			redistest.OnlyVirtual(t, hastyAlone, func(t *testing.T) {
				beHasty(t)
				s := redistest.Start(t)
				proxy := redistest.StartProxy(t, s.Addr())
				c.faulty(proxy)
				r := call(t, proxy.Addr(), "doctor", "-json")
				require.Equal(t, exitFailed, r.code)
				found := foundBy("pub/sub", diagnosis(t, r))
				require.Equal(t, "bad", found[0].Status)
				require.Regexp(t, c.found, found[0].Found)
				requireNoKeys(t, s)
			})
		})
	}
}
