package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TestBySentinels: the sentinels' addresses are enough to find the master.
func TestBySentinels(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	neverFail(t, s)
	ctx, unlock := lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("job"))
	url := "redis://127.0.0.1:1?master_set=mymaster"
	for _, sentinel := range s.Sentinels() {
		url += "&addr=" + sentinel.Addr()
	}
	require.Regexp(t, `^job\tmutex\t`+rlock.Owner(ctx), call(t, url, "ls").out)
	requireWaits(t, url, unlock)
	for _, f := range diagnosis(t, call(t, url, "doctor", "-json")) {
		if f.Check == "replicas" {
			require.Equal(t, "warn", f.Status, f)
			require.Equal(t, []string{s.Master(t).Addr()}, f.Servers)
		}
	}

	// A user without the right to ROLE cannot connect through sentinels.
	master := s.Master(t).Client(t, redistest.Single)
	require.NoError(t, master.Do(t.Context(), master.B().Arbitrary("ACL", "SETUSER", "shop", "on", ">pw", "~*", "&*", "+@all", "-role").Build()).Error())
	require.Contains(t, call(t, url, "doctor", "-acl-user", "shop").out, "bad\trights\tfor sentinels the user shop lacks: ROLE\t")
	require.NotContains(t, call(t, s.Master(t).Addr(), "doctor", "-acl-user", "shop").out, "ROLE")
}

// neverFail lets sentinels wait for a master that a busy machine keeps from answering.
func neverFail(t *testing.T, s *redistest.Sentinel) {
	t.Helper()
	for _, sentinel := range s.Sentinels() {
		c := sentinel.Client(t, redistest.Single)
		require.NoError(t, c.Do(t.Context(), c.B().Arbitrary("SENTINEL", "SET", "mymaster", "down-after-milliseconds", "3600000").Build()).Error())
	}
}

// requireWaits runs a command under the lock job, which is held until unlock.
func requireWaits(t *testing.T, addr string, unlock rlock.UnlockFunc, flags ...string) {
	t.Helper()
	r := start(t, nil, slices.Concat([]string{"run", "-v", "-redis", addr}, flags, []string{"job", "--", "echo", "inside"})...)
	redistest.Eventually(t, patience, func() bool { return strings.Contains(r.err.String(), "waiting: held by") }, "it waits")
	require.NoError(t, unlock())
	got := r.rest()
	require.Zero(t, got.code, got.err)
	require.Equal(t, "inside", got.out)
}

// Sentinels may have users of their own.
func TestSentinelsWithAPassword(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	master := s.Master(t).Addr()
	for _, sentinel := range s.Sentinels() {
		c := sentinel.Client(t, redistest.Single)
		for _, user := range [][]string{{"shop", "on", ">secret", "~*", "&*", "+@all"}, {"default", "resetpass", ">hush"}} {
			require.NoError(t, c.Do(t.Context(), c.B().Arbitrary("ACL", "SETUSER").Args(user...).Build()).Error())
		}
	}
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "password")
		require.NoError(t, os.WriteFile(name, []byte(text+"\n"), 0o600))
		return name
	}
	url := "redis://" + s.Addrs()[0] + "?master_set=mymaster"
	require.Equal(t, result{}, call(t, url, "ls", "-sentinel-user", "shop", "-sentinel-password-file", file("secret")))
	require.Equal(t, result{}, call(t, url, "ls", "-sentinel-password-file", file("hush")))
	r := call(t, url, "ls")
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, "NOAUTH")
	require.Contains(t, r.err, "-sentinel-password-file")
	for says, args := range map[string][]string{
		"-sentinel-user needs -sentinel-password-file": {url, "-sentinel-user", "shop"},
		"need sentinels: ?master_set=NAME":             {master, "-sentinel-password-file", file("secret")},
		"-sentinel-password-file: open":                {url, "-sentinel-password-file", file("secret") + ".no"},
	} {
		r := call(t, args[0], append([]string{"ls"}, args[1:]...)...)
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.err, says)
	}
}

// The server that refuses is named, with the options that it needs.
func TestSentinelsOrMasterRefuse(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, "--user", "shop", "on", ">right", "~*", "&*", "+@all", "--user", "off", "off", ">right", "~*", "&*", "+@all",
		"--user", "norole", "on", ">right", "~*", "&*", "+@all", "-role")
	tell := func(server *redistest.Server, command ...string) {
		c := server.Client(t, redistest.Single)
		require.NoError(t, c.Do(t.Context(), c.B().Arbitrary("ACL", "SETUSER").Args(command...).Build()).Error())
	}
	for _, sentinel := range s.Sentinels() {
		tell(sentinel, "asks", "on", ">secret", "~*", "&*", "+@all")
		tell(sentinel, "off", "off", ">secret", "~*", "&*", "+@all")
		tell(sentinel, "nosentinel", "on", ">secret", "~*", "&*", "+@all", "-sentinel")
	}
	for _, sentinel := range s.Sentinels() {
		tell(sentinel, "default", "resetpass", ">hush")
	}
	dir := t.TempDir()
	for _, password := range []string{"right", "secret", "hush", "wrong"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, password), []byte(password+"\n"), 0o600))
	}
	sentinel, master := s.Addrs()[0], s.Master(t).Addr()
	const (
		sentinels = `(sentinels have users and passwords of their own: -sentinel-user, -sentinel-password-file)`
		servers   = `(set the password with REDIS_PASSWORD or -password-file, the user in the URL)`
	)
	type row struct{ user, password, sentinelUser, sentinelPassword, says string }
	rows := map[string]row{
		"all right":                    {"shop", "right", "asks", "secret", ""},
		"sentinels: no password":       {"shop", "right", "", "", sentinel + ` (sentinel): NOAUTH .* ` + sentinels},
		"sentinels: wrong password":    {"shop", "right", "asks", "wrong", sentinel + ` (sentinel): WRONGPASS .* ` + sentinels},
		"sentinels: the servers'":      {"shop", "right", "shop", "right", sentinel + ` (sentinel): WRONGPASS .* ` + sentinels},
		"sentinels: user is off":       {"shop", "right", "off", "secret", sentinel + ` (sentinel): WRONGPASS .* ` + sentinels},
		"sentinels: user lacks rights": {"shop", "right", "nosentinel", "secret", sentinel + ` (sentinel): NOPERM .* 'sentinel\|sentinels' command`},
		"master: wrong password":       {"shop", "wrong", "asks", "secret", master + ` (master): WRONGPASS .* ` + servers},
		"master: no such user":         {"asks", "secret", "asks", "secret", master + ` (master): WRONGPASS .* ` + servers},
		"master: user is off":          {"off", "right", "", "hush", master + ` (master): WRONGPASS .* ` + servers},
		"master: user lacks rights":    {"norole", "right", "", "hush", master + ` (master): NOPERM .* 'role' command`},
		"both: wrong password":         {"shop", "wrong", "asks", "wrong", sentinel + ` (sentinel): WRONGPASS .* ` + sentinels},
	}
	refused := func(t *testing.T, c row) {
		t.Parallel()
		args := []string{"-redis", "redis://" + c.user + "@" + sentinel + "?master_set=mymaster", "-password-file", filepath.Join(dir, c.password)}
		if c.sentinelUser != "" {
			args = append(args, "-sentinel-user", c.sentinelUser)
		}
		if c.sentinelPassword != "" {
			args = append(args, "-sentinel-password-file", filepath.Join(dir, c.sentinelPassword))
		}
		for _, command := range [][]string{{"ls"}, {"doctor"}, {"run", "-wait", "0"}} {
			command = append(command, args...)
			if command[0] == "run" {
				command = append(command, "job", "--", "true")
			}
			r := call(t, "", command...)
			if c.says == "" {
				require.Equal(t, 0, r.code, r.err)
				continue
			}
			require.Equal(t, exitInternal, r.code, r.err)
			says := strings.NewReplacer("(", `\(`, ")", `\)`).Replace(c.says)
			require.Regexp(t, "^rlock: "+says+`[^\n(]*\n$`, r.err)
		}
	}
	t.Run("refused", func(t *testing.T) { // ends with the last of them
		for name, c := range rows {
			t.Run(name, func(t *testing.T) { refused(t, c) })
		}
	})

	// Without sentinels, only the servers' options help.
	r := call(t, "redis://shop:wrong@"+master, "ls")
	require.Contains(t, r.err, master+": WRONGPASS")
	require.Contains(t, r.err, servers)

	// A master that is down is not the address that was given.
	nodes := s.Nodes()
	for i := range nodes { // the replicas first: none is promoted
		nodes[len(nodes)-1-i].Kill()
	}
	r = call(t, "redis://"+sentinel+"?master_set=mymaster", "ls", "-sentinel-password-file", filepath.Join(dir, "hush"))
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, master+" (master): dial ")
	require.Contains(t, r.err, "(the sentinels give this address)")
}

// All connections behind sentinels have TLS, and show the client certificate.
func TestSentinelsOverTLS(t *testing.T) {
	t.Parallel()
	s, cert, key := redistest.StartTLSSentinel(t)
	neverFail(t, s)
	url := "rediss://127.0.0.1:1?master_set=mymaster"
	for _, addr := range s.Addrs() {
		url += "&addr=" + addr
	}
	with := func(args ...string) []string { return append(args, "-cacert", cert, "-cert", cert, "-key", key) }
	ctx, unlock := lock(t.Context(), t, newLocks(t, s.Master(t).Client(t, redistest.Single)).Mutex("job"))
	require.Regexp(t, `^job\tmutex\t`+rlock.Owner(ctx), call(t, url, with("ls")...).out)
	require.Equal(t, 0, call(t, url, append(with("run"), "other", "--", "true")...).code)
	requireWaits(t, url, unlock, with()...)
	for _, f := range diagnosis(t, call(t, url, with("doctor", "-json")...)) {
		require.NotEqual(t, "bad", f.Status, f)
	}

	// Each server shows a certificate for its own name, not for that of the first sentinel.
	require.Equal(t, 0, call(t, strings.Replace(url, "127.0.0.1:1?", "localhost:1?", 1), with("ls")...).code)

	r := call(t, url, "ls", "-cacert", cert)
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, "client certificate") // if the server's reason arrives before its reset, it is there, too
	r = call(t, url, "ls", "-cert", cert, "-key", key)
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, "certificate signed by unknown authority")
	r = call(t, strings.Replace(url, "rediss:", "redis:", 1), "ls")
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, "one that wants TLS or a client certificate")
}

// A long run follows the master even if the sentinel's announcement does not arrive.
func TestRunMissesTheAnnouncementOfAMaster(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	old := s.Master(t)
	proxy := redistest.StartProxy(t, s.Addrs()[0])
	proxy.OnReply(redistest.Each("MESSAGE +switch-master", redistest.Drop))
	r := start(t, nil, "run", "-redis", "redis://"+proxy.Addr()+"?master_set=mymaster", "-watchdog", "15s", "job", "--", "sh", "-c", "echo inside; cat")
	r.saw("inside")
	for _, node := range s.Nodes() { // any replica may be promoted, and a failover loses what that has not received
		rdb := node.Client(t, redistest.Single)
		redistest.Eventually(t, patience, func() bool {
			there, err := rdb.Do(t.Context(), rdb.B().Exists().Key("job").Build()).AsBool()
			return err == nil && there
		}, "replicated")
	}
	sentinel := s.Sentinels()[0].Client(t, redistest.Single)
	require.NoError(t, sentinel.Do(t.Context(), sentinel.B().Arbitrary("SENTINEL", "FAILOVER", "mymaster").Build()).Error())
	redistest.Eventually(t, patience, func() bool { return s.Master(t) != old }, "a replica is promoted")
	master := s.Master(t).Client(t, redistest.Single)
	before := int64(1 << 60)
	redistest.Eventually(t, patience, func() bool {
		left, err := master.Do(t.Context(), master.B().Pttl().Key("job").Build()).AsInt64()
		require.NoError(t, err)
		require.Positive(t, left, r.err.String())
		renewed := left > before
		before = left
		return renewed
	}, "the new master gets a renewal")
	require.NoError(t, r.in.Close())
	require.Equal(t, 0, r.rest().code)
}
