package redistest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

const childEnv = "REDISTEST_CHILD"

// TestServerDiesWithItsTestBinary runs itself as a child process, which starts a server, reports its pid and kills itself, so no clean-up
// runs.
func TestServerDiesWithItsTestBinary(t *testing.T) {
	if file := os.Getenv(childEnv); file != "" {
		s := redistest.Start(t)
		require.NoError(t, os.WriteFile(file, fmt.Append(nil, s.Pid()), 0o600))
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	file := filepath.Join(t.TempDir(), "pid")
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServerDiesWithItsTestBinary$")
	child.Env = append(os.Environ(), childEnv+"="+file, "TMPDIR="+t.TempDir())
	require.Error(t, child.Run())
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var pid int
	_, err = fmt.Sscan(string(text), &pid)
	require.NoError(t, err)
	redistest.Eventually(t, soon, func() bool { return gone(pid) }, "server dies with its parent")
}

// gone reports whether no such process runs; zombies count as gone.
func gone(pid int) bool {
	var state string
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, _ = fmt.Sscanf(string(stat), "%d (redis-server) %s", &pid, &state)
	return state == "Z"
}
