package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is one worker, seen from the harness.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  chan string // its output lines; closed at its end
	stderr bytes.Buffer
	ended  chan struct{}
	kill   sync.Once
}

// startProcess runs a worker with the given command line.
func startProcess(command []string) (*process, error) {
	p := &process{cmd: exec.Command(command[0], command[1:]...), lines: make(chan string, 4), ended: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	dieWithParent(p.cmd.SysProcAttr)
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	go func() { // ends with the worker
		defer close(p.ended)
		r := bufio.NewReader(stdout)
		for {
			line, err := r.ReadString('\n')
			if line = strings.TrimSpace(line); line != "" {
				p.lines <- line
			}
			if err != nil {
				break
			}
		}
		close(p.lines)
		_ = p.cmd.Wait()
	}()
	return p, nil
}

// workerError is a failure reported by the worker.
type workerError string

func (e workerError) Error() string { return string(e) }

// next waits for a line, and turns a reported failure into an error.
func (p *process) next(timeout time.Duration) (string, error) {
	select {
	case line, ok := <-p.lines:
		if !ok {
			<-p.ended
			return "", fmt.Errorf("worker ended: %v: %s", p.cmd.ProcessState, p.said())
		}
		var failed struct{ Error string }
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &failed) == nil && failed.Error != "" {
			return "", workerError(failed.Error)
		}
		return line, nil
	case <-time.After(timeout):
		return "", fmt.Errorf("worker says nothing for %v: %s", timeout, p.said())
	}
}

// said returns the end of the worker's stderr. Call it only once the worker has ended, or to end it.
func (p *process) said() string {
	p.end()
	text := strings.TrimSpace(p.stderr.String())
	if n := len(text); n > 2000 {
		text = "…" + text[n-2000:]
	}
	return text
}

func (p *process) ready(timeout time.Duration) error {
	line, err := p.next(timeout)
	if err != nil {
		return err
	}
	if line != "ready" {
		return fmt.Errorf("worker says %q instead of ready", line)
	}
	return nil
}

// say sends the worker a signal.
func (p *process) say(signal string) error {
	_, err := io.WriteString(p.stdin, signal+"\n")
	return err
}

func (p *process) report(timeout time.Duration) (report, error) {
	line, err := p.next(timeout)
	if err != nil {
		return report{}, err
	}
	var r report
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		return report{}, errors.Join(fmt.Errorf("worker says %q", line), err)
	}
	return r, nil
}

// end lets the worker end by itself, or kills it.
func (p *process) end() {
	p.kill.Do(func() {
		_ = p.stdin.Close()
		select {
		case <-p.ended:
		case <-time.After(3 * time.Second):
			_ = p.cmd.Process.Kill()
		}
	})
	<-p.ended
}
