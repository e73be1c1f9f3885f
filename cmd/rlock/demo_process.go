package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// process is a worker as the demo sees it.
type process struct {
	workerConfig
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr bytes.Buffer // complete when the process has ended
	reaped chan struct{}

	// Known from the process' messages.
	ready  bool
	stuck  bool
	killed bool
	ended  bool
}

// message is an event, or the end of a process.
type message struct {
	from  *process
	event event
	ended bool
	err   error
}

// startProcess starts a worker. Its messages go to inbox until quit is closed; the last one tells
// its end.
func startProcess(self string, config workerConfig, inbox chan<- message, quit <-chan struct{}) (*process, error) {
	if self == "" {
		var err error
		if self, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	w := &process{workerConfig: config, cmd: exec.Command(self, workerCommand), reaped: make(chan struct{})}
	w.cmd.Stderr = &w.stderr
	in, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	w.in = in
	go w.listen(out, inbox, quit) // ends with the process
	text, err := json.Marshal(config)
	if err == nil {
		err = w.tell(string(text))
	}
	return w, err
}

func (w *process) tell(word string) error {
	if _, err := io.WriteString(w.in, word+"\n"); err != nil {
		return fmt.Errorf("process %s: %w", w.Letter, err)
	}
	return nil
}

// listen passes on what the process says, and reaps it.
func (w *process) listen(out io.Reader, inbox chan<- message, quit <-chan struct{}) {
	defer close(w.reaped)
	send := func(m message) {
		select {
		case inbox <- m:
		case <-quit:
		}
	}
	var err error
	for lines := bufio.NewScanner(out); lines.Scan(); {
		m := message{from: w}
		if err = json.Unmarshal(lines.Bytes(), &m.event); err != nil {
			break
		}
		send(m)
	}
	_, _ = io.Copy(io.Discard, out)
	err = errors.Join(err, w.cmd.Wait())
	if said := strings.TrimSpace(w.stderr.String()); said != "" {
		err = errors.Join(err, errors.New(said))
	}
	send(message{from: w, ended: true, err: err})
}

func (w *process) pid() int { return w.cmd.Process.Pid }
