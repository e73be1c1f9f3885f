package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
)

// testWorker runs work inside this process.
type testWorker struct {
	t      *testing.T
	in     *io.PipeWriter
	events chan event
	end    chan error
}

func startWorker(t *testing.T, config workerConfig) *testWorker {
	t.Helper()
	in, toWorker := io.Pipe()
	fromWorker, out := io.Pipe()
	w := &testWorker{t: t, in: toWorker, events: make(chan event, 100_000), end: make(chan error, 1)}
	go func() { // ends on the word stop, or when in is closed
		err := work(in, out)
		_ = out.Close()
		w.end <- err
	}()
	go func() { // ends with the worker
		defer close(w.events)
		for d := json.NewDecoder(fromWorker); ; {
			var e event
			if d.Decode(&e) != nil {
				return
			}
			w.events <- e
		}
	}()
	t.Cleanup(func() { _ = toWorker.Close() })
	text, err := json.Marshal(config)
	require.NoError(t, err)
	w.tell(string(text))
	w.saw(ready, "", 0)
	return w
}

func (w *testWorker) tell(word string) {
	w.t.Helper()
	_, err := io.WriteString(w.in, word+"\n")
	require.NoError(w.t, err)
}

// saw waits for an event of a kind, in a lock, at a depth.
func (w *testWorker) saw(kind, lock string, depth int) event {
	w.t.Helper()
	for timeout := time.After(patience); ; {
		select {
		case e, ok := <-w.events:
			require.True(w.t, ok, "the worker ended without %s", kind)
			if e.Kind == kind && e.Lock == lock && e.Depth == depth {
				return e
			}
		case <-timeout:
			w.t.Fatalf("no %s within %v", kind, patience)
		}
	}
}

func (w *testWorker) ended() error {
	w.t.Helper()
	select {
	case err := <-w.end:
		return err
	case <-time.After(patience):
		return errors.New("does not end")
	}
}

// shopConfig makes a shop's counters.
func shopConfig(t *testing.T, s *redistest.Server) workerConfig {
	t.Helper()
	c := workerConfig{Addr: s.Addr(), Prefix: "shop", Watchdog: 2 * time.Second, Letter: "A"}
	rdb := s.Client(t)
	for _, what := range []string{tea, till} {
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Set().Key(c.key("count", what)).Value("0").Build()).Error())
	}
	return c
}

func TestWorker(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	config := shopConfig(t, s)
	w := startWorker(t, config)
	w.tell(wordGo)
	require.Equal(t, "Ship", w.saw(entered, tea, 1).Layer)
	require.Equal(t, "Reserve", w.saw(entered, tea, 2).Layer)
	w.saw(wrote, tea, 0)
	w.saw(left, tea, 2)
	require.Equal(t, "Charge", w.saw(entered, tea, 2).Layer)
	w.saw(entered, till, 1)
	w.tell(wordStop)
	require.NoError(t, w.ended())
	rdb := s.Client(t)
	n, err := rdb.Do(t.Context(), rdb.B().Exists().Key(config.key("lock", tea), config.key("inside", tea)).Build()).AsInt64()
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestWorkerStuck(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := startWorker(t, shopConfig(t, s))
	w.tell(wordCrash)
	w.tell(wordGo)
	w.saw(stuck, "", 0)
	require.NoError(t, w.in.Close())
	require.EqualError(t, w.ended(), "the demo has gone")
}

func TestWorkerFails(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	config := shopConfig(t, s)
	rdb := s.Client(t)
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Set().Key(config.key("count", tea)).Value("parsing").Build()).Error())
	w := startWorker(t, config)
	w.tell(wordGo)
	require.ErrorContains(t, w.ended(), "parsing")
}

func TestWorkErrors(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                         "no configuration",
		"{":                        "configuration",
		`{"addr": "http://x"}`:     "scheme",
		`{"addr": "127.0.0.1:1"}`:  "refused",
		`{"watchdog": "a string"}`: "configuration",
	} {
		require.ErrorContains(t, work(strings.NewReader(in), &bytes.Buffer{}), want, in)
	}
}

// TestEmbedded: leases run out there.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	s, err := embedded("of this test")
	require.NoError(t, err)
	defer s.stop()
	rdb, err := workerConfig{Addr: s.addr, Embedded: s.embedded}.connect()
	require.NoError(t, err)
	defer rdb.Close()
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Set().Key("k").Value("v").PxMilliseconds(50).Build()).Error())
	redistest.Eventually(t, patience, func() bool {
		n, err := rdb.Do(t.Context(), rdb.B().Exists().Key("k").Build()).AsInt64()
		return err == nil && n == 0
	}, "the key expires")
}
