package faults

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
