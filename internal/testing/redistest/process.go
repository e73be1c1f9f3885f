package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// stopTimeout bounds the time from SIGTERM to a server's end.
const stopTimeout = 10 * time.Second

var errNoRedis = errors.New("redistest: no redis-server on PATH: " +
	"install redis-server (apt-get install redis-server, brew install redis) or set RLOCK_TEST_ADDR")

// process is a child that is running or has been reaped.
type process struct {
	os   *os.Process
	done chan struct{} // closed once the child has ended and was reaped
}

// spawn starts a program, its output appended to the file log.
func spawn(log string, cmd *exec.Cmd) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	return fork(cmd, func() { _ = out.Close() })
}

// fork starts a program, and calls ended when it has ended.
//
// The kernel kills the child when the thread that forked it ends (see dieWithParent), so the goroutine that forks
// keeps its thread, and ends only when the child has ended.
func fork(cmd *exec.Cmd, ended func()) (*process, error) {
	cmd.SysProcAttr = dieWithParent()
	started := make(chan error)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer ended()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // ended by a signal is the normal way
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("redistest: start %s: %w", cmd.Path, err)
	}
	return &process{os: cmd.Process, done: done}, nil
}

// ended reports whether the child has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end sends sig and waits for the child's end. It kills a child that does not react.
func (p *process) end(sig syscall.Signal) {
	_ = p.os.Signal(sig) // fails only if the child is gone already
	_ = p.os.Signal(sigResume)
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		_ = p.os.Kill()
		<-p.done
	}
}
