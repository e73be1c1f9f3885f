package rlock_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The soak runs for RLOCK_SOAK, or 10 s if unset: 4 processes with 50 goroutines each use 3 names, with nested locks
// and waits that are cancelled at random. Files bear witness: one that a section creates exclusively, and a counter
// that loses an update if two sections overlap.

const soakEnv = "RLOCK_SOAK_WORKER" // holds a JSON soakJob: this process is a worker of the soak

type soakJob struct {
	Addr, Dir, Prefix string
	Goroutines        int
	For               time.Duration
}

type soakReport struct {
	Sections, Nested, Cancelled, Overlaps, Lost int64
	Error                                       string
}

func (j soakJob) name(i int) string { return fmt.Sprintf("%s:%d", j.Prefix, i) }

func TestSoak(t *testing.T) {
	redistest.Parallel(t)
	duration := 4 * time.Second
	if s := os.Getenv("RLOCK_SOAK"); s != "" {
		var err error
		duration, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	const processes, names = 4, 3
	b := fixture{rdb: redistest.Dial(t, redistest.Shared(t)), name: redistest.Name(t)}
	job := soakJob{Addr: redistest.Shared(t), Dir: t.TempDir(), Prefix: b.name, Goroutines: 50, For: duration}
	text := answer(json.Marshal(job)).ok(t)

	type worker struct {
		*exec.Cmd
		stdin  io.WriteCloser
		stdout *bufio.Reader
	}
	workers := make([]worker, processes)
	for i := range workers {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), soakEnv+"="+string(text))
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe() // closing it ends the worker, even if this process dies
		require.NoError(t, err)
		stdout := answer(cmd.StdoutPipe()).ok(t)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		workers[i] = worker{cmd, stdin, bufio.NewReader(stdout)}
	}
	var total soakReport
	for _, w := range workers {
		line := answer(w.stdout.ReadBytes('\n')).ok(t)
		var r soakReport
		require.NoError(t, json.Unmarshal(line, &r))
		require.Empty(t, r.Error)
		total.Sections += r.Sections
		total.Nested += r.Nested
		total.Cancelled += r.Cancelled
		total.Overlaps += r.Overlaps
		total.Lost += r.Lost
	}
	t.Logf("%v: %d sections, %d of them nested, %d cancelled waits", duration, total.Sections, total.Nested, total.Cancelled)
	require.Positive(t, total.Cancelled)
	require.Positive(t, total.Nested)
	require.Zero(t, total.Overlaps)
	require.Zero(t, total.Lost, "holds lost")
	var counted int64
	for i := range names {
		counted += readCounter(t, filepath.Join(job.Dir, strconv.Itoa(i)))
	}
	require.Equal(t, total.Sections, counted, "lost updates")

	// The workers have finished but still run: anything left now was left by calls.
	redistest.Eventually(t, 5*time.Second, func() bool {
		keys, err := b.do(t, "KEYS", b.name+"*").AsStrSlice()
		channels, err2 := b.do(t, "PUBSUB", "CHANNELS", "*"+b.name+"*").AsStrSlice()
		return err == nil && err2 == nil && len(keys)+len(channels) == 0
	}, "no keys, no channels")
	for _, w := range workers {
		answer(io.WriteString(w.stdin, "goroutines\n")).ok(t)
		answer(w.stdout.ReadString('\n')).is(t, "0\n", "goroutines of calls")
		require.NoError(t, w.stdin.Close())
		require.NoError(t, w.Wait())
	}
}

func readCounter(t testing.TB, path string) int64 {
	t.Helper()
	text := answer(os.ReadFile(path)).ok(t)
	n := answer(strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)).ok(t)
	return n
}

// soakWorker is the main function of a worker.
func soakWorker(text string) int {
	var job soakJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{job.Addr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer rdb.Close()
	client, err := rlock.New(rdb, rlock.Options{UnlockTimeout: testTimeout}) // as newClient
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	enginetest.Patient(client)
	w := soaker{job: job, client: client}
	var wg sync.WaitGroup
	end := time.Now().Add(job.For)
	for range job.Goroutines {
		wg.Go(func() {
			for time.Now().Before(end) {
				w.turn()
			}
		})
	}
	wg.Wait()
	report, err := json.Marshal(soakReport{
		Sections: w.sections.Load(), Nested: w.nested.Load(), Cancelled: w.cancelled.Load(),
		Overlaps: w.overlaps.Load(), Lost: w.lost.Load(), Error: w.failure(),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, string(report))

	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err == nil {
		ofCalls := func() int {
			return redistest.Goroutines("rlock/rlock.", "rlock/lua.", "rlock/internal/engine.", "rlock/internal/counter.", "rlock/internal/sweep.")
		}
		for deadline := time.Now().Add(5 * time.Second); ofCalls() > 0 && time.Now().Before(deadline); {
			sleep(time.Millisecond)
		}
		fmt.Fprintln(os.Stdout, ofCalls())
	}
	_, _ = io.Copy(io.Discard, in)
	client.Close()
	return 0
}

type soaker struct {
	job    soakJob
	client *rlock.Client

	sections, nested, cancelled, overlaps, lost atomic.Int64

	mu  sync.Mutex // guards the following
	err error
}

func (w *soaker) failure() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		return ""
	}
	return w.err.Error()
}

func (w *soaker) note(err error) {
	switch {
	case err == nil:
	case errors.Is(err, rlock.ErrNotAcquired):
		w.cancelled.Add(1)
	case errors.Is(err, rlock.ErrLost):
		w.lost.Add(1)
	default:
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
	}
}

// turn locks one of the names, mostly patiently, and now and then with a wait that is cancelled.
func (w *soaker) turn() {
	ctx, cancel := context.Background(), func() {}
	if rand.N(3) == 0 {
		ctx, cancel = context.WithTimeout(ctx, rand.N(50*time.Millisecond))
	}
	defer cancel()
	i := rand.N(3)
	locked, unlock, err := w.client.Mutex(w.job.name(i)).Lock(ctx)
	if err != nil {
		w.note(err)
		return
	}
	w.section(context.WithoutCancel(locked), i, 2)
	w.note(unlock())
}

// section runs inside lock i. It re-enters lock i, and locks other names if they are free soon.
func (w *soaker) section(ctx context.Context, i, depth int) {
	inside := filepath.Join(w.job.Dir, fmt.Sprintf("inside-%d", i))
	f, err := os.OpenFile(inside, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		w.overlaps.Add(1)
		return
	}
	_ = f.Close()
	w.count(i)
	w.sections.Add(1)
	if depth > 0 {
		w.note(w.client.Mutex(w.job.name(i)).Do(ctx, func(ctx context.Context) error {
			j := rand.N(3)
			if j == i {
				return nil
			}
			inner, unlock, err := w.client.Mutex(w.job.name(j)).TryLock(ctx, rand.N(2*time.Millisecond))
			if err != nil {
				return err
			}
			w.nested.Add(1)
			w.section(inner, j, 0)
			return unlock()
		}))
	}
	if err := os.Remove(inside); err != nil {
		w.overlaps.Add(1)
	}
}

// count adds 1 to the counter of the name: read, then write.
func (w *soaker) count(i int) {
	path := filepath.Join(w.job.Dir, strconv.Itoa(i))
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.note(err)
	}
	n, _ := strconv.ParseInt(string(text), 10, 64)
	if err := os.WriteFile(path, []byte(strconv.FormatInt(n+1, 10)), 0o600); err != nil {
		w.note(err)
	}
}
