package redistest

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Self starts processes of the test binary, which do what its TestMain does with their environment, and reads what they print. It is for
// tests that kill or stop a process.
type Self struct {
	t     *testing.T
	out   *os.File // one pipe for all processes keeps their lines in order
	lines chan printed
}

// printed is a line; the zero value comes when nobody prints any more.
type printed struct {
	line string
	ok   bool
}

// selfTimeout bounds each wait for a process.
const selfTimeout = 30 * time.Second

// NewSelf returns a Self for a test. Its processes end with the test.
func NewSelf(t *testing.T) *Self {
	t.Helper()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &Self{t: t, out: out, lines: make(chan printed, 10000)}
	go func() { // ends when this process and the last of those have closed the pipe
		defer close(s.lines)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			s.lines <- printed{lines.Text(), true}
		}
	}()
	t.Cleanup(func() { _ = out.Close() }) // after the processes: cleanups run last to first
	return s
}

// SelfProcess is a process of the test binary.
type SelfProcess struct {
	t    *testing.T
	cmd  *exec.Cmd
	proc *process
}

// Start starts a process with more environment, such as "ROLE=holder".
func (s *Self) Start(env ...string) *SelfProcess {
	s.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = s.out, s.out
	proc, err := fork(cmd, func() {})
	if err != nil {
		s.t.Fatal(err)
	}
	p := &SelfProcess{s.t, cmd, proc}
	s.t.Cleanup(p.Kill)
	return p
}

// Line returns the next line that any of the processes prints.
func (s *Self) Line() string {
	s.t.Helper()
	next := Within(s.t, selfTimeout, s.lines, "a process prints")
	if !next.ok {
		s.t.Fatal("nobody prints any more")
	}
	return next.line
}

// Find skips lines up to the next one that contains the text, and returns it.
func (s *Self) Find(text string) string {
	s.t.Helper()
	for began := time.Now(); ; {
		if line := s.Line(); strings.Contains(line, text) {
			return line
		}
		if Ran(s.t, began, time.Now()) > selfTimeout {
			s.t.Fatalf("no process prints %q", text)
		}
	}
}

// Rest ends the processes, and returns the lines that were not read.
func (s *Self) Rest(processes ...*SelfProcess) (rest []string) {
	s.t.Helper()
	for _, p := range processes {
		p.Kill()
	}
	_ = s.out.Close()
	for next := range s.lines {
		rest = append(rest, next.line)
	}
	return rest
}

// Kill ends the process like a crash, even if it is paused, and returns when it has ended.
func (p *SelfProcess) Kill() {
	_ = p.cmd.Process.Kill() // fails only if it is gone
	<-p.proc.done
}

// Pause stops the process.
func (p *SelfProcess) Pause() { p.signal(sigPause) }

// Resume ends a Pause.
func (p *SelfProcess) Resume() { p.signal(sigResume) }

// Terminate asks the process to end.
func (p *SelfProcess) Terminate() { p.signal(os.Interrupt) }

// Wait waits for the end of the process, and returns its exit code.
func (p *SelfProcess) Wait() int {
	p.t.Helper()
	Within(p.t, selfTimeout, p.proc.done, "the process ends")
	return p.cmd.ProcessState.ExitCode()
}

func (p *SelfProcess) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}
