package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func contended(lib string, processes int) cell {
	return cell{Workload: "contended", Lib: lib, Processes: processes, Goroutines: 4, Duration: 200 * time.Millisecond}
}

func mixedOf(lib string, processes int) cell {
	c := contended(lib, processes)
	c.Workload = "mixed"
	return c
}

// A benchmark that misses a broken lock proves nothing about the other locks.
func TestBrokenLocksAreReported(t *testing.T) {
	b := startBench(t, options{})
	for _, c := range []cell{contended("none", 1), contended("none", 4), contended("per-process", 4)} {
		s := b.measure(c, 1)
		require.Empty(t, s.Error, c)
		assert.Positive(t, s.Violations, "%v: overlapping sections went unnoticed", c)
	}
	several := contended("per-process", 1)
	several.Clients = 2
	s := b.measure(several, 1)
	require.Empty(t, s.Error)
	assert.Positive(t, s.Violations, "clients of one process are as good as processes")
	for _, c := range []cell{mixedOf("none", 1), mixedOf("per-process", 4), mixedOf("no-readers", 1)} {
		s := b.measure(c, 1)
		require.Empty(t, s.Error, c)
		assert.Positive(t, s.Violations, "%v: a writer overlapped others unnoticed", c)
	}
	for _, workload := range []string{"semaphore", "latch"} {
		c := cell{Workload: workload, Lib: "none", Processes: 2, Goroutines: 25, Duration: 200 * time.Millisecond}
		s := b.measure(c, 1)
		require.Empty(t, s.Error, c)
		assert.Positive(t, s.Violations, "%s: too many inside, or a waiter through too early, went unnoticed", workload)
	}
	s = b.measure(mixedOf("per-process", 1), 1)
	require.Empty(t, s.Error)
	assert.Zero(t, s.Violations, "readers may meet")
	assert.Positive(t, s.Ops)
	s = b.measure(contended("per-process", 1), 1)
	require.Empty(t, s.Error)
	assert.Zero(t, s.Violations, "it excludes in a process")
	assert.Positive(t, s.Ops)
}

func TestWaitersThatAreNeverWokenAreTold(t *testing.T) {
	b := startBench(t, options{})
	c := contended("never-wakes", 2)
	c.Workload = "names"
	s := b.measure(c, 1)
	require.Empty(t, s.Error)
	assert.EqualValues(t, 8, s.Stuck)
	assert.EqualValues(t, 8*99, s.Ops, "earlier sections count")
	assert.Zero(t, s.Violations)
}

func TestLatchThatNeverOpensIsTold(t *testing.T) {
	b := startBench(t, options{})
	s := b.measure(cell{Workload: "latch", Lib: "never-wakes", Processes: 2, Goroutines: 4, Duration: 100 * time.Millisecond}, 1)
	require.Empty(t, s.Error)
	assert.EqualValues(t, 8, s.Stuck)
	assert.Zero(t, s.Ops)
	assert.Zero(t, s.Violations)
}

// With any number of processes, a herd's section takes two commands and one message.
func TestHerdTellsTheNextAlone(t *testing.T) {
	b := startBench(t, options{})
	s := b.measure(cell{Workload: "herd", Lib: rlockName, Processes: 2, Clients: 8, Goroutines: 1, Duration: time.Second}, 1)
	require.Empty(t, s.Error)
	assert.InDelta(t, 2, s.sentPerOp(), 0.15, "%v", s.Commands)
	assert.Greater(t, s.deliveredPerOp(), 0.8)
	assert.Less(t, s.deliveredPerOp(), 1.1)
}

func TestFailuresAreTold(t *testing.T) {
	b := startBench(t, options{})
	for lib, want := range map[string]string{
		"unreachable": "cannot be opened",
		"fails-later": "nothing more to give",
		"dies":        "exit status 3",
	} {
		s := b.measure(contended(lib, 2), 1)
		assert.Contains(t, s.Error, want)
		b.samples = []sample{s}
		assert.True(t, b.failed())
	}
}

// Runs each workload once, in a small size, and checks its measures and the compared libraries.
func TestWorkloads(t *testing.T) {
	b := startBench(t, options{duration: 100 * time.Millisecond})
	for _, w := range named(workloads(&b.options), nil) {
		c := w.cell
		c.Goroutines = min(c.Goroutines, 50)
		for _, lib := range []string{floorName, herdFloorName, rlockName} {
			l, err := findLibrary(lib)
			require.NoError(t, err)
			if c.Lib = lib; !l.takesPart(c.Workload) {
				continue
			}
			s := b.measure(c, 1)
			require.Empty(t, s.Error, "%s %s", w.name, lib)
			assert.Zero(t, s.Violations, "%s %s", w.name, lib)
			assert.Positive(t, s.Ops, "%s %s", w.name, lib)
			assert.Positive(t, s.ElapsedNs, "%s %s", w.name, lib)
			switch w.name {
			case "readers":
				assert.LessOrEqual(t, s.sentPerOp(), 2.01, "%s: %v", lib, s.Commands)
				assert.Positive(t, s.AllocsPerOp)
			case "pair", "names", "all-100", "nested", "nested-1ms", "affinity":
				assert.InDelta(t, 2, s.sentPerOp(), 0.01, "%s %s sends two commands for a pair: %v", w.name, lib, s.Commands)
				assert.Positive(t, s.AllocsPerOp)
			case "ping-pong":
				assert.InDelta(t, 2, s.sentPerOp(), 0.01, "%s sends two commands for a pair: %v", lib, s.Commands)
			case "asymmetric":
				assert.LessOrEqual(t, s.perSecond(), 1000.0, "a section takes 1 ms")
			case "latch":
				assert.Less(t, s.sentPerOp(), 15.0, "the waiters of a process ask together: %v", s.Commands)
			case "waiters":
				assert.Zero(t, s.Sent, "waiters send nothing: %v", s.Commands)
				assert.EqualValues(t, c.Goroutines, s.Ops)
			case "contended-1ms":
				if lib == floorName { // a lock may stay within the process
					assert.GreaterOrEqual(t, s.Latency.P50, time.Millisecond.Nanoseconds(), "%s is farther away", lib)
				}
			}
			if w.name == "handoff" && lib == floorName {
				assert.Less(t, s.Latency.P50, (2 * time.Millisecond).Nanoseconds(), "the pause before a hand-off does not count")
			}
		}
	}
}

func TestHerdFloorExcludesAndLeavesNothing(t *testing.T) {
	b := startBench(t, options{})
	s := b.measure(cell{Workload: "herd", Lib: herdFloorName, Processes: 2, Clients: 3, Goroutines: 1, Duration: 200 * time.Millisecond}, 1)
	require.Empty(t, s.Error)
	assert.Positive(t, s.Ops)
	assert.Zero(t, s.Violations)
	assert.Zero(t, s.Stuck)
	assert.InDelta(t, 2, s.sentPerOp(), 0.01, "no command in vain: %v", s.Commands)
	assert.InDelta(t, 1, s.deliveredPerOp(), 0.05, "one message per section, except the first")
	left, err := b.server.rdb.Do(t.Context(), b.server.rdb.B().Keys().Pattern("*").Build()).AsStrSlice()
	require.NoError(t, err)
	assert.Empty(t, left, "the queue is empty, and the lock is free")
}

func TestFarProcessHasALongerWay(t *testing.T) {
	b := startBench(t, options{})
	c := cell{Workload: "names", Lib: rlockName, Processes: 2, Goroutines: 6, Far: 10 * time.Millisecond, Duration: 200 * time.Millisecond}
	assert.Equal(t, 7, c.goroutines())
	s := b.measure(c, 1)
	require.Empty(t, s.Error)
	assert.Zero(t, s.Violations)
	assert.GreaterOrEqual(t, s.Extra["far_max_ns"], 20e6, "two round trips of 10 ms")
	assert.Positive(t, s.Extra["far_share"])
	assert.Less(t, s.Extra["far_share"], 0.5, "the near ones have no such way")
}

func TestPairBesideHolds(t *testing.T) {
	b := startBench(t, options{})
	s := b.measure(cell{
		Workload: "pair", Lib: rlockName, Processes: 1, Goroutines: 1, Holds: 500, Duration: 1200 * time.Millisecond,
	}, 1)
	require.Empty(t, s.Error)
	require.Positive(t, s.Ops)
	assert.GreaterOrEqual(t, s.Commands["hexists"], int64(500), "they were renewed meanwhile")
}

func TestMergeFindsWhoStarves(t *testing.T) {
	var s sample
	s.merge([]report{
		{Ops: 30, ElapsedNs: 5, Latency: latency{P50: 10, P99: 20, Max: 30}, PerGoroutine: []int64{10, 20}, Extra: map[string]float64{"x": 1}},
		{Ops: 10, ElapsedNs: 9, Latency: latency{P50: 30, P99: 10, Max: 40}, PerGoroutine: []int64{10, 0}, Violations: 2, Extra: map[string]float64{"x": 3}},
	})
	assert.EqualValues(t, 40, s.Ops)
	assert.EqualValues(t, 9, s.ElapsedNs)
	assert.Equal(t, latency{P50: 20, P99: 20, Max: 40}, s.Latency)
	assert.Equal(t, 1, s.Starved)
	assert.Zero(t, s.Slowest)
	assert.EqualValues(t, 2, s.Violations)
	assert.InDelta(t, 2, s.Extra["x"], 0)

	s = sample{}
	s.merge([]report{{Ops: 12, PerGoroutine: []int64{2, 4, 6}}})
	assert.InDelta(t, 0.5, s.Slowest, 1e-9)
	assert.Zero(t, s.Starved)
}

func TestMergeTellsOfTheFarProcess(t *testing.T) {
	s := sample{cell: cell{Processes: 2, Goroutines: 6, Far: time.Millisecond}}
	s.merge([]report{
		{Ops: 65, PerGoroutine: []int64{10, 10, 10, 10, 10, 15}, Latency: latency{Max: 90}},
		{Ops: 5, PerGoroutine: []int64{5}, Latency: latency{Max: 70}},
	})
	assert.InDelta(t, 0.5, s.Extra["far_share"], 1e-9, "of the 10 that are an equal share")
	assert.InDelta(t, 70, s.Extra["far_max_ns"], 0)
}

func TestLostUpdatesAreViolations(t *testing.T) {
	s := sample{Sections: 15}
	s.check(15)
	assert.Zero(t, s.Violations)
	s.check(12)
	assert.EqualValues(t, 3, s.Violations)
}
