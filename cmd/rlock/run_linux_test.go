package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rlock/rlock/internal/testing/redistest"
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
				"run", "-addr", s.Addr(), "-watchdog", "20s", name, "--", "sh", "-c", script) // a quarter of it is left to kill them all
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

// TestRunStopped: if rlock alone is stopped past its lease, the command ends nevertheless, and all that it has started.
func TestRunStopped(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	t.Run("gentle", func(t *testing.T) {
		t.Parallel()
		r := start(t, nil, "run", "-addr", s.Addr(), "-watchdog", quick, "gentle", "--", "sh", "-c", untilSignal)
		r.saw("inside")
		r.signal(syscall.SIGSTOP)
		r.saw("ended by TERM")
		r.signal(syscall.SIGCONT)
		require.Equal(t, exitLost, r.rest().code)
	})
	t.Run("stubborn", func(t *testing.T) {
		t.Parallel()
		r := start(t, nil, "run", "-addr", s.Addr(), "-watchdog", quick, "-kill-after", "10ms", "stubborn", "--",
			"sh", "-c", `trap "" TERM; setsid sh -c 'echo $$; while :; do sleep 0.05; done' & while :; do sleep 0.05; done`)
		pid, err := strconv.Atoi(r.saw(""))
		require.NoError(t, err)
		r.signal(syscall.SIGSTOP)
		redistest.Eventually(t, patience, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }, "all of it has ended")
		r.signal(syscall.SIGCONT)
		require.Equal(t, exitLost, r.rest().code)
	})
	t.Run("after the loss", func(t *testing.T) {
		t.Parallel()
		r := start(t, nil, "run", "-addr", s.Addr(), "-watchdog", quick, "-kill-after", "1s", "after", "--",
			"sh", "-c", `trap "" TERM; echo $$; while :; do sleep 0.05; done`)
		pid, err := strconv.Atoi(r.saw(""))
		require.NoError(t, err)
		rdb := s.Client(t)
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Del().Key("after").Build()).Error())
		redistest.Eventually(t, patience, func() bool { return strings.Contains(r.err.String(), "stopping the command") }, "it is told")
		r.signal(syscall.SIGSTOP)
		redistest.Eventually(t, patience, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }, "it has ended")
		r.signal(syscall.SIGCONT)
		require.Equal(t, exitLost, r.rest().code)
	})
	t.Run("within the lease", func(t *testing.T) {
		t.Parallel()
		r := start(t, nil, "run", "-addr", s.Addr(), "within", "--", "sh", "-c", untilSignal)
		r.saw("inside")
		r.signal(syscall.SIGSTOP)
		r.signal(syscall.SIGTERM)
		r.signal(syscall.SIGCONT)
		got := r.rest()
		require.Equal(t, result{11, "ended by TERM", ""}, result{got.code, got.out, ""})
	})
}

// TestRunLostLeavesNothing: after a loss, descendants end that have left the command's group.
func TestRunLostLeavesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := start(t, nil, "run", "-addr", s.Addr(), "-watchdog", quick, "job", "--",
		"sh", "-c", `(trap "" TERM; setsid sh -c 'echo $$; while :; do sleep 0.05; done' &); cat`)
	pid, err := strconv.Atoi(r.saw(""))
	require.NoError(t, err)
	rdb := s.Client(t)
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Del().Key("job").Build()).Error())
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
	r := start(t, nil, "run", "-addr", s.Addr(), "job", "--", "sh", "-c", `for i in 1 2 3; do sh -c 'true & exit 0'; done; echo inside; cat`)
	r.saw("inside")
	f := familyOf(t, r.cmd.Process.Pid)
	redistest.Eventually(t, patience, func() bool { return len(children(t)[f.guard]) == 2 }, "the orphans have gone")
	require.NoError(t, r.in.Close())
	require.Zero(t, r.rest().code)
}

// children returns the children of all processes, zombies included.
func children(t *testing.T) map[int][]int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	all := make(map[int][]int)
	for _, file := range stats {
		name := filepath.Base(filepath.Dir(file))
		pid, err := strconv.Atoi(name)
		require.NoError(t, err)
		if parent, ok := parentOf(name); ok {
			all[parent] = append(all[parent], pid)
		}
	}
	return all
}

// family is the processes of a run.
type family struct{ guard, witness, command int }

// familyOf waits until all of them work.
func familyOf(t *testing.T, rlock int) (f family) {
	t.Helper()
	redistest.Eventually(t, patience, func() bool {
		children := children(t)
		if len(children[rlock]) != 1 {
			return false
		}
		f = family{guard: children[rlock][0]}
		for _, pid := range children[f.guard] {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			switch group, _ := unix.Getpgid(pid); {
			case err != nil:
			case strings.HasPrefix(string(status), "Name:\t"+witnessName+"\n"): // it has its name once it catches signals
				f.witness = pid
			case group == pid:
				f.command = pid
			}
		}
		return f.witness != 0 && f.command != 0
	}, "the witness and the command work")
	return f
}

// counts is a script that says which signals it gets, and ends by SIGHUP.
const counts = `trap 'echo TERM' TERM; trap 'echo HUP; exit 7' HUP; echo inside; while :; do sleep 0.05; done`

// TestRunSignalledTogether: a signal that others send to rlock and to the command's group, as systemd does, comes once.
func TestRunSignalledTogether(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, whom := range map[string]func(rlock int, f family) []int{
		"systemd":        func(rlock int, f family) []int { return []int{rlock, f.guard, f.witness, f.command} },
		"the group":      func(rlock int, f family) []int { return []int{-f.command, rlock} },
		"rlock":          func(rlock int, _ family) []int { return []int{rlock} },
		"rlock, guard":   func(rlock int, f family) []int { return []int{f.guard, rlock} },
		"a dead witness": func(rlock int, f family) []int { return []int{rlock} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, nil, "run", "-addr", s.Addr(), name, "--", "sh", "-c", counts)
			r.saw("inside")
			rlock := r.cmd.Process.Pid
			f := familyOf(t, rlock)
			if name == "a dead witness" {
				require.NoError(t, syscall.Kill(f.witness, syscall.SIGKILL))
			}
			for _, pid := range whom(rlock, f) {
				require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
			}
			r.saw("TERM")
			r.signal(syscall.SIGHUP) // after a second SIGTERM, if there is one
			got := r.rest()
			require.Equal(t, result{7, "HUP", ""}, result{got.code, got.out, ""})
		})
	}
}

// TestUnitOfTheDocs stops the service of the unit file in docs/cli.md as systemd does, and lets systemd read it if there is one.
func TestUnitOfTheDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(projectRoot, "docs", "cli.md"))
	require.NoError(t, err)
	found := regexp.MustCompile("(?s)```text\n(\\[Unit].*?)```").FindSubmatch(page)
	require.NotNil(t, found)
	dir := t.TempDir()
	service := filepath.Join(dir, "orders")
	require.NoError(t, os.WriteFile(service, []byte("#!/bin/sh\n"+counts), 0o700))
	s := redistest.Start(t)
	unit := strings.NewReplacer("/usr/local/bin/rlock", binary, "/usr/local/bin/orders", service, "10.0.0.5:6379", s.Addr()).Replace(string(found[1]))

	line := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(unit)
	require.NotNil(t, line)
	url := regexp.MustCompile(`(?m)^Environment=(.*)$`).FindStringSubmatch(unit)
	require.NotNil(t, url)
	argv := strings.Fields(line[1])
	r := startCommand(t, []string{url[1]}, argv[0], argv[1:]...)
	r.saw("inside")
	f := familyOf(t, r.cmd.Process.Pid)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
		for _, pid := range []int{r.cmd.Process.Pid, f.guard, f.command, f.witness} {
			require.NoError(t, syscall.Kill(pid, signal))
		}
	}
	r.saw("TERM")
	r.signal(syscall.SIGHUP)
	got := r.rest()
	require.Equal(t, result{7, "HUP", ""}, result{got.code, got.out, ""})
	requireEmpty(t, s)

	if analyze, err := exec.LookPath("systemd-analyze"); err == nil {
		file := filepath.Join(dir, "orders.service")
		require.NoError(t, os.WriteFile(file, []byte(unit), 0o600))
		said, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput()
		require.NoError(t, err, string(said))
		require.Empty(t, string(said))
	}
}
