package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	_ "github.com/go-rlock/rlock/rlocktest" // the server of the virtual world
)

// binary is the program under test: this test binary under the program's name.
var binary string

func TestMain(m *testing.M) {
	if os.Getenv(hastyVariable) == "" {
		impatient = bePatient()
	}
	if name := filepath.Base(os.Args[0]); name == "rlock" || helpers[name] != nil {
		main()
	}
	if text := os.Getenv(sectionsVariable); text != "" { // this process is a test's helper
		os.Exit(runSections(text))
	}
	ignored := signal.Ignored(os.Interrupt)              // as in the background of a script
	signal.Notify(make(chan os.Signal, 1), os.Interrupt) // the first call starts goroutines, which belong to no bubble
	if !ignored {
		signal.Reset()
	} // otherwise the tests' children would ignore it, too
	if signal.Ignored(syscall.SIGHUP) { // the same under nohup
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	os.Exit(linkAndRun(m))
}

func linkAndRun(m *testing.M) int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp(filepath.Dir(self), "rlock-") // on the same device
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		binary = filepath.Join(dir, "rlock")
		err = os.Link(self, binary)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// patience bounds every wait of a test.
const patience = 30 * time.Second

// bePatient lets commands wait for Redis as long as a test does, since a busy machine may take longer than a user would wait.
func bePatient() (undo func()) {
	times := []*time.Duration{&answerTime, &nodeTime, &connectTime, &asideTime, &unlockTime, &closeTime}
	var before []time.Duration
	for _, most := range times {
		before = append(before, *most)
		*most = patience
	}
	return func() {
		for i, most := range times {
			*most = before[i]
		}
	}
}

var impatient func() // undoes bePatient; nil if this process is hasty

// beHasty undoes bePatient for a test in the virtual world, beside which no other runs.
func beHasty(t *testing.T) {
	t.Helper()
	if impatient != nil {
		impatient()
		t.Cleanup(func() {
			redistest.Settle(t) // a command may have left before what asks a silent Redis for it
			impatient = bePatient()
		})
	}
}

// hastyAlone is why a test that calls beHasty stays in the virtual world.
const hastyAlone = "how long commands wait for Redis is the same for all tests that run at once"

// hastyVariable has a process wait for Redis as briefly as a user's.
const hastyVariable = "RLOCK_TEST_HASTY"

// hasty is the environment of a process whose Redis is silent.
var hasty = []string{hastyVariable + "=1"}

// result is a finished program's code and output.
type result struct {
	code     int
	out, err string
}

// call runs the program inside this process, with only REDIS_ADDR set.
func call(t *testing.T, addr string, args ...string) result {
	t.Helper()
	return callWith(t, map[string]string{"REDIS_ADDR": addr}, args...)
}

// callWith runs the program inside this process, with an environment.
func callWith(t *testing.T, env map[string]string, args ...string) result {
	t.Helper()
	runtime.LockOSThread() // as main does
	defer runtime.UnlockOSThread()
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { _ = null.Close() }()
	p := programWith(t, env, null)
	code := p.main(args)
	text := func(f *os.File) string {
		require.NoError(t, f.Close())
		b, err := os.ReadFile(f.Name())
		require.NoError(t, err)
		return string(b)
	}
	return result{code, text(p.out), text(p.err)}
}

// programWith returns a program in this process, with an environment and stdin.
func programWith(t *testing.T, env map[string]string, in *os.File) *program {
	t.Helper()
	file := func(name string) *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		require.NoError(t, err)
		return f
	}
	return &program{
		in: in, out: file("out"), err: file("err"), self: binary,
		getenv:   func(name string) string { return env[name] },
		connects: func(o *rueidis.ClientOption) { redistest.Connects(t, o) },
	}
}

// hold begins a run inside this process, whose lock is held when it returns. end lets its command end, and the run succeed. In the virtual
// world the clock stands still until then: a command lives outside of the bubble, which has to wait for it.
func hold(t *testing.T, addr string, flags ...string) (end func()) {
	t.Helper()
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
		return r, w
	}
	in, ends := pipe()
	says, out := pipe()
	p := programWith(t, map[string]string{"REDIS_ADDR": addr}, in)
	p.out = out
	code := make(chan int, 1)
	go func() { // ends with the command
		runtime.LockOSThread() // as main does; the thread ends with the goroutine
		code <- p.main(slices.Concat([]string{"run"}, flags, []string{"job", "--", "sh", "-c", untilEOF}))
	}()
	line, err := bufio.NewReader(says).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "inside\n", line)
	return func() {
		t.Helper()
		require.NoError(t, ends.Close())
		require.Zero(t, <-code)
	}
}

// running is the binary as a separate process.
type running struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // of stdout; closed when its last writer has ended
	err   output
}

// output is a buffer for concurrent reads and writes.
type output struct {
	mu   sync.Mutex // guards the following
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start runs the binary with an environment. It is killed at the end of the test.
func start(t *testing.T, env []string, args ...string) *running {
	t.Helper()
	return startCommand(t, env, binary, args...)
}

// startCommand is start for a command that runs the binary.
func startCommand(t *testing.T, env []string, name string, args ...string) *running {
	t.Helper()
	r := &running{t: t, cmd: exec.CommandContext(t.Context(), name, args...), lines: make(chan string, 10_000)}
	r.cmd.Stderr = &r.err
	r.begin(env)
	return r
}

// startInto is start with the test's own stderr.
func startInto(t *testing.T, stderr *os.File, args ...string) *running {
	t.Helper()
	r := &running{t: t, cmd: exec.CommandContext(t.Context(), binary, args...), lines: make(chan string, 10_000)}
	r.cmd.Stderr = stderr
	r.begin(nil)
	return r
}

func (r *running) begin(env []string) {
	t := r.t
	t.Helper()
	r.cmd.Env = append(os.Environ(), env...)
	r.cmd.WaitDelay = patience // a child that keeps stderr open
	var err error
	r.in, err = r.cmd.StdinPipe()
	require.NoError(t, err)
	out, in, err := os.Pipe()
	require.NoError(t, err)
	r.cmd.Stdout = in
	require.NoError(t, r.cmd.Start())
	require.NoError(t, in.Close())
	t.Cleanup(func() { _ = out.Close() })
	go func() { // ends when all writers have ended, or with the test
		defer close(r.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			r.lines <- s.Text()
		}
	}()
}

// saw waits for a line with text, and returns it.
func (r *running) saw(text string) string {
	r.t.Helper()
	var others []string
	for timeout := time.After(patience); ; {
		select {
		case line, ok := <-r.lines:
			if !ok {
				r.t.Fatalf("ended without a line %q; stderr: %s", text, r.err.String())
			}
			if strings.Contains(line, text) {
				return line
			}
			others = append(others, line)
		case <-timeout:
			r.t.Fatalf("no line %q within %v, but %q", text, patience, others)
		}
	}
}

func (r *running) signal(s syscall.Signal) {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(s))
}

// rest waits for the end of the program and its children. out is the output that saw has not returned.
func (r *running) rest() result {
	r.t.Helper()
	var out []string
	for timeout, open := time.After(patience), true; open; {
		select {
		case line, ok := <-r.lines:
			if open = ok; ok {
				out = append(out, line)
			}
		case <-timeout:
			r.t.Fatalf("still running after %v; stderr: %s", patience, r.err.String())
		}
	}
	_ = r.cmd.Wait() // the code tells
	return result{exitCode(r.cmd.ProcessState), strings.Join(out, "\n"), r.err.String()}
}

// requireEmpty checks that a server has no keys and no subscriptions.
func requireEmpty(t *testing.T, s *redistest.Server) {
	t.Helper()
	requireNoKeys(t, s)
	c := s.Client(t)
	redistest.Eventually(t, patience, func() bool {
		channels, err := c.Do(t.Context(), c.B().PubsubChannels().Build()).AsStrSlice()
		return err == nil && len(channels) == 0
	}, "no channels")
}

func requireNoKeys(t *testing.T, s *redistest.Server) {
	t.Helper()
	c := s.Client(t)
	keys, err := c.Do(t.Context(), c.B().Keys().Pattern("*").Build()).AsStrSlice()
	require.NoError(t, err)
	require.Empty(t, keys)
}

func exitCode(state *os.ProcessState) int {
	if s, ok := state.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return exitSignal + int(s.Signal())
	}
	return state.ExitCode()
}
