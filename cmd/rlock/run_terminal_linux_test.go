package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// shell is a shell with job control at its own terminal, with a server and a folder.
type shell struct {
	*terminal
	*redistest.Server
	dir string
}

func newShell(t *testing.T) *shell {
	t.Helper()
	s := &shell{nil, redistest.Start(t), t.TempDir()}
	s.terminal = terminalOf(t, exec.CommandContext(t.Context(), "sh", "-i"), "PS1=$ ", "ENV=", "HOME="+s.dir, "REDIS_ADDR="+s.Addr(),
		"PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	s.saw("$ ")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.seen.String())
		}
	})
	return s
}

// types sends a line. "" in it separates text that the echo shows but the line's output does not contain.
func (s *shell) types(format string, args ...any) {
	s.t.Helper()
	s.press(fmt.Sprintf(format, args...) + "\n")
}

func (s *shell) file(name string) string { return filepath.Join(s.dir, name) }

// ticks returns the progress of tick. The command does not fork: a shell about to fork cannot be stopped.
func (s *shell) ticks() int64 {
	s.t.Helper()
	rdb := s.Client(s.t)
	n, err := rdb.Do(s.t.Context(), rdb.B().Get().Key("ticks").Build()).AsInt64()
	if !rueidis.IsRedisNil(err) {
		require.NoError(s.t, err)
	}
	return n
}

func (s *shell) ticking(more int64) {
	s.t.Helper()
	redistest.Eventually(s.t, patience, func() bool { return s.ticks() > more }, "it works")
}

const tick = `echo in""side; exec redis-cli -p ${REDIS_ADDR#*:} -r -1 -i 0.02 INCR ticks >/dev/null`

// pipelines are the ways in which a command may have the terminal.
var pipelines = map[string]string{"alone": "", "in a pipeline": "echo data | "}

// Ctrl-Z stops rlock and the command. If the lease has expired when they continue, the command ends before it does anything.
func TestRunStoppedPastItsLease(t *testing.T) {
	t.Parallel()
	for name, before := range pipelines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			s.types("%srlock run -watchdog %s job -- sh -c '%s'", before, quick, tick)
			s.ticking(0)
			s.press("\x1a")
			s.saw("Stopped")
			ticks := s.ticks()
			lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("job")) // when the lease has ended
			s.types("fg; echo co\"\"de $?")
			s.saw("code " + strconv.Itoa(exitLost))
			require.Contains(t, s.seen.String(), "stopping the command")
			require.Equal(t, ticks, s.ticks(), "it has worked beside the next owner")
		})
	}
}

// A kill -9 of rlock while Ctrl-Z has stopped both ends the command before it does anything, even after its lease.
func TestRunStoppedAndKilled(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	rdb := s.Client(t)
	works := func() bool {
		clients, err := rdb.Do(t.Context(), rdb.B().ClientList().Build()).ToString()
		require.NoError(t, err)
		return strings.Contains(clients, "cmd=incr")
	}
	s.types("rlock run -watchdog %s job -- sh -c '%s'", quick, tick)
	s.ticking(0)
	require.True(t, works())
	s.press("\x1a")
	s.saw("Stopped")
	ticks := s.ticks()
	lock(t.Context(), t, newLocks(t, rdb).Mutex("job", rlock.WithLease(2*lateTime))) // when the lease has ended
	lock(t.Context(), t, newLocks(t, rdb).Mutex("job"))                              // after that time
	require.True(t, works(), "the guard leaves alone what rlock has stopped")
	s.types("kill -9 %%1")
	redistest.Eventually(t, patience, func() bool { return !works() }, "all of it has ended")
	require.Equal(t, ticks, s.ticks(), "it has worked beside the next owner")
}

// Within the lease both continue, even in the background, and Ctrl-C ends the command.
func TestRunStoppedAndContinued(t *testing.T) {
	t.Parallel()
	for name, before := range pipelines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			s.types("%srlock run job -- sh -c '%s'", before, tick)
			for _, how := range []string{"fg", "bg; fg"} {
				s.ticking(s.ticks())
				stopped := strings.Count(s.seen.String(), "Stopped")
				s.press("\x1a")
				redistest.Eventually(t, patience, func() bool { return strings.Count(s.seen.String(), "Stopped") > stopped }, "it stops")
				s.types("%s", how)
			}
			s.ticking(s.ticks())
			s.press("\x03")
			s.types("echo co\"\"de $?")
			s.saw("code " + strconv.Itoa(exitSignal+int(syscall.SIGINT)))
			require.Equal(t, exitFree, call(t, s.Addr(), "show", "job").code)
		})
	}
}

// A command with a pipe as stdin reads from the terminal, like a password prompt. Afterwards the terminal is the shell's again.
func TestRunAsksAtTheTerminal(t *testing.T) {
	t.Parallel()
	const asks = `echo as""ks; read x </dev/tty; stty -F /dev/tty -echo; stty -F /dev/tty echo; echo g""ot $x`
	for name, c := range map[string]struct{ before, after, fg string }{
		"in the foreground": {"echo data | ", "", ""},
		"alone":             {"", "", ""},
		"from a script":     {"sh -c 'echo data | ", "; echo af\"\"ter'", ""},
		"in the background": {"echo data | ", " &", "fg"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			require.NoError(t, os.WriteFile(s.file("asks"), []byte(asks), 0o600))
			s.types("%srlock run job -- sh %s%s", c.before, s.file("asks"), c.after)
			s.saw("asks")
			if c.fg != "" {
				redistest.Eventually(t, patience, func() bool { // the shell reports it only with its next prompt
					s.types("jobs")
					return strings.Contains(s.seen.String(), "Stopped")
				}, "it waits for the terminal")
				s.types("%s", c.fg)
			}
			s.types("secret")
			s.saw("got secret")
			s.types("echo us\"\"able")
			s.saw("usable")
			if c.after != "" && c.fg == "" {
				require.Contains(t, s.seen.String(), "after")
			}
			requireEmpty(t, s.Server)
		})
	}
}

// Ctrl-C ends a script that runs its steps under a lock, and not only the step.
func TestRunInterruptedInAScript(t *testing.T) {
	t.Parallel()
	for name, before := range pipelines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			script := before + "rlock run job -- sh -c '" + tick + "'\necho went on\n"
			require.NoError(t, os.WriteFile(s.file("script"), []byte(script), 0o600))
			s.types("sh %s; echo co\"\"de $?", s.file("script"))
			s.saw("inside")
			s.press("\x03")
			s.types("echo ne\"\"xt")
			s.saw("next")
			require.NotContains(t, s.seen.String(), "went on")
			require.Equal(t, exitFree, call(t, s.Addr(), "show", "job").code)
		})
	}
}

// When the lock is lost, the whole command ends, including its children and processes that ignore SIGTERM.
func TestRunLostAtATerminal(t *testing.T) {
	t.Parallel()
	for name, before := range pipelines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			pid := s.file("pid")
			s.types("%srlock run -watchdog %s job -- sh -c '(trap \"\" TERM; exec sh -c \"echo \\$\\$ >%s.new; mv %s.new %s; exec sleep 60\") >/dev/null & wait'; echo co\"\"de $?",
				before, quick, pid, pid, pid)
			redistest.Eventually(t, patience, func() bool { _, err := os.Stat(pid); return err == nil }, "it has begun")
			text, err := os.ReadFile(pid)
			require.NoError(t, err)
			process, err := strconv.Atoi(strings.TrimSpace(string(text)))
			require.NoError(t, err)
			rdb := s.Client(t)
			require.NoError(t, rdb.Do(t.Context(), rdb.B().Del().Key("job").Build()).Error())
			s.saw("code " + strconv.Itoa(exitLost))
			redistest.Eventually(t, patience, func() bool { return syscall.Kill(process, 0) == syscall.ESRCH }, "all of it has ended")
		})
	}
}

// A process that ignores SIGHUP, as under nohup(1), survives the hang-up while it waits, runs or watches.
func TestHangUpIgnored(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	ignoring := func(args string) *running {
		t.Helper()
		return startCommand(t, nil, "sh", "-c", `trap "" HUP; exec "$0" `+args, binary)
	}
	const run = `run -addr `
	first := ignoring(run + s.Addr() + ` job -- sh -c 'trap "echo ended by HUP" HUP; echo inside; cat'`)
	first.saw("inside")
	second := ignoring(run + s.Addr() + ` job -- echo inside`)
	waitForWaiter(t, s)
	watch := ignoring("watch -every 1h -redis " + s.Addr() + " job")
	watch.saw("waiting 1")
	for _, r := range []*running{first, second, watch} {
		r.signal(syscall.SIGHUP)
		redistest.Eventually(t, patience, func() bool {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
			return err == nil && strings.Contains(string(status), "ShdPnd:\t0000000000000000")
		}, "it has come")
	}
	require.NoError(t, first.in.Close())
	require.Equal(t, result{0, "", ""}, first.rest())
	require.Equal(t, result{0, "inside", ""}, second.rest())
	ctx, unlock := lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("job"))
	require.NotEmpty(t, rlock.Owner(ctx))
	require.NoError(t, unlock())
	watch.saw("released")
	watch.signal(syscall.SIGTERM)
	require.Zero(t, watch.rest().code)
}
