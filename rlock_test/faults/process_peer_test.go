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
	// prompt is how long a machine under load may take for what needs no waiting: a message, a
	// command, a timer that is due.
	prompt = 2 * time.Second
	// afterLease is how long after the end of a dead holder's lease the next one is in at the latest.
	afterLease = prompt
)

// peerMain is a lock client in a process of its own, the arguments are the server's address and the
// watchdog time. Its standard input commands it, a line each; its end is the end of the process:
//
//	lock NAME [LEASE]        answers "locked OWNER" or "failed ERROR"; later "ended CAUSE"
//	permits NAME N [LEASE]   the same for N permits that expire, with "permits ID …"
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
			go peerLock(c.Mutex(words[1], peerOptions(words[2:])...), unlocks) // ended by the end of the process
		case "permits":
			n, _ := strconv.Atoi(words[2])
			go peerPermits(c.PermitSemaphore(words[1], peerOptions(words[3:])...), n, unlocks) // ended by the end of the process
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

// peerError names the sentinels that an error is, for them to survive the way through a pipe.
func peerError(err error) string {
	var is []string
	for _, s := range []error{rlock.ErrLost, rlock.ErrNotHeld} {
		if errors.Is(err, s) {
			is = append(is, s.Error())
		}
	}
	return fmt.Sprintf("[%s] %v", strings.Join(is, ", "), err)
}

// peer is the parent's end of such a process.
type peer struct {
	*exec.Cmd
	stdin io.WriteCloser
	lines chan string // closed at the end of the output
}

func startPeer(t testing.TB, addr string, watchdog time.Duration) *peer {
	t.Helper()
	p := &peer{Cmd: exec.Command(os.Args[0], addr, watchdog.String()), lines: make(chan string, 100)}
	p.Env = append(os.Environ(), roleEnv+"=peer")
	p.Stderr = os.Stderr
	var err error
	p.stdin, err = p.StdinPipe() // its end ends the peer, should this process die
	require.NoError(t, err)
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	go func() { // ended by the end of the peer
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

// expect returns the rest of the next line, which has to begin with word.
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

// find is expect, past lines that begin otherwise.
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

// silent requires that the peer has said nothing since.
func (p *peer) silent(t testing.TB) {
	t.Helper()
	select {
	case line, ok := <-p.lines:
		require.False(t, ok, line)
	default:
	}
}

// kill is kill -9, and returns when the process is gone.
func (p *peer) kill() {
	if p.ProcessState == nil {
		_ = p.Process.Kill()
		for range p.lines { // to its end: Wait closes the pipe under the reader
		}
		_ = p.Wait()
	}
}
