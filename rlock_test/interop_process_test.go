//go:build interop

package rlock_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// goJob is the job of a second Go process: this test binary, with the job in its environment. It prints
// "ready" when connected, and begins when it reads a line.
type goJob struct {
	Addrs    []string
	Plain    bool // pub/sub, on a cluster
	Watchdog time.Duration
	Name     string
	Kind     string // as in mutexOf
	Waiters  int    // without a file: goroutines that lock it, one if not given

	// Without a file, too.
	Names  []string      // All of these, instead of one
	Asked  bool          // WithAsked
	Linger time.Duration // it keeps the lock, prints "kept", and locks it when it reads another line
	Ticket string        // adopted instead

	// With a file, Threads goroutines lock, add 1 to the number in the file and unlock, For that
	// long; the job prints the number of sections. Without a file it takes the lock and prints "held", and "lost" if it is.
	File    string
	Threads int
	For     time.Duration
	Section time.Duration // without a file: how long each of their sections lasts; the job prints each one's turns
}

const goJobVariable = "RLOCK_INTEROP_JOB"

// The job replaces the tests before they begin. TestMain belongs to all tests, not only to these.
func init() { //nolint:gochecknoinits // a test binary has no other way in than TestMain
	text := os.Getenv(goJobVariable)
	if text == "" {
		return
	}
	var job goJob
	err := json.Unmarshal([]byte(text), &job)
	if err == nil {
		err = job.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (j goJob) run() error {
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: j.Addrs})
	if err != nil {
		return err
	}
	defer rdb.Close()
	client, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: j.Watchdog, PlainPubSub: j.Plain})
	if err != nil {
		return err
	}
	defer client.Close()
	in := bufio.NewReader(os.Stdin)
	fmt.Fprintln(os.Stdout, "ready")
	if _, err := in.ReadString('\n'); err != nil {
		return nil // the parent has gone, or changed its mind
	}
	if j.Section > 0 {
		turns, err := j.turns(client)
		fmt.Fprintln(os.Stdout, "turns", turns)
		return err
	}
	for range j.Waiters - 1 {
		go func() { // ends with the process
			_ = mutexOf(client, j.Kind, j.Name).Do(context.Background(), func(context.Context) error { return nil })
		}()
	}
	if j.File == "" {
		return j.hold(client, in)
	}
	n, err := j.hammer(client)
	fmt.Fprintln(os.Stdout, "sections", n)
	return err
}

// hold holds the lock until the parent closes the job's input, or kills it.
func (j goJob) hold(client *rlock.Client, in *bufio.Reader) error {
	l := j.lock(client)
	if j.Linger > 0 {
		for client.Stats().Idle == 0 { // not kept yet while Redis has not said who waits
			_, unlock, err := l.Lock(context.Background())
			if err != nil {
				return err
			}
			if err := unlock(); err != nil {
				return err
			}
		}
		fmt.Fprintln(os.Stdout, "kept")
		if _, err := in.ReadString('\n'); err != nil {
			return nil
		}
	}
	lock := l.Lock
	if j.Ticket != "" {
		lock = func(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
			return client.Adopt(ctx, j.Ticket)
		}
	}
	ctx, unlock, err := lock(context.Background())
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }()
	fmt.Fprintln(os.Stdout, "held", rlock.Owner(ctx))
	context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), rlock.ErrLost) {
			fmt.Fprintln(os.Stdout, "lost")
		}
	})
	_, err = io.Copy(io.Discard, in)
	return err
}

func (j goJob) lock(client *rlock.Client) rlock.Locker {
	if j.Names != nil {
		return allOf(client, j.Names)
	}
	var options []rlock.Option
	if j.Asked {
		options = append(options, rlock.WithAsked())
	}
	if j.Linger > 0 {
		options = append(options, rlock.WithLinger(j.Linger))
	}
	return mutexOf(client, j.Kind, j.Name, options...)
}

// allOf is All of plain locks.
func allOf(client *rlock.Client, names []string) *rlock.MultiMutex {
	all := make([]rlock.Locker, len(names))
	for i, name := range names {
		all[i] = client.Mutex(name)
	}
	return rlock.All(all...)
}

// hammer does the same as hammer in Peer.java.
func (j goJob) hammer(client *rlock.Client) (sections int64, err error) {
	var (
		n      atomic.Int64
		wg     sync.WaitGroup
		failed = make(chan error, j.Threads)
		end    = time.Now().Add(j.For)
	)
	for range j.Threads {
		wg.Go(func() {
			for time.Now().Before(end) {
				err := mutexOf(client, j.Kind, j.Name).Do(context.Background(), func(context.Context) error { return addOne(j.File) })
				if err != nil {
					failed <- err
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	close(failed)
	return n.Load(), <-failed
}

// turns does the same as turns in Peer.java, in each thread.
func (j goJob) turns(client *rlock.Client) (string, error) {
	all, failed := make([]string, j.Threads), make([]error, j.Threads)
	var wg sync.WaitGroup
	end := time.Now().Add(j.For)
	for i := range j.Threads {
		wg.Go(func() {
			var turns turnsHad
			for began := time.Now(); began.Before(end) && failed[i] == nil; began = time.Now() {
				failed[i] = mutexOf(client, j.Kind, j.Name).Do(context.Background(), func(context.Context) error {
					turns.longest = max(turns.longest, time.Since(began))
					turns.sections++
					sleep(j.Section)
					return nil
				})
			}
			all[i] = turns.String()
		})
	}
	wg.Wait()
	return strings.Join(all, " "), errors.Join(failed...)
}

// turnsHad are what one caller got of a contended lock: how many sections, and the longest wait for one.
type turnsHad struct {
	sections int
	longest  time.Duration
}

func (s turnsHad) String() string { return fmt.Sprintf("%d-%d", s.sections, s.longest.Milliseconds()) }

func parseTurns(t testing.TB, text string) turnsHad {
	t.Helper()
	var n, ms int
	answer(fmt.Sscanf(text, "%d-%d", &n, &ms)).ok(t)
	return turnsHad{n, time.Duration(ms) * time.Millisecond}
}

// addOne reads and writes in two steps on purpose: if two were ever inside together, one addition
// would be lost.
func addOne(file string) error {
	before, err := readNumber(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strconv.FormatInt(before+1, 10)), 0o600)
}

func readNumber(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// line is one of a process; the zero value comes when it has ended.
type line struct {
	text string
	ok   bool
}

// goProcess is a running job.
type goProcess struct {
	process *os.Process
	in      io.WriteCloser
	lines   chan line // its output; closed when it ends
	status  error     // set before lines is closed
	log     bytes.Buffer
}

// startGo runs a job in its own process, which ends with the test's clean-up or with this process.
func (w *world) startGo(t testing.TB, job goJob) *goProcess {
	t.Helper()
	job.Addrs, job.Plain = w.addrs, w.plain
	text, err := json.Marshal(job)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	p := &goProcess{lines: make(chan line, 3)} // room for all its output
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), goJobVariable+"="+string(text))
	cmd.Stderr = &p.log
	p.in, err = cmd.StdinPipe()
	require.NoError(t, err)
	out := answer(cmd.StdoutPipe()).ok(t)
	require.NoError(t, cmd.Start())
	p.process = cmd.Process
	go func() { // ends with the process
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.lines <- line{lines.Text(), true}
		}
		p.status = cmd.Wait()
		close(p.lines)
	}()
	t.Cleanup(func() {
		_ = p.process.Kill()
		for range p.lines { // until the process has ended
		}
	})
	p.expect(t, "ready", time.Minute)
	return p
}

func (p *goProcess) begin(t testing.TB) {
	t.Helper()
	answer(fmt.Fprintln(p.in)).ok(t)
}

// expect requires that the next line begins with word, and returns the rest.
func (p *goProcess) expect(t testing.TB, word string, within time.Duration) string {
	t.Helper()
	next := redistest.Within(t, within, p.lines, "the Go process says "+word)
	if !next.ok {
		require.FailNow(t, "Go process has ended", "%v: %s", p.status, p.log.String())
	}
	require.True(t, strings.HasPrefix(next.text, word), next.text)
	return strings.TrimSpace(strings.TrimPrefix(next.text, word))
}

// end requires that the process exits without an error; a detected data race is one.
func (p *goProcess) end(t testing.TB) {
	t.Helper()
	_ = p.in.Close()
	next := redistest.Within(t, testTimeout, p.lines, "the Go process ends")
	require.False(t, next.ok, next.text)
	require.NoError(t, p.status, p.log.String())
}

// stop returns when the process stands still.
func stop(t testing.TB, p *os.Process) {
	t.Helper()
	require.NoError(t, p.Signal(syscall.SIGSTOP))
	redistest.Eventually(t, testTimeout, func() bool {
		status := answer(os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))).ok(t)
		return bytes.Contains(status, []byte(") T "))
	}, "it is stopped")
}

// kill is kill -9.
func (p *goProcess) kill() { _ = p.process.Kill() }
