package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// terminal is a program at its own terminal, usually the binary.
type terminal struct {
	t     *testing.T
	cmd   *exec.Cmd
	keys  *os.File // writes are typed text
	slave *os.File
	seen  output

	before string // its mode before the binary began
}

// atTerminal runs the binary at a terminal.
func atTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	return terminalOf(t, exec.CommandContext(t.Context(), binary, args...))
}

// terminalOf gives a command its own terminal and session.
func terminalOf(t *testing.T, cmd *exec.Cmd, env ...string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	raw, err := master.SyscallConn()
	require.NoError(t, err)
	var unlock, number int32
	size := [4]uint16{24, 100}
	require.NoError(t, raw.Control(func(fd uintptr) {
		for request, arg := range map[uintptr]unsafe.Pointer{
			syscall.TIOCSPTLCK: unsafe.Pointer(&unlock), syscall.TIOCGPTN: unsafe.Pointer(&number), syscall.TIOCSWINSZ: unsafe.Pointer(&size),
		} {
			_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg))
			require.Zero(t, errno)
		}
	}))
	slave, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	x := &terminal{t: t, cmd: cmd, keys: master, slave: slave}
	x.cmd.Env = append(append(os.Environ(), "TERM=xterm"), env...)
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = slave, slave, slave
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	x.before = x.mode()
	require.NoError(t, x.cmd.Start())
	read := make(chan struct{})
	go func() { // ends with the terminal
		defer close(read)
		for chunk := make([]byte, 4096); ; {
			n, err := master.Read(chunk)
			_, _ = x.seen.Write(chunk[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = slave.Close()
		_ = master.Close()
		<-read
	})
	return x
}

func (x *terminal) saw(text string) {
	x.t.Helper()
	redistest.Eventually(x.t, patience, func() bool { return strings.Contains(x.seen.String(), text) }, "the terminal shows "+text)
}

func (x *terminal) press(keys string) {
	x.t.Helper()
	_, err := x.keys.WriteString(keys)
	require.NoError(x.t, err)
}

func (x *terminal) ends() int {
	x.t.Helper()
	_ = x.cmd.Wait() // the code tells
	return exitCode(x.cmd.ProcessState)
}

// mode returns the terminal's mode as printed by stty.
func (x *terminal) mode() string {
	x.t.Helper()
	cmd := exec.Command("stty", "-g")
	cmd.Stdin = x.slave
	out, err := cmd.Output()
	require.NoError(x.t, err)
	return string(out)
}

// sinceSeconds matches a SINCE of a second or more before a TTL. Looks are about a second apart: 2.0s may follow 0.9s.
var sinceSeconds = regexp.MustCompile(`  [1-9]\d*\.\ds  `)

func TestTopAtATerminal(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	holds, waits := newLocks(t, s.Client(t)), newLocks(t, s.Client(t))
	ctx, _ := lock(t.Context(), t, holds.Mutex("job"))
	waitFor(t, waits, waits.Mutex("job"))
	for _, keys := range []string{"xq", "\x03"} {
		x := atTerminal(t, "top", "-redis", s.Addr())
		x.saw("NAME  WAITING")
		x.saw(rlock.Owner(ctx))
		require.Contains(t, x.seen.String(), "\x1b[?1049h")
		redistest.Eventually(t, patience, func() bool { return sinceSeconds.MatchString(x.seen.String()) }, "it looks again")
		require.NotEqual(t, x.before, x.mode(), "keys come without Enter")
		x.press(keys)
		require.Zero(t, x.ends())
		redistest.Eventually(t, patience, func() bool { return strings.HasSuffix(x.seen.String(), "\x1b[?25h\x1b[?1049l") }, "the screen is as it was")
		require.Equal(t, x.before, x.mode(), "and so is the keyboard")
	}
}

// Ctrl-Z gives the shell its screen and keyboard back, and fg shows top again. While Redis is silent, top says so.
func TestTopIsStopped(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	holds, waits := newLocks(t, s.Client(t)), newLocks(t, s.Client(t))
	lock(t.Context(), t, holds.Mutex("job"))
	waitFor(t, waits, waits.Mutex("job"))
	const enters, leaves = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
	times := func(text string, n int) {
		t.Helper()
		redistest.Eventually(t, patience, func() bool { return strings.Count(s.seen.String(), text) >= n }, "the terminal shows "+text)
	}
	s.types("rlock top")
	times("1 waited for, 1 of them held", 1)
	s.press("\x1a")
	times("Stopped", 1)
	require.Contains(t, s.seen.String(), leaves)
	s.types("echo us\"\"able")
	s.saw("usable")
	shown := strings.Count(s.seen.String(), "1 waited for")
	s.types("fg")
	times(enters, 2)
	times("1 waited for", shown+2)
	before := len(s.seen.String()) // a look may have come before the waiter
	s.Pause()
	s.saw("no answer for 2.")
	require.NotContains(t, s.seen.String()[before:], " 0 waited for")
	s.press("q")
	times(leaves, 2)
	s.Resume()
}

func TestUnlockAsks(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := newLocks(t, s.Client(t))
	m := c.Mutex("job")
	locked := func() bool {
		t.Helper()
		held, err := m.IsLocked(t.Context())
		require.NoError(t, err)
		return held
	}
	ctx, unlock := lock(t.Context(), t, m)
	for answer, code := range map[string]int{"n\n": exitFree, "\n": exitFree, "\x03": exitSignal + int(syscall.SIGINT)} {
		x := atTerminal(t, "unlock", "-force", "-redis", s.Addr(), "job")
		x.saw("[y/N]")
		require.Contains(t, x.seen.String(), rlock.Owner(ctx))
		x.press(answer)
		require.Equal(t, code, x.ends())
		require.True(t, locked())
	}

	// The holder changes before the answer.
	x := atTerminal(t, "unlock", "-force", "-redis", s.Addr(), "job")
	x.saw("[y/N]")
	require.NoError(t, unlock())
	ctx, _ = lock(t.Context(), t, m)
	x.press("y\n")
	require.Equal(t, 1, x.ends())
	x.saw("left alone: now held by " + rlock.Owner(ctx))
	require.True(t, locked())

	x = atTerminal(t, "unlock", "-force", "-redis", s.Addr(), "job")
	x.saw("[y/N]")
	x.press("y\n")
	require.Zero(t, x.ends())
	require.False(t, locked())
}

// At a terminal, tables have a header and columns.
func TestTablesAtATerminal(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("job"))
	x := atTerminal(t, "ls", "-redis", s.Addr())
	require.Zero(t, x.ends())
	x.saw("NAME  KIND   HOLDER ")
	x.saw("\r\njob   mutex  ")

	x = atTerminal(t, "doctor", "-redis", s.Addr())
	require.Zero(t, x.ends())
	x.saw("\x1b[1mwarn    \x1b[0m persistence  no AOF\r\n                      A crash")
}
