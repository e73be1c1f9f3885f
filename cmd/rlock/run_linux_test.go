package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
)

// TestRunKilled: nothing that a command has started outlives its rlock, or works beside the next owner.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	t.Run("gentle", func(t *testing.T) {
		t.Parallel()
		r := start(t, nil, "run", "-addr", s.Addr(), "gentle", "--", "sh", "-c", untilSignal)
		r.saw("inside")
		r.signal(syscall.SIGKILL)
		got := r.rest()
		require.Equal(t, 128+9, got.code)
		require.Equal(t, "ended by TERM", got.out)
	})
	for name, script := range map[string]string{
		// The command itself, a child, and two that have left the group, one of them an orphan.
		"stubborn": `trap "" TERM; sh -c "$WORKS" & setsid sh -c "$WORKS" & sh -c 'setsid sh -c "$WORKS" & exit 0'; eval "$WORKS"`,
		// The command ends by SIGTERM, what it started does not.
		"left behind": `(trap "" TERM; sh -c "$WORKS" & setsid sh -c "$WORKS" & setsid sh -c "$WORKS" &) ; eval "$WORKS"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := start(t, []string{"DIR=" + dir, `WORKS=: >"$DIR/$$"; echo inside; while :; do sleep 0.05; done`},
				"run", "-addr", s.Addr(), "-watchdog", quick, name, "--", "sh", "-c", script)
			for range 4 {
				r.saw("inside")
			}
			next := start(t, []string{"DIR=" + dir}, "run", "-v", "-addr", s.Addr(), name, "--", "sh", "-c",
				`for pid in $(ls "$DIR"); do ! kill -0 $pid 2>/dev/null || echo $pid works beside; done; echo inside`)
			redistest.Eventually(t, patience, func() bool { return strings.Contains(next.err.String(), "waiting") }, "it waits")
			r.signal(syscall.SIGKILL)
			require.Equal(t, exitSignal+int(syscall.SIGKILL), r.rest().code)
			got := next.rest()
			require.Zero(t, got.code, got.err)
			require.Equal(t, "inside", got.out)
			pids, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, pids, 4)
		})
	}
}

// TestRunLostLeavesNothing: after a loss, descendants end that have left the command's group.
func TestRunLostLeavesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := start(t, nil, "run", "-addr", s.Addr(), "-lease", "1s", "job", "--",
		"sh", "-c", `(trap "" TERM; setsid sh -c 'echo $$; while :; do sleep 0.05; done' &); cat`)
	pid, err := strconv.Atoi(r.saw(""))
	require.NoError(t, err)
	require.Equal(t, exitLost, r.rest().code)
	require.Equal(t, syscall.ESRCH, syscall.Kill(pid, 0))
}

// TestRunGuardKilled: without its guard the command ends, and then the lock is free.
func TestRunGuardKilled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := start(t, nil, "run", "-addr", s.Addr(), "job", "--", "sh", "-c", `echo $PPID; (trap "" TERM INT; while :; do sleep 0.05; done) & trap 'echo interrupted' INT; while :; do sleep 0.05; done`)
	guard, err := strconv.Atoi(r.saw(""))
	require.NoError(t, err)
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", guard))
	require.NoError(t, err)
	require.Equal(t, guardName+"\n", string(name), "pkill rlock spares it")
	r.signal(syscall.SIGINT)
	r.saw("interrupted") // so rlock knows the command
	require.NoError(t, syscall.Kill(guard, syscall.SIGKILL))
	require.Equal(t, exitSignal+int(syscall.SIGKILL), r.rest().code)
	requireEmpty(t, s)
}

// TestRunReaps: orphans of the command leave no zombies, even if rlock is a container's init.
func TestRunReaps(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := start(t, nil, "run", "-addr", s.Addr(), "job", "--", "sh", "-c", `echo $PPID; for i in 1 2 3; do sh -c 'true & exit 0'; done; echo inside; cat`)
	guard, err := strconv.Atoi(r.saw(""))
	require.NoError(t, err)
	r.saw("inside")
	redistest.Eventually(t, patience, func() bool {
		children, err := filepath.Glob("/proc/[0-9]*/stat")
		require.NoError(t, err)
		many := 0
		for _, file := range children {
			if parent, ok := parentOf(filepath.Base(filepath.Dir(file))); ok && parent == guard {
				many++
			}
		}
		return many == 1 // the command
	}, "the orphans have gone")
	require.NoError(t, r.in.Close())
	require.Zero(t, r.rest().code)
}
