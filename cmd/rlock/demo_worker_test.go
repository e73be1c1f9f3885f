package main

import (
	"encoding/json"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// testWorker runs work inside this process.
type testWorker struct {
	t     *testing.T
	in    *io.PipeWriter
	spans chan span
	end   chan error
}

func startWorker(t *testing.T, config workerConfig) *testWorker {
	t.Helper()
	in, toWorker := io.Pipe()
	fromWorker, out := io.Pipe()
	w := &testWorker{t: t, in: toWorker, spans: make(chan span, 100_000), end: make(chan error, 1)}
	go func() { // ends when in is closed
		err := work(config, in, out)
		_ = out.Close()
		w.end <- err
	}()
	go func() { // ends with the worker
		defer close(w.spans)
		for d := json.NewDecoder(fromWorker); ; {
			var s span
			if d.Decode(&s) != nil {
				return
			}
			w.spans <- s
		}
	}()
	t.Cleanup(func() { _ = toWorker.Close() })
	return w
}

// saw waits for the next span of the first clerk.
func (w *testWorker) saw() span {
	w.t.Helper()
	for timeout := time.After(patience); ; {
		select {
		case s, ok := <-w.spans:
			require.True(w.t, ok, "the worker ended")
			if s.Clerk == 1 {
				return s
			}
		case <-timeout:
			w.t.Fatalf("no span within %v", patience)
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

func shopConfig(s *redistest.Server) workerConfig {
	return workerConfig{Addr: s.Addr(), Prefix: "shop", Letter: "A", Watchdog: patience}
}

func TestWorker(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	config := shopConfig(s)
	w := startWorker(t, config)
	for _, want := range []span{
		{Lock: tea, Depth: 2, Wrote: true}, // Reserve
		{Lock: till, Depth: 1, Wrote: true},
		{Lock: tea, Depth: 2}, // Charge
		{Lock: tea, Depth: 1}, // Ship
	} {
		got := w.saw()
		require.False(t, got.Want.After(got.From) || got.From.After(got.To), "%+v", got)
		require.Equal(t, want, span{Lock: got.Lock, Depth: got.Depth, Wrote: got.Wrote, Met: got.Met})
	}
	require.NoError(t, w.in.Close())
	require.NoError(t, w.ended())
	rdb := s.Client(t)
	n, err := rdb.Do(t.Context(), rdb.B().Exists().Key(config.key("lock", tea), config.key("inside", tea)).Build()).AsInt64()
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestWorkerHangs(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := startWorker(t, shopConfig(s))
	_, err := io.WriteString(w.in, "crash\n")
	require.NoError(t, err)
	for timeout := time.After(patience); ; {
		select {
		case s := <-w.spans:
			if !s.To.IsZero() {
				continue
			}
		case <-timeout:
			t.Fatal("it does not hang")
		}
		break
	}
	require.NoError(t, w.in.Close())
	require.EqualError(t, w.ended(), "the demo has ended")
}

func TestWorkerFails(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	config := shopConfig(s)
	rdb := s.Client(t)
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Set().Key(config.key("count", tea)).Value("parsing").Build()).Error())
	w := startWorker(t, config)
	require.ErrorContains(t, w.ended(), "parsing")
}

func TestWorkerErrors(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]string{
		"":                        "configuration",
		"{":                       "configuration",
		`{"Addr": "http://x"}`:    "not a Redis URL",
		`{"Addr": "127.0.0.1:1"}`: "refused",
	} {
		r := start(t, []string{workerEnv + "=" + config}, workerCommand).rest()
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.err, want, config)
	}
}

// TestEmbedded: leases expire there.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	var d demo
	_, stop, err := d.embed("for this test")
	require.NoError(t, err)
	defer stop()
	rdb, err := d.workerConfig.connect()
	require.NoError(t, err)
	defer rdb.Close()
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Set().Key("k").Value("v").PxMilliseconds(50).Build()).Error())
	redistest.Eventually(t, patience, func() bool {
		n, err := rdb.Do(t.Context(), rdb.B().Exists().Key("k").Build()).AsInt64()
		return err == nil && n == 0
	}, "the key expires")
}
