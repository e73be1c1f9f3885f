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

	"github.com/go-rlock/rlock/rlock"
)

const (
	// promptly bounds a step without waiting on a loaded machine: a message, a command, a due timer.
	promptly = 2 * time.Second
	// afterLease bounds how long after a dead holder's lease expires the next waiter gets the lock.
	afterLease = promptly
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

// peer is the parent's side of a peer process.
type peer struct {
	*exec.Cmd
	stdin io.WriteCloser
	lines chan string // closed at EOF of stdout
}

func startPeer(t testing.TB, addr string, watchdog time.Duration) *peer {
	t.Helper()
	p := &peer{Cmd: exec.Command(os.Args[0], addr, watchdog.String()), lines: make(chan string, 100)}
	p.Env = append(os.Environ(), roleEnv+"=peer")
	p.Stderr = os.Stderr
	var err error
	p.stdin, err = p.StdinPipe() // EOF ends the peer if this process dies
	require.NoError(t, err)
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	go func() { // ends with the peer
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(p.kill)
	p.expect(t, "ready", 10*time.Second)
	return p
}

func (p *peer) send(t testing.TB, words ...string) {
	t.Helper()
	_, err := fmt.Fprintln(p.stdin, strings.Join(words, " "))
	require.NoError(t, err)
}

// expect requires the next line to begin with word, and returns the rest.
func (p *peer) expect(t testing.TB, word string, within time.Duration) string {
	t.Helper()
	select {
	case line, ok := <-p.lines:
		require.True(t, ok, "the peer ended; %s expected", word)
		got, rest, _ := strings.Cut(line, " ")
		require.Equal(t, word, got, line)
		return rest
	case <-time.After(within):
		require.FailNow(t, "no answer", "%s within %v", word, within)
		panic("unreachable")
	}
}

// find is expect, but skips lines that do not begin with word.
func (p *peer) find(t testing.TB, word string, within time.Duration) string {
	t.Helper()
	end := time.After(within)
	for {
		select {
		case line, ok := <-p.lines:
			require.True(t, ok, "the peer ended; %s expected", word)
			if got, rest, _ := strings.Cut(line, " "); got == word {
				return rest
			}
		case <-end:
			require.FailNow(t, "no answer", "%s within %v", word, within)
		}
	}
}

// silent requires that the peer has printed nothing more.
func (p *peer) silent(t testing.TB) {
	t.Helper()
	select {
	case line, ok := <-p.lines:
		require.False(t, ok, line)
	default:
	}
}

// kill sends SIGKILL and returns once the process has exited.
func (p *peer) kill() {
	if p.ProcessState == nil {
		_ = p.Process.Kill()
		for range p.lines { // read to the end first, since Wait closes the pipe
		}
		_ = p.Wait()
	}
}
