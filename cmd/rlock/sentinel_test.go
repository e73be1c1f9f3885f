package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TestBySentinels: the sentinels' addresses are enough to find the master.
func TestBySentinels(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	ctx, _ := lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("job"))
	url := "redis://127.0.0.1:1?master_set=mymaster"
	for _, sentinel := range s.Sentinels() {
		url += "&addr=" + sentinel.Addr()
	}
	require.Regexp(t, `^job\tmutex\t`+rlock.Owner(ctx), call(t, url, "ls").out)
	require.Equal(t, exitNotAcquired, call(t, url, "run", "-wait", "0", "job", "--", "true").code)
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
