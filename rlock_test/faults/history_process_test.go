package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// histReturn is how long a call may take to return after the nemesis has stopped: the time for which it
// tries, plus its own wait.
const histReturn = 30 * time.Second

// histPeer is another process of a run.
type histPeer struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

func startHistPeer(t *testing.T, plan histPlan) *histPeer {
	t.Helper()
	text, err := json.Marshal(plan)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0], string(text))
	cmd.Env = append(os.Environ(), roleEnv+"=history")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // ends the process if this one dies
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p := &histPeer{cmd, stdin, bufio.NewReader(stdout)}
	line, err := p.stdout.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return p
}

func (p *histPeer) tell(t *testing.T) {
	t.Helper()
	_, err := io.WriteString(p.stdin, "go on\n")
	require.NoError(t, err)
}

func (p *histPeer) report(t *testing.T) histReport {
	t.Helper()
	line, err := p.stdout.ReadBytes('\n')
	require.NoError(t, err)
	var r histReport
	require.NoError(t, json.Unmarshal(line, &r))
	return r
}

// historyRole is a process of workers. The first line on stdin starts them; the second stops them, and makes it
// report. It lives until stdin ends, so only its calls, not its exit, can leave anything in Redis.
func historyRole(args []string) int {
	var plan histPlan
	if err := json.Unmarshal([]byte(args[0]), &plan); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{plan.Addr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer rdb.Close()
	log := newHistLog()
	client, err := rlock.New(histRedis{rdb, log, plan.Sabotage}, plan.options())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	crew := newHistCrew(plan, log, client)
	in := bufio.NewReader(os.Stdin)
	heard := func() bool { _, err := in.ReadString('\n'); return err == nil }
	_, _ = os.Stdout.WriteString("ready\n")
	if !heard() {
		return 1
	}
	crew.start()
	if !heard() {
		return 1
	}
	report := crew.end()
	report.Left = histLeft(plan.goroutines())
	client.Close()
	report.Left += histLeft(0)
	text, err := json.Marshal(report)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = os.Stdout.Write(append(text, '\n'))
	_, _ = io.Copy(io.Discard, in)
	return 0
}

// end stops the workers, and requires that all callers return.
func (c *histCrew) end() histReport {
	close(c.stop)
	c.log.mu.Lock()
	c.log.ending = true
	c.log.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the workers
		defer close(done)
		c.wg.Wait()
	}()
	select {
	case <-done:
	case <-time.After(histReturn):
		c.wrong(fmt.Errorf("%d of %d callers did not return", int64(c.plan.Workers)-c.returned.Load(), c.plan.Workers))
	}
	return c.report()
}

// histLeft counts the library's goroutines beyond the own ones of its clients, after a while: background work of a
// call may last for the timeout of a command, and the lease.
func histLeft(own int) int {
	return histLeftOf(own, append([]string{"rlock.", "lease.", "pubsub.", "lua.", "internal/tell."}, histCalling...)...)
}

// histCalling are the packages in which an idle client has no goroutines.
var histCalling = []string{"internal/engine.", "internal/calls.", "internal/sweep."}

// histLeftOf is histLeft for the given packages.
func histLeftOf(own int, packages ...string) int {
	left := func() int {
		n := -own
		for _, pkg := range packages {
			n += redistest.Goroutines("github.com/go-rlock/rlock/" + pkg)
		}
		return max(n, 0)
	}
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for left() > 0 {
		select {
		case <-tick.C:
		case <-deadline:
			return left()
		}
	}
	return 0
}
