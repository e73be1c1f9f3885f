package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// diagnosis is the output of "rlock doctor -json".
func diagnosis(t *testing.T, r result) (all []finding) {
	t.Helper()
	require.Empty(t, r.err)
	for line := range strings.Lines(r.out) {
		var f finding
		require.NoError(t, json.Unmarshal([]byte(line), &f))
		require.Regexp(t, "^(ok|warn|bad|unknown)$", f.Status)
		require.NotEmpty(t, f.Means)
		all = append(all, f)
	}
	require.NotEmpty(t, all)
	return all
}

// statuses returns each check's status.
func statuses(all []finding) map[string]string {
	m := make(map[string]string)
	for _, f := range all {
		m[f.Check] = f.Status
	}
	return m
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	well := map[string]string{
		"server": "ok", "scripts": "ok", "lock": "ok", "eviction": "ok", "replicas": "ok", "persistence": "warn", "fencing": "warn", "pub/sub": "ok", "clock": "ok",
		"rights": "ok", "wake": "ok",
	}
	const none = "none" // no such finding
	for name, c := range map[string]struct {
		args    []string
		code    int
		differs map[string]string
	}{
		"plain":      {nil, 0, nil},
		"eviction":   {[]string{"--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"}, 1, map[string]string{"eviction": "bad"}},
		"no limit":   {[]string{"--maxmemory-policy", "volatile-ttl"}, 0, nil},
		"noeviction": {[]string{"--maxmemory", "100mb", "--maxmemory-policy", "noeviction"}, 0, nil},
		"AOF":        {[]string{"--appendonly", "yes", "--appendfsync", "always"}, 0, map[string]string{"persistence": "ok", "fencing": "ok"}},
		"slow AOF":   {[]string{"--appendonly", "yes"}, 0, nil},
		"busy":       {[]string{"--lua-time-limit", "50"}, 0, map[string]string{"busy": "warn"}},
		"never busy": {[]string{"--lua-time-limit", "0"}, 0, nil},
		"no EVAL":    {[]string{"--rename-command", "EVAL", ""}, 1, map[string]string{"scripts": "bad", "lock": "bad", "pub/sub": "unknown", "wake": none, "rights": "bad"}},
		"no replica": {[]string{"--min-replicas-to-write", "1"}, 1, map[string]string{"lock": "bad", "pub/sub": "unknown", "wake": none}},
		"full":       {[]string{"--maxmemory", "1", "--maxmemory-policy", "noeviction"}, 1, map[string]string{"lock": "bad", "pub/sub": "unknown", "wake": none}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, c.args...)
			r := call(t, s.Addr(), "doctor", "-json")
			want := maps.Clone(well)
			maps.Copy(want, c.differs)
			maps.DeleteFunc(want, func(_, status string) bool { return status == none })
			require.Equal(t, want, statuses(diagnosis(t, r)), r.out)
			require.Equal(t, c.code, r.code)
			requireEmpty(t, s)
		})
	}
}

// A Redisson reader with a shorter watchdog time has set the readers' shared expiry.
func TestDoctorReaders(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := s.Client(t)
		do := func(cmd ...string) {
			t.Helper()
			require.NoError(t, c.Do(t.Context(), c.B().Arbitrary(cmd...).Build()).Error())
		}
		for name, holdKey := range map[string]string{"job": "{job}:%s:rwlock_timeout:1", "a{b}": "a{b}:%s:rwlock_timeout:1"} {
			looks := func() (seen []finding) {
				t.Helper()
				for _, f := range diagnosis(t, call(t, s.Addr(), "doctor", "-json", "-name", name)) {
					if f.Check == "readers" {
						seen = append(seen, f)
					}
				}
				return seen
			}
			require.Empty(t, looks())
			const long, short = "11111111-2222-3333-4444-555555555555:1", "21111111-2222-3333-4444-555555555555:1"
			do("HSET", name, "mode", "read", long, "1", short, "1")
			do("SET", fmt.Sprintf(holdKey, long), "1", "PX", "216000000") // hours, to outlast any slow machine
			do("SET", fmt.Sprintf(holdKey, short), "1", "PX", "72000000")
			require.Empty(t, looks(), "it has no expiry")
			do("PEXPIRE", name, "216000000")
			require.Empty(t, looks())
			do("PEXPIRE", name, "72000000")
			seen := looks()
			require.Len(t, seen, 1)
			require.Equal(t, "warn", seen[0].Status)
			require.Regexp(t, regexp.QuoteMeta(strconv.Quote(name))+" expires in (20h0m0s|19h59m[0-9]+s), and a reader of it in (60h0m0s|59h59m[0-9]+s)", seen[0].Found)
			do("HSET", name, "mode", "write")
			require.Empty(t, looks())
			do("DEL", name)
			do("SET", name, "x")
			require.Empty(t, looks())
		}
	})
}

// Without fsync the system decides when the AOF reaches the disk.
func TestDoctorOfAnAOFWithoutSync(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no")
	found := foundBy("persistence", diagnosis(t, call(t, s.Addr(), "doctor", "-json")))
	require.Equal(t, "warn", found[0].Status)
	require.Contains(t, found[0].Means, "30 seconds")
}

func TestDoctorReplicas(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	host, port, _ := strings.Cut(master.Addr(), ":")
	replica := redistest.Start(t, "--replicaof", host, port)
	redistest.Eventually(t, patience, func() bool {
		for _, f := range diagnosis(t, call(t, master.Addr(), "doctor", "-json")) {
			if f.Check == "replicas" {
				return f.Status == "warn" && f.Found == "1; WAIT works"
			}
		}
		return false
	}, "the replica is seen")
	r := call(t, replica.Addr(), "doctor", "-json")
	require.Equal(t, "bad", statuses(diagnosis(t, r))["replicas"])
	require.Equal(t, 1, r.code)
}

func TestDoctorRights(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	for _, user := range [][]string{
		{"plain", "on", ">pw", "~job", "~rlock_queue:*", "&redisson_lock__channel:*", "+@all", "-@admin", "-@dangerous", "-zpopmin"},
		{"lame", "on", ">pw", "~*", "&*", "+@all", "-hset", "-eval"},
		{"unlabelled", "on", ">pw", "~job", "~*{job}*", "&*{job}*", "+@all"},
		{"deaf", "on", ">pw", "~*", "+@all"},
		{"exact", "on", ">pw", "~*", "+@all", "resetchannels", "&redisson_lock__channel:{job}", "&redisson_lock__channel:{job}:?*-*", "&redisson_rwlock:*", "&redisson_countdownlatch__*", "&redisson_sc:*"},
		{"off", "off", ">pw", "~*", "&*", "+@all"},
		{"wordless", "on", "~*", "&*", "+@all"},
	} {
		require.NoError(t, c.Do(t.Context(), c.B().Arbitrary("ACL", "SETUSER").Args(user...).Build()).Error())
	}
	rights := func(user string) string {
		var all []string
		for _, f := range diagnosis(t, call(t, s.Addr(), "doctor", "-json", "-acl-user", user, "-name", "job")) {
			if f.Check == "rights" {
				all = append(all, f.Status+" "+f.Found)
			}
		}
		return strings.Join(all, "\n")
	}
	require.Equal(t, "ok the user default has all rights for job", rights("default"))
	require.Regexp(t, `^bad for all locks the user lame lacks: EVAL HSET\n`, rights("lame"))
	require.Contains(t, rights("deaf"), "bad for all locks the user deaf lacks: redisson_lock__channel:{job}")
	plain := rights("plain")
	require.NotContains(t, plain, "for all locks")
	require.Contains(t, plain, "warn for hand-over between processes the user plain lacks: ZPOPMIN\n")
	require.Contains(t, plain, "warn for fenced locks the user plain lacks: redisson_lock_token:{job}\n")
	require.Contains(t, plain, "warn for semaphores the user plain lacks: redisson_sc:{job} redisson_sc:{job}:00000000-0000-0000-0000-000000000000 rlock_sem_queue:{job} rlock_sem_queue:{job}:ends rlock_sem_requests:{job} rlock_sem_requests:{job}:00000000-0000-0000-0000-000000000000\n")
	require.Contains(t, plain, "warn for latches the user plain lacks: redisson_countdownlatch__channel__{job} rlock_latch:{job}\n")
	require.Equal(t, "warn for hand-over between processes the user exact lacks: redisson_lock__channel:{job}:rlock_queue\n"+
		"ok for WithAsked, WithLinger and Options.Deadlock the user exact lacks: rlock_client:{00000000-0000-0000-0000-000000000000}", rights("exact"))
	require.Contains(t, plain, "ok for Options.Label the user plain lacks: rlock_client:{00000000-0000-0000}")
	require.Contains(t, rights("unlabelled"), "ok the user unlabelled has all rights for job", "these are not needed by everybody")
	require.Equal(t, "bad there is no user nobody", rights("nobody"))
	require.Equal(t, exitFailed, call(t, s.Addr(), "doctor", "-acl-user", "nobody").code)
	require.Equal(t, "bad the user off is off", rights("off"))
	require.Equal(t, "bad the user wordless has no password", rights("wordless"))
	require.Equal(t, exitFailed, call(t, s.Addr(), "doctor", "-acl-user", "off").code)

	// A user without ACL rights gets an explanation, and all other checks as far as possible.
	r := call(t, "redis://plain:pw@"+s.Addr(), "doctor", "-json", "-name", "job")
	require.Zero(t, r.code)
	require.Equal(t, map[string]string{
		"server": "ok", "scripts": "ok", "lock": "unknown", "eviction": "unknown", "replicas": "unknown", "persistence": "unknown", "fencing": "unknown",
		"pub/sub": "unknown", "clock": "ok", "rights": "unknown",
	}, statuses(diagnosis(t, r)))
	require.Contains(t, r.out, "may not run ACL DRYRUN")
}

// foundBy returns the findings of one check.
func foundBy(check string, all []finding) (found []finding) {
	for _, f := range all {
		if f.Check == check {
			found = append(found, f)
		}
	}
	return found
}

// An imitation of Redis gets a diagnosis, too, and so does a wrong clock. miniredis answers CLUSTER SLOTS, but is not a broken cluster.
func TestDoctorOfAnImitation(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"", "?protocol=2"} {
		m := miniredis.RunT(t)
		m.SetTime(time.Now().Add(-time.Hour))
		r := call(t, "redis://"+m.Addr()+protocol, "doctor", "-json")
		all := diagnosis(t, r)
		require.Zero(t, r.code, r.out)
		require.Equal(t, map[string]string{
			"server": "warn", "scripts": "ok", "lock": "ok", "eviction": "unknown", "replicas": "unknown", "persistence": "unknown", "fencing": "unknown",
			"pub/sub": "warn", "clock": "warn", "rights": "unknown", "wake": "ok",
		}, statuses(all))
		require.Contains(t, foundBy("server", all)[0].Means, "imitation")
		require.Empty(t, m.Keys())
	}
}

// KeyDB's active replicas are two masters.
func TestDoctorOfActiveReplicas(t *testing.T) {
	t.Parallel()
	for info, active := range map[string]string{
		"role:active-replica\r\nmaster_link_status:up\r\nconnected_slaves:1\r\n": "yes",
		"role:master\r\nconnected_slaves:1\r\n":                                  "yes",
		"role:master\r\nconnected_slaves:2\r\n":                                  "",
	} {
		m := miniredis.RunT(t)
		m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
			switch {
			case cmd == "INFO":
				c.WriteBulk("redis_version:6.3.4\r\nredis_mode:standalone\r\n" + info)
			case cmd == "CONFIG" && args[1] == "active-replica":
				c.WriteMapLen(1)
				c.WriteBulk(args[1])
				c.WriteBulk(active)
			default:
				return false
			}
			return true
		})
		found := foundBy("replicas", diagnosis(t, call(t, m.Addr(), "doctor", "-json")))
		require.Len(t, found, 1)
		require.Equal(t, active == "yes", found[0].Status == "bad", found)
		require.Equal(t, active == "yes", strings.Contains(found[0].Found, "two masters"), found)
	}
}

// A call whose answer comes too late has an effect all the same, which the next one finds.
func TestDoctorGetsAnAnswerLate(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for late := 1; late <= 4; late++ {
			s := redistest.Start(t)
			proxy, scripts := redistest.StartProxy(t, s.Addr()), 0
			proxy.OnReply(func(cmd []string) redistest.Action {
				if !strings.HasPrefix(cmd[0], "EVAL") {
					return redistest.Pass
				}
				if scripts++; scripts != late {
					return redistest.Pass
				}
				time.AfterFunc(time.Second, proxy.Release)
				return redistest.Hold
			})
			r := call(t, proxy.Addr(), "doctor", "-json")
			require.Zero(t, r.code, r.out+r.err)
			require.Equal(t, "ok", statuses(diagnosis(t, r))["lock"])
			requireEmpty(t, s)
		}
	})
}

// A distant server has time to answer, and each answer less than it takes to ask them all.
func TestDoctorOfADistantServer(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, redistest.Start(t).Addr())
	proxy.Delay(50 * time.Millisecond)
	r := call(t, proxy.Addr(), "doctor", "-json")
	require.Zero(t, r.code, r.out+r.err)
	got := statuses(diagnosis(t, r))
	require.Equal(t, "ok", got["rights"])
	require.Equal(t, "ok", got["wake"])
}

// A proxy that shows a cluster as a single server is reported.
func TestDoctorOfAClusterBehindOneAddress(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, redistest.StartCluster(t, 1, 0).Addrs()[0])
	proxy.OnRequest(redistest.Each("CLUSTER", redistest.Fail("ERR This instance has cluster support disabled")))
	r := call(t, proxy.Addr(), "doctor", "-json")
	require.Equal(t, exitFailed, r.code)
	require.Equal(t, "bad", statuses(diagnosis(t, r))["cluster"])
}

// The doctor checks each command called by a script.
func TestDoctorKnowsAllCommands(t *testing.T) {
	t.Parallel()
	known := make(map[string]bool)
	for _, group := range neededRights("job", true, true) {
		for _, r := range group.rights {
			known[r[0]] = true
		}
	}
	scripts, err := filepath.Glob("../../lua/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	calls := regexp.MustCompile(`redis\.p?call\('(\w+)'`)
	for _, name := range scripts {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, call := range calls.FindAllStringSubmatch(string(text), -1) {
			require.True(t, known[strings.ToUpper(call[1])], "%s calls %s", name, call[1])
		}
	}
	// The documentation has these rights, and no others.
	text, err := os.ReadFile("../../docs/internals/protocol.md")
	require.NoError(t, err)
	_, rights, _ := strings.Cut(string(text), "\n## Rights\n")
	for use := range known {
		if use != "PUBSUB" && use != "CLIENT" && use != "CLUSTER" { // with subcommands
			before, _, _ := strings.Cut(rights, "| missing |")
			require.Contains(t, before, "`"+use+"`")
		}
	}
	rights, _, _ = strings.Cut(rights, "\nKeys: ")
	commands := regexp.MustCompile("`([A-Z]+)[ A-Z]*`").FindAllStringSubmatch(rights, -1)
	require.Greater(t, len(commands), 30)
	for _, command := range commands {
		if name := command[1]; name != "NUMSUB" { // after PUBSUB SHARDNUMSUB
			require.True(t, known[name], name)
		}
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	f := func(check, found, server string) finding { return finding{"ok", check, found, "", []string{server}} }
	all := merge(nil, []finding{f("a", "1", "x"), f("b", "1", "x")})
	all = merge(all, []finding{f("a", "2", "y"), f("b", "1", "y")})
	require.Equal(t, []finding{f("a", "1", "x"), f("a", "2", "y"), {"ok", "b", "1", "", []string{"x", "y"}}}, all)
}
