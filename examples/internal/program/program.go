// Package program runs the examples as their users do, as processes, for their tests.
package program

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// atMost bounds every wait, also for a program that takes a quarter of a minute and a start of Java when the machine is idle.
const atMost = 3 * time.Minute

// Program is a built program, and its processes' output lines in order, stdout and stderr together.
type Program struct {
	t     *testing.T
	path  string
	redis string
	Env   []string // beside this process's, and REDIS_URL
	out   *os.File // one pipe for all processes keeps their lines in order
	lines chan printed
}

// printed is a line; the zero value comes when nobody prints any more.
type printed struct {
	line string
	ok   bool
}

// Build builds the program in the test's folder. Its processes use the Redis at that address.
func Build(t *testing.T, redis string) *Program {
	t.Helper()
	p := &Program{t: t, path: filepath.Join(t.TempDir(), "program"), redis: redis, lines: make(chan printed, 10000)}
	said, err := exec.Command("go", "build", "-o", p.path, ".").CombinedOutput()
	require.NoError(t, err, "%s", said)
	in, out, err := os.Pipe()
	require.NoError(t, err)
	p.out = out
	go func() { // ends when this process and the last of those have closed the pipe
		defer close(p.lines)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			p.lines <- printed{lines.Text(), true}
		}
	}()
	t.Cleanup(func() { _ = out.Close() }) // after the processes: cleanups run last to first
	return p
}

// Process is a process of the program.
type Process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// Start starts a process. It ends with the test at the latest.
func (p *Program) Start(args ...string) *Process {
	p.t.Helper()
	c := &Process{t: p.t, cmd: exec.CommandContext(p.t.Context(), p.path, args...), done: make(chan struct{})}
	c.cmd.Env = append(append(os.Environ(), "REDIS_URL=redis://"+p.redis), p.Env...)
	c.cmd.Stdout, c.cmd.Stderr = p.out, p.out
	require.NoError(p.t, c.cmd.Start())
	go func() { // ends with the process
		defer close(c.done)
		_ = c.cmd.Wait() // its exit code is checked
	}()
	p.t.Cleanup(func() { <-c.done }) // killed by the end of the test's ctx
	return c
}

// Line returns the next line printed by any process.
func (p *Program) Line() string {
	p.t.Helper()
	next := redistest.Within(p.t, atMost, p.lines, "a process prints")
	require.True(p.t, next.ok, "nobody prints any more")
	return next.line
}

// Await skips lines up to the next one with that prefix, and returns it.
func (p *Program) Await(prefix string) string {
	p.t.Helper()
	for {
		if line := p.Line(); strings.HasPrefix(line, prefix) {
			return line
		}
	}
}

// Find skips lines up to the next one that matches the regular expression, and returns it.
func (p *Program) Find(pattern string) string {
	p.t.Helper()
	for is := regexp.MustCompile(pattern); ; {
		if line := p.Line(); is.MatchString(line) {
			return line
		}
	}
}

// Rest returns the remaining lines once all processes have ended. No process can be started afterwards.
func (p *Program) Rest() (rest []string) {
	p.t.Helper()
	_ = p.out.Close()
	for {
		next := redistest.Within(p.t, atMost, p.lines, "all processes have ended")
		if !next.ok {
			return rest
		}
		rest = append(rest, next.line)
	}
}

// Signal sends a signal to the process.
func (c *Process) Signal(s os.Signal) {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(s))
}

// Kill ends the process like a crash.
func (c *Process) Kill() { c.Signal(syscall.SIGKILL) }

// Terminate asks the process to end.
func (c *Process) Terminate() { c.Signal(syscall.SIGTERM) }

// Wait waits for the process to end, and returns its exit code.
func (c *Process) Wait() int {
	c.t.Helper()
	redistest.Within(c.t, atMost, c.done, "it ends")
	return c.cmd.ProcessState.ExitCode()
}

// Fault is a test under one of the faults of [Faults].
type Fault struct {
	*Program
	Server *redistest.Server
	Keeps  bool // Redis keeps its data
	Kills  bool // a process is killed; otherwise Redis is
}

// Faults runs a test once for each fault that a program meets: a restart of Redis with its data and without, and kill -9.
func Faults(t *testing.T, test func(t *testing.T, f *Fault)) {
	t.Helper()
	for name, f := range map[string]Fault{"restart": {Keeps: true}, "lost data": {}, "kill -9": {Keeps: true, Kills: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var durable []string
			if f.Keeps {
				durable = []string{"--appendonly", "yes", "--appendfsync", "always"}
			}
			f.Server = redistest.Start(t, durable...)
			f.Program = Build(t, f.Server.Addr())
			test(t, &f)
		})
	}
}

// Strike kills the victim, or Redis, which is back when it returns.
func (f *Fault) Strike(victim *Process) {
	f.t.Helper()
	if f.Kills {
		victim.Kill()
		require.Equal(f.t, -1, victim.Wait())
		return
	}
	f.Server.Kill()
	f.Server.Restart()
}

// Lease is how long a lease is that a holder keeps over the restart of a Redis, however slow the machine, or that ends soon if it is killed.
func (f *Fault) Lease() string {
	if f.Keeps && !f.Kills {
		return "1m"
	}
	return "3s"
}

// Secret is a password.
const Secret = "hunter2"

// NoURLs are malformed URLs with the secret, without their scheme.
var NoURLs = []string{
	"user:" + Secret + "@127.0.0.1:6 379", "user:" + Secret + "@%zz", "user:" + Secret + "#x@127.0.0.1:1", "user:" + Secret + "/3@127.0.0.1:1",
	"user:" + Secret + "@127.0.0.1:1/x",
}

// WithoutRedis checks the program's one-line error for an unreachable Redis and for a malformed REDIS_URL, without the password in it.
func WithoutRedis(t *testing.T) {
	t.Helper()
	nobody, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	addr := nobody.Addr().String()
	require.NoError(t, nobody.Close())
	p := Build(t, addr)
	require.Equal(t, 1, p.Start().Wait())
	for _, p.redis = range NoURLs {
		require.Equal(t, 1, p.Start().Wait())
	}
	said := p.Rest()
	require.Len(t, said, 1+len(NoURLs))
	require.Contains(t, said[0], "Redis at "+addr+": ")
	require.Regexp(t, `\bstart (redis-server|Redis)\b`, said[0])
	for _, line := range said[1:] {
		require.Contains(t, line, "not a Redis URL")
		require.Contains(t, line, "redis://user:password@")
		require.NotContains(t, line, Secret)
	}
}
