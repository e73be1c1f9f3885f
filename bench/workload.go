package main

import "slices"

// workload is one kind of work, in its usual size.
type workload struct {
	name   string
	about  string
	cell   cell // without a library
	shared bool // many callers of one lock
	// asked: measured only if named, because it takes long.
	asked bool
	// fickle: results depend much on how client and server share the cores in a round.
	fickle bool
	// metric is the measure by which libraries are compared.
	metric metric
	// columns are further measures in the table.
	columns []metric
}

// metric is a number of a sample.
type metric struct {
	head   string // with the unit
	value  func(s *sample) float64
	format string
	// more: higher is better.
	more bool
	// axis is its label in a plot.
	axis string
}

var (
	perSecond  = metric{"ops/s", (*sample).perSecond, "%.0f", true, "sections a second"}
	p50        = metric{"p50 us", func(s *sample) float64 { return float64(s.Latency.P50) / 1e3 }, "%.1f", false, "median latency, µs"}
	p99        = metric{"p99 us", func(s *sample) float64 { return float64(s.Latency.P99) / 1e3 }, "%.1f", false, "99th percentile of the latency, µs"}
	waitP99    = metric{"wait p99 ms", func(s *sample) float64 { return float64(s.Latency.P99) / 1e6 }, "%.2f", false, "99th percentile of the waits, ms"}
	longest    = metric{"longest wait ms", func(s *sample) float64 { return float64(s.Latency.Max) / 1e6 }, "%.0f", false, "longest wait, ms"}
	allocs     = metric{"allocs/op", func(s *sample) float64 { return s.AllocsPerOp }, "%.1f", false, "allocations for each section"}
	allocBytes = metric{"B/op", func(s *sample) float64 { return s.BytesPerOp }, "%.0f", false, "bytes allocated for each section"}
	sentPerOp  = metric{"commands/op", (*sample).sentPerOp, "%.2f", false, "commands for each section"}
	toldPerOp  = metric{"messages/op", (*sample).deliveredPerOp, "%.2f", false, "messages delivered for each section"}
	slowest    = metric{"slowest/mean", func(s *sample) float64 { return s.Slowest }, "%.2f", true, "sections of the slowest, as a part of the mean"}
	stuck      = metric{"stuck", func(s *sample) float64 { return float64(s.Stuck) }, "%.0f", false, "never got the lock"}
	starved    = metric{"starved", func(s *sample) float64 { return float64(s.Starved) }, "%.0f", false, "had no turn while it was measured"}

	sentPerSecond = metric{"commands/s", func(s *sample) float64 { return float64(s.Sent) / s.Duration.Seconds() }, "%.0f", false, "commands a second"}
	heap          = metric{"heap B each", extra("heap_bytes", 1), "%.0f", false, "bytes of heap for each"}
	stack         = metric{"stack B each", extra("stack_bytes", 1), "%.0f", false, "bytes of stack for each"}
	farShare      = metric{"far one's share", extra("far_share", 1), "%.2f", true, "the far one's sections, as a part of an equal share"}
	farWait       = metric{"its longest wait ms", extra("far_max_ns", 1e6), "%.0f", false, "the far one's longest wait, ms"}
	goroutines    = metric{"goroutines each", extra("goroutines", 1), "%.3f", false, "goroutines for each"}
	drain         = metric{"drain ms", func(s *sample) float64 { return float64(s.ElapsedNs) / 1e6 }, "%.1f", false, "time until all have had the lock, ms"}
	through       = metric{"ms", func(s *sample) float64 { return float64(s.ElapsedNs) / 1e6 / float64(max(s.Ops, 1)) }, "%.2f", false, "time until all are through, ms"}
	slowestRound  = metric{"longest ms", func(s *sample) float64 { return float64(s.Latency.Max) / 1e6 }, "%.2f", false, "longest time until all were through, ms"}
	nextIn        = metric{"median s", func(s *sample) float64 { return float64(s.Latency.P50) / 1e9 }, "%.3f", false, "median time until the next has the lock, s"}
	nextLeast     = metric{"least s", extra("least_ns", 1e9), "%.3f", false, "shortest such time, s"}
	nextMost      = metric{"most s", func(s *sample) float64 { return float64(s.Latency.Max) / 1e9 }, "%.3f", false, "longest such time, s"}
	opCPU         = metric{"CPU us/op", extra("op_cpu_ns", 1e3), "%.1f", false, "CPU time of the processes for each section, µs"}
	cpu           = metric{"CPU ms/s", func(s *sample) float64 { return s.Extra["cpu_ns"] / 1e6 / s.Duration.Seconds() }, "%.2f", false, "CPU time of the process, ms a second"}
)

func extra(name string, unit float64) func(*sample) float64 {
	return func(s *sample) float64 { return s.Extra[name] / unit }
}

// crashes is the number of holders killed in a cell.
const crashes = 8

// named returns the named workloads; without names, those measured by default.
func named(all []workload, names []string) []workload {
	if len(names) == 0 {
		return slices.DeleteFunc(all, func(w workload) bool { return w.asked })
	}
	return slices.DeleteFunc(all, func(w workload) bool { return !slices.Contains(names, w.name) })
}

// workloadOf returns the workload whose usual size the cell has, in a quick run or not; false for a curve's point.
func workloadOf(c cell, quick bool) (workload, bool) {
	c.Lib = ""
	o := options{duration: c.Duration, long: c.Duration, quick: quick}
	for _, w := range workloads(&o) {
		if w.cell == c {
			return w, true
		}
	}
	return workload{}, false
}
