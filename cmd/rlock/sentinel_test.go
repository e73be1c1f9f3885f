package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
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
