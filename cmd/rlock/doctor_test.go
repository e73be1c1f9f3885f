package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
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
		"rights": "ok",
	}
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
		"no EVAL":    {[]string{"--rename-command", "EVAL", ""}, 1, map[string]string{"scripts": "bad", "lock": "bad", "rights": "bad"}},
		"no replica": {[]string{"--min-replicas-to-write", "1"}, 1, map[string]string{"lock": "bad"}},
		"full":       {[]string{"--maxmemory", "1", "--maxmemory-policy", "noeviction"}, 1, map[string]string{"lock": "bad"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, c.args...)
			r := call(t, s.Addr(), "doctor", "-json")
			want := maps.Clone(well)
			maps.Copy(want, c.differs)
			require.Equal(t, want, statuses(diagnosis(t, r)), r.out)
			require.Equal(t, c.code, r.code)
			requireEmpty(t, s)
		})
	}
}

// A Redisson reader with a shorter watchdog time has set the readers' shared expiry.
func TestDoctorReaders(t *testing.T) {
	t.Parallel()
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
	require.Contains(t, plain, "warn for semaphores the user plain lacks: redisson_sc:{job} redisson_sc:{job}:00000000-0000-0000-0000-000000000000 rlock_sem_queue:{job} rlock_sem_requests:{job} rlock_sem_requests:{job}:00000000-0000-0000-0000-000000000000\n")
	require.Contains(t, plain, "warn for latches the user plain lacks: redisson_countdownlatch__channel__{job} rlock_latch:{job}\n")
	require.Equal(t, "warn for hand-over between processes the user exact lacks: redisson_lock__channel:{job}:rlock_queue\n"+
		"ok for WithAsked, WithLinger and Options.Deadlock the user exact lacks: rlock_client:{00000000-0000-0000-0000-000000000000}", rights("exact"))
	require.Contains(t, plain, "ok for Options.Label the user plain lacks: rlock_client:{00000000-0000-0000-0000-000000000000}")
	require.Contains(t, rights("unlabelled"), "ok the user unlabelled has all rights for job", "these are not needed by everybody")
	require.Equal(t, "bad there is no user nobody", rights("nobody"))
	require.Equal(t, exitFailed, call(t, s.Addr(), "doctor", "-acl-user", "nobody").code)

	// A user without ACL rights gets an explanation, and all other checks as far as possible.
	r := call(t, "redis://plain:pw@"+s.Addr(), "doctor", "-json", "-name", "job")
	require.Zero(t, r.code)
	require.Equal(t, map[string]string{
		"server": "ok", "scripts": "ok", "lock": "unknown", "eviction": "unknown", "replicas": "unknown", "persistence": "unknown", "fencing": "unknown",
		"pub/sub": "ok", "clock": "ok", "rights": "unknown",
	}, statuses(diagnosis(t, r)))
	require.Contains(t, r.out, "may not run ACL DRYRUN")
}

// An imitation of Redis gets a diagnosis, too, and so does a wrong clock.
func TestDoctorOfAnImitation(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	m.SetTime(time.Now().Add(-time.Hour))
	got := statuses(diagnosis(t, call(t, m.Addr(), "doctor", "-json")))
	require.Equal(t, "ok", got["scripts"])
	require.Equal(t, "warn", got["clock"])
	require.Equal(t, "unknown", got["rights"])
}

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
	require.Regexp(t, `^it fails: .*NOREPLICAS`, lock(s.Addr()).Found)
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
	require.Regexp(t, `^it fails: .*MISCONF`, lock(s.Addr()).Found)
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
	// And each command in the documentation.
	text, err := os.ReadFile("../../docs/protocol.md")
	require.NoError(t, err)
	_, rights, _ := strings.Cut(string(text), "\n## Rights\n")
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

// The doctor requires no command beyond the rights in docs/protocol.md.
func TestDoctorRightsOfTheDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/protocol.md")
	require.NoError(t, err)
	_, rights, ok := strings.Cut(string(page), "\n## Rights\n")
	require.True(t, ok)
	rights, _, _ = strings.Cut(rights, "| missing |")
	for _, use := range neededRights("job", true, true) {
		for _, r := range use.rights {
			if command := strings.Join(r[:1], " "); command != "PUBSUB" && command != "CLIENT" && command != "CLUSTER" {
				require.Contains(t, rights, "`"+command+"`", use.use)
			}
		}
	}
}
