package faults

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

const (
	// This process and Redis are checked every stallStep. A delay of stallBound is a stall.
	stallStep  = 10 * time.Millisecond
	stallBound = 50 * time.Millisecond
)

// span is a period of time.
type span struct{ from, to time.Time }

// stalls records when this process or Redis did not run: stopped, or on an overloaded machine. A late timer shows a stall
// of this process, and a late reply to a PING, sent past the proxy, a stall of Redis.
type stalls struct {
	rounds [2]atomic.Int64 // checks of this process and of Redis

	mu    sync.Mutex
	spans []span
}

// watchStalls records stalls until the test ends.
func watchStalls(t testing.TB, s *redistest.Server) *stalls {
	t.Helper()
	w, rdb := &stalls{}, s.Client(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	watch := func(what int, step func()) {
		wg.Go(func() { // ended by cancel
			for ; ctx.Err() == nil; w.rounds[what].Add(1) {
				step()
			}
		})
	}
	watch(0, w.step)
	watch(1, func() {
		began := time.Now()
		_ = rdb.Do(ctx, rdb.B().Ping().Build()).Error()
		w.note(began, time.Now())
		sleep(stallStep)
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return w
}

// ownStalls has the stalls of this process, which may be one that a test has started. Whoever is late by them is not late.
var ownStalls = watchOwn()

// watchOwn watches until the process ends.
func watchOwn() *stalls {
	w := &stalls{}
	go func() {
		for ; ; w.rounds[0].Add(1) {
			w.step()
		}
	}()
	return w
}

// ran returns for how long this process ran between two times of histNow.
func (w *stalls) ran(from, to int64) time.Duration {
	for now := w.rounds[0].Load(); w.rounds[0].Load() == now; { // a stall that is just over is noted
		sleep(stallStep)
	}
	total, _ := w.clear(span{histTime(from), histTime(to)})
	return total
}

// recorded returns the stalls so far.
func (w *stalls) recorded() (all []histStall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.spans {
		all = append(all, histStall{histClock(s.from), histClock(s.to)})
	}
	return all
}

// isLate reports whether something that was due happened more than histLate later.
func isLate(due, happened int64) bool {
	return happened-due > int64(histLate) && ownStalls.ran(due, happened) > histLate
}

// step checks once whether this process is running.
func (w *stalls) step() {
	began := time.Now()
	sleep(stallStep)
	w.note(began.Add(stallStep), time.Now())
}

func (w *stalls) note(from, to time.Time) {
	if to.Sub(from) < stallBound {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spans = append(w.spans, span{from, to})
}

// settle waits until any current stall has ended and is recorded.
func (w *stalls) settle(t testing.TB) {
	t.Helper()
	for what := range w.rounds {
		now := w.rounds[what].Load()
		redistest.Eventually(t, drainPatience, func() bool { return w.rounds[what].Load() > now }, "the stall must end")
	}
}

// clear returns the time without a stall in s: the total, and the longest piece.
func (w *stalls) clear(s span) (total, longest time.Duration) {
	w.mu.Lock()
	spans := slices.Clone(w.spans)
	w.mu.Unlock()
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	at := s.from
	piece := func(to time.Time) {
		if d := to.Sub(at); d > 0 {
			total, longest = total+d, max(longest, d)
		}
	}
	for _, stall := range spans {
		if !stall.from.Before(s.to) {
			break
		}
		piece(stall.from)
		if stall.to.After(at) {
			at = stall.to
		}
	}
	piece(s.to)
	return total, longest
}

// G2: only actual stalls excuse a loss.
func TestLoadStallsAreToldApart(t *testing.T) {
	zero := time.Now()
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	for name, c := range map[string]struct {
		stalls         [][2]int
		total, longest int // in the span from 0 to 1000
	}{
		"none":                       {nil, 1000, 1000},
		"in the middle":              {[][2]int{{300, 500}}, 800, 500},
		"too short for a stall":      {[][2]int{{300, 340}}, 1000, 1000},
		"over the ends":              {[][2]int{{-100, 100}, {900, 1100}}, 800, 800},
		"before and after":           {[][2]int{{-200, -100}, {1000, 1200}}, 1000, 1000},
		"all of it":                  {[][2]int{{-100, 1100}}, 0, 0},
		"one after the other":        {[][2]int{{0, 600}, {600, 1000}}, 0, 0},
		"two that overlap":           {[][2]int{{100, 400}, {300, 600}}, 500, 400},
		"one in the other, in order": {[][2]int{{100, 700}, {200, 300}}, 400, 300},
		"recorded in another order":  {[][2]int{{500, 600}, {100, 900}}, 200, 100},
	} {
		t.Run(name, func(t *testing.T) {
			var w stalls
			for _, s := range c.stalls {
				w.note(at(s[0]), at(s[1]))
			}
			total, longest := w.clear(span{at(0), at(1000)})
			assert.Equal(t, at(c.total), zero.Add(total))
			assert.Equal(t, at(c.longest), zero.Add(longest))
		})
	}
	t.Run("a server that was stopped", func(t *testing.T) {
		s := redistest.Start(t)
		w, began := watchStalls(t, s), time.Now()
		s.Pause()
		sleep(300 * time.Millisecond)
		s.Resume()
		w.settle(t)
		total, _ := w.clear(span{began, began.Add(300 * time.Millisecond)})
		require.Less(t, total, 2*stallBound)
	})
}

// meter counts the completed script calls of a lock client by script and outcome. It skips calls answered
// with NOSCRIPT, since rueidis repeats them with the script's text.
type meter struct {
	rueidis.Client
	acquires, handOffs atomic.Int64

	renewals atomic.Int64 // calls, for any number of holds
	renewed  atomic.Int64 // holds in them
	failed   atomic.Int64 // holds in the failed calls

	onGranted func(name string, sent time.Time) // may be nil; called for each acquired or renewed hold
}

func (m *meter) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	c, ok := parseHistScript(cmd.Commands())
	if !ok {
		return m.Client.Do(ctx, cmd)
	}
	sent := time.Now()
	result := m.Client.Do(ctx, cmd)
	err := result.Error()
	if said, is := rueidis.IsRedisErr(err); is && said.IsNoScript() {
		return result
	}
	switch c.what {
	case "acquire":
		m.acquires.Add(1)
	case "hand-off":
		m.handOffs.Add(1)
	case "release":
		return result
	case "renew":
		m.renewals.Add(1)
		m.renewed.Add(int64(len(c.keys)))
		if err != nil {
			m.failed.Add(int64(len(c.keys)))
		}
	}
	if m.onGranted != nil && err == nil {
		for i, k := range c.keys {
			if c.granted(i, result) {
				m.onGranted(k.Name, sent)
			}
		}
	}
	return result
}

// memory is the process's memory in use after a garbage collection.
type memory struct{ heap, stacks uint64 }

func measure() memory {
	runtime.GC()
	runtime.GC() // the second frees objects with finalizers or weak pointers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{m.HeapAlloc, m.StackInuse}
}

// per is the growth since before, divided by n; negative figures are noise.
func (m memory) per(before memory, n int) (heap, stacks int64) {
	return (int64(m.heap) - int64(before.heap)) / int64(n), (int64(m.stacks) - int64(before.stacks)) / int64(n)
}

// cpu is the CPU time used by this process.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// requireEmpty waits until the test's own server has no keys and no channels.
func requireEmpty(t testing.TB, rdb rueidis.Client, within time.Duration) {
	t.Helper()
	redistest.Eventually(t, within, func() bool {
		keys, err := do(t, rdb, "DBSIZE").AsInt64()
		channels, err2 := do(t, rdb, "PUBSUB", "CHANNELS").AsStrSlice()
		return err == nil && err2 == nil && keys == 0 && len(channels) == 0
	}, "no key or channel may be left")
}

// loadParallel calls f with 0 to n-1 on 64 goroutines.
func loadParallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}
