package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pairOf returns a sample of the pair workload in its usual size, with that latency.
func pairOf(lib string, round int, us int64) sample {
	return sample{
		cell:  cell{Workload: "pair", Lib: lib, Processes: 1, Goroutines: 1, Duration: time.Second},
		Round: round, Ops: 1000, Sections: 1000, Sent: 2000, ElapsedNs: time.Second.Nanoseconds(),
		Latency: latency{P50: us * 1000, P99: 2 * us * 1000}, AllocsPerOp: 3, BytesPerOp: 64,
	}
}

// contendedOf returns a sample of the contended workload, with that throughput.
func contendedOf(lib string, ops int64, starved int) sample {
	return sample{
		cell:  cell{Workload: "contended", Lib: lib, Processes: 4, Goroutines: 25, Duration: time.Second},
		Round: 1, Ops: ops, Sections: ops + 100, Sent: 2 * (ops + 100), ElapsedNs: time.Second.Nanoseconds(), Starved: starved,
	}
}

// line returns the cells of the library's row.
func line(t *testing.T, tables, lib string) []string {
	t.Helper()
	for text := range strings.Lines(tables) {
		if strings.HasPrefix(text, "| "+lib+" |") {
			cells := strings.Split(strings.TrimSpace(text), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			return cells[1 : len(cells)-1]
		}
	}
	t.Fatalf("no row for %s in\n%s", lib, tables)
	return nil
}

func TestTableRatiosWhereLessIsBetter(t *testing.T) {
	r := results{samples: []sample{
		pairOf("bsm", 1, 200), pairOf(floorName, 1, 100), pairOf("redsync", 1, 300),
		// The median of the successful rounds: 150.
		pairOf(rlockName, 1, 150), pairOf(rlockName, 2, 900), pairOf(rlockName, 3, 10),
		pairOf("floor-cancel", 1, 400), pairOf("rlock-cancel", 1, 500),
	}}
	failed := pairOf(rlockName, 4, 1)
	failed.Error = "it broke"
	r.samples = append(r.samples, failed)
	tables := r.tables()
	assert.Equal(t, []string{"rlock", "150.0", "1.50", "0.75"}, line(t, tables, rlockName)[:4])
	assert.Equal(t, []string{"floor", "100.0", "", "0.50"}, line(t, tables, floorName)[:4])
	assert.Equal(t, []string{"bsm", "200.0", "2.00", "0.67"}, line(t, tables, "bsm")[:4], "a peer is compared with the best of the others")
	assert.Equal(t, []string{"redsync", "300.0", "3.00", "1.50"}, line(t, tables, "redsync")[:4])
	assert.Equal(t, []string{"rlock-cancel", "500.0", "1.25", "2.50"}, line(t, tables, "rlock-cancel")[:4], "its floor has the same kind of context")
	assert.Equal(t, "2.00", line(t, tables, rlockName)[5], "commands")
	assert.Contains(t, tables, "rlock, round 4, failed: it broke")
}

func TestTableRatiosWhereMoreIsBetter(t *testing.T) {
	r := results{samples: []sample{
		contendedOf(floorName, 4000, 0), contendedOf(rlockName, 3000, 0),
		contendedOf("bsm", 6000, 90), contendedOf("rueidislock", 1500, 0), contendedOf("redsync", 1000, 0),
	}}
	r.samples[3].Violations = 7
	tables := r.tables()
	assert.Equal(t, []string{"rlock", "3000", "0.75", "0.50", "2.00"}, line(t, tables, rlockName)[:5])
	assert.Equal(t, []string{"bsm", "6000", "1.50", "4.00", "4.00"}, line(t, tables, "bsm")[:5])
	cells := line(t, tables, "rueidislock")
	assert.Equal(t, []string{"rueidislock", "1500", "0.38", "0.25", "1.50"}, cells[:5])
	assert.Equal(t, "7", cells[len(cells)-1], "violations")
}

func TestTableShowsWhatFailed(t *testing.T) {
	failed := pairOf("bsm", 1, 1)
	failed.Error = "it broke"
	r := results{samples: []sample{failed, pairOf(rlockName, 1, 10)}}
	assert.Equal(t, []string{"bsm", "FAILED"}, line(t, r.tables(), "bsm"))
	assert.Equal(t, []string{"rlock", "10.0", "", ""}, line(t, r.tables(), rlockName)[:4], "a failed library is no peer")
}

func TestMedianOfEvenAndNone(t *testing.T) {
	a, b := pairOf("bsm", 1, 10), pairOf("bsm", 2, 20)
	v, ok := median([]*sample{&a, &b}, p50.value)
	assert.True(t, ok)
	assert.InDelta(t, 15, v, 1e-9)
	_, ok = median(nil, p50.value)
	assert.False(t, ok)
}

// curveSamples are samples of the curve over names, including one of the usual size.
func curveSamples() []sample {
	var all []sample
	for i, n := range []int{1, 8, 64} {
		s := pairOf(rlockName, 1, 100)
		s.Workload, s.Goroutines, s.Ops, s.Duration = "names", n, int64(1000*(i+1)), 500*time.Millisecond
		if n == 64 {
			s.Duration = time.Second
		}
		all = append(all, s)
	}
	return all
}

func TestCurveTakesTheUsualSizeAsAPoint(t *testing.T) {
	r := results{samples: curveSamples()}
	_, curve, ok := strings.Cut(r.tables(), "### curve names: ops/s\n")
	require.True(t, ok)
	assert.Equal(t, []string{"rlock", "1000", "2000", "3000", "", ""}, line(t, curve, rlockName))
	assert.NotContains(t, r.tables(), "curve local", "there are no samples of it")
}

func TestResultsAreReadAsTheyWereWritten(t *testing.T) {
	dir := t.TempDir()
	r := &results{samples: append(curveSamples(), pairOf("bsm", 1, 200), pairOf(rlockName, 1, 100))}
	r.Machine = machine{Time: time.Now().UTC().Truncate(time.Second), GOOS: "linux", Cores: 2, Libs: map[string]string{"a": "v1"}}
	r.samples[0].Commands = commands{"evalsha": 3}
	r.samples[1].Extra = map[string]float64{"x": 1.5}
	require.NoError(t, r.write(dir))
	again, err := readResults(dir)
	require.NoError(t, err)
	assert.Equal(t, r, again)

	var told strings.Builder
	require.NoError(t, redraw(dir, &told))
	assert.Equal(t, r.tables(), told.String())
	for _, name := range []string{tableFile, "pair.svg", "names.svg", "curve-names-ops-s.svg", "curve-names-p99-us.svg"} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Positive(t, info.Size(), name)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, rawFile), []byte("{}\nnot JSON\n"), 0o600))
	_, err = readResults(dir)
	require.ErrorContains(t, err, "line 2")
}

func TestGoBenchmarkForm(t *testing.T) {
	failed := pairOf("redsync", 1, 1)
	failed.Error = "it broke"
	r := results{samples: []sample{pairOf(rlockName, 1, 100), pairOf("rueidislock-1", 1, 200), failed}}
	r.Machine = machine{GOOS: "linux", Arch: "amd64", Cores: 2}
	lines := strings.Split(strings.TrimSpace(r.goBenchmark()), "\n")
	require.Len(t, lines, 4+2, "four header lines, none for failed cells")
	form := regexp.MustCompile(`^Benchmark[A-Z]\w*(/[a-z]+=[^/\s]+)+-2\t\d+(\t[\d.]+ [\w/-]+)+$`)
	for _, text := range lines[4:] {
		assert.Regexp(t, form, text)
	}
	assert.Contains(t, lines[4], "BenchmarkLock/workload=pair/lib=rlock-2\t1000\t1000000.0 ns/op\t100000 p50-ns")
	assert.Contains(t, lines[4], "\t2.000 cmds/op\t64 B/op\t3.0 allocs/op")
}
