package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// peerMain is a lock client in its own process. Its arguments are the server's address and the watchdog
// time. It reads commands from stdin, one per line, and exits at end of file:
//
//	lock NAME [LEASE]        answers "locked OWNER" or "failed ERROR"; later "ended CAUSE"
//	permits NAME N [LEASE]   the same for N expiring permits, with "permits ID …"
//	unlock                   answers "unlocked" or "refused ERROR"
func peerMain(args []string) int {
	watchdog, err := time.ParseDuration(args[1])
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: args[:1]})
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	c, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: watchdog})
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	unlocks := make(chan rlock.UnlockFunc, 1)
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch words := strings.Fields(lines.Text()); words[0] {
		case "lock":
			go peerLock(c.Mutex(words[1], peerOptions(words[2:])...), unlocks) // ends with the process
		case "permits":
			n, _ := strconv.Atoi(words[2])
			go peerPermits(c.PermitSemaphore(words[1], peerOptions(words[3:])...), n, unlocks) // ends with the process
		case "unlock":
			if err := (<-unlocks)(); err != nil {
				fmt.Println("refused", peerError(err))
			} else {
				fmt.Println("unlocked")
			}
		}
	}
	return 0
}

func peerOptions(words []string) (options []rlock.Option) {
	for _, word := range words {
		lease, _ := time.ParseDuration(word)
		options = append(options, rlock.WithLease(lease))
	}
	return options
}

func peerLock(m *rlock.Mutex, unlocks chan<- rlock.UnlockFunc) {
	ctx, unlock, err := m.Lock(context.Background())
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	unlocks <- unlock
	fmt.Println("locked", rlock.Owner(ctx))
	<-ctx.Done()
	fmt.Println("ended", peerError(context.Cause(ctx)))
}

func peerPermits(s *rlock.PermitSemaphore, n int, unlocks chan<- rlock.UnlockFunc) {
	ctx, p, err := s.AcquireN(context.Background(), n)
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	unlocks <- p.Release
	fmt.Println("permits", strings.Join(p.IDs(), " "))
	<-ctx.Done()
	fmt.Println("ended", peerError(context.Cause(ctx)))
}

// peerError lists the sentinels matched by err, since a pipe carries only text.
func peerError(err error) string {
	var is []string
	for _, s := range []error{rlock.ErrLost, rlock.ErrNotHeld} {
		if errors.Is(err, s) {
			is = append(is, s.Error())
		}
	}
	return fmt.Sprintf("[%s] %v", strings.Join(is, ", "), err)
}

// child is another process of this test binary, in one of the roles.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{} // closed when its output has ended
}

// startChild starts a process, whose output goes to hear, line by line. It ends when its stdin does: at the latest with this process.
func startChild(t testing.TB, role string, hear func(line string), args ...string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0], args...), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+role)
	c.cmd.Stderr = os.Stderr
	var err error
	c.stdin, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	go func() { // ends with the process
		defer close(c.done)
		for in := bufio.NewReader(out); ; {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			hear(strings.TrimSuffix(line, "\n"))
		}
	}()
	t.Cleanup(c.kill)
	return c
}

func (c *child) send(t testing.TB, words ...string) {
	t.Helper()
	_, err := fmt.Fprintln(c.stdin, strings.Join(words, " "))
	require.NoError(t, err)
}

// kill sends SIGKILL, and returns when the process has exited and all its output was read.
func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		<-c.done
		_ = c.cmd.Wait()
	}
}

// peer is the parent's side of a process that answers commands.
type peer struct {
	*child
	lines chan string
}

func startPeer(t testing.TB, addr string, watchdog time.Duration) *peer {
	t.Helper()
	p := &peer{lines: make(chan string, 100)}
	p.child = startChild(t, "peer", func(line string) { p.lines <- line }, addr, watchdog.String())
	p.expect(t, "ready", histReturn)
	return p
}

// next returns the next line.
func (p *peer) next(t testing.TB, within time.Duration, what string) string {
	t.Helper()
	redistest.Eventually(t, within, func() bool {
		select {
		case <-p.done:
			return true
		default:
			return len(p.lines) > 0
		}
	}, "an answer: "+what)
	require.NotEmpty(t, p.lines, "the peer has ended: %s expected", what)
	return <-p.lines
}

// expect requires the next line to begin with word, and returns the rest.
func (p *peer) expect(t testing.TB, word string, within time.Duration) string {
	t.Helper()
	line := p.next(t, within, word)
	got, rest, _ := strings.Cut(line, " ")
	require.Equal(t, word, got, line)
	return rest
}

// find is expect, but skips lines that do not begin with word.
func (p *peer) find(t testing.TB, word string, within time.Duration) string {
	t.Helper()
	for {
		if got, rest, _ := strings.Cut(p.next(t, within, word), " "); got == word {
			return rest
		}
	}
}

// silent requires that the peer has printed nothing more.
func (p *peer) silent(t testing.TB) {
	t.Helper()
	require.Empty(t, p.lines)
}
