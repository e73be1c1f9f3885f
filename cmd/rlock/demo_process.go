package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// process is a worker, seen from the demo.
type process struct {
	workerConfig
	cmd           *exec.Cmd
	in            io.WriteCloser
	killed, ended bool
}

// message is a worker's report, or its end.
type message struct {
	from *process
	span *span // nil at the end
	err  error
}

// startProcess starts a worker. Its messages go to the inbox.
func (d *demo) startProcess(config workerConfig) (err error) {
	self := d.self
	if self == "" {
		if self, err = os.Executable(); err != nil {
			return err
		}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	p := &process{workerConfig: config, cmd: exec.Command(self, workerCommand)}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	var stderr bytes.Buffer
	p.cmd.Stderr = &stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	d.processes = append(d.processes, p)
	d.listeners.Go(func() { // ends with the process
		for spans := json.NewDecoder(out); ; {
			s := new(span)
			if spans.Decode(s) != nil {
				break
			}
			d.inbox <- message{from: p, span: s}
		}
		_, _ = io.Copy(io.Discard, out)
		err := p.cmd.Wait()
		if said := strings.TrimSpace(stderr.String()); said != "" {
			err = errors.Join(err, errors.New(said))
		}
		d.inbox <- message{from: p, err: err}
	})
	return nil
}

func (p *process) kill() {
	p.killed = true
	_ = p.cmd.Process.Kill() // or the process has ended
}

// endProcesses ends the remaining processes.
func (d *demo) endProcesses() {
	for _, p := range d.processes {
		p.kill()
	}
	go func() { // ends with the listeners
		d.listeners.Wait()
		close(d.inbox)
	}()
	for range d.inbox { // unblock the senders
	}
}

// follow records messages for a time, or until a condition holds. A non-empty what names a condition that must hold within that time.
func (d *demo) follow(ctx context.Context, long time.Duration, what string, isSo func() bool) error {
	for end := time.After(long); isSo == nil || !isSo(); {
		select {
		case m := <-d.inbox:
			switch {
			case m.span != nil:
				d.record.spans = append(d.record.spans, m.span)
			case m.err != nil && !m.from.killed:
				return fmt.Errorf("process %s: %w", m.from.Letter, m.err)
			default:
				m.from.ended = true
			}
		case <-d.ticker.C:
			d.progress()
		case <-end:
			if what == "" {
				return nil
			}
			return fmt.Errorf("%v have passed, but not: %s", long, what)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
