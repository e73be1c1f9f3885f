package main

import (
	"fmt"
	"slices"
	"time"
)

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

// herdWorkers is the number of worker processes in a herd of any size.
const herdWorkers = 4

// workloads are all workloads, in the order of the tables.
func workloads(o *options) []workload {
	d := o.duration
	long := max(d, o.long)
	many, crowd := 1000, 16
	if o.quick {
		many, crowd = 100, 2
	}
	usual := []metric{p50, p99, sentPerOp, allocs, allocBytes}
	shared := []metric{waitP99, longest, sentPerOp, slowest, starved, stuck}
	told := slices.Insert(slices.Clone(shared), 3, toldPerOp)
	opened := []metric{slowestRound, sentPerOp, toldPerOp, stuck}
	far := []metric{farWait, perSecond, sentPerOp, starved, stuck}
	return []workload{
		{
			name: "pair", about: "one goroutine locks and unlocks a lock that nobody else wants",
			cell:   cell{Workload: "pair", Processes: 1, Goroutines: 1, Duration: d},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp, allocs, allocBytes},
		},
		{
			name: "names", about: "64 goroutines of one process, each with a lock of its own",
			cell:   cell{Workload: "names", Processes: 1, Goroutines: 64, Duration: d},
			fickle: true,
			metric: perSecond, columns: usual,
		},
		{
			name: "affinity", about: fmt.Sprint("one goroutine locks and unlocks ", affine, " locks in turn that nobody else wants"),
			cell:   cell{Workload: "affinity", Processes: 1, Goroutines: 1, Duration: d},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp, allocs, allocBytes},
		},
		{
			name: "ping-pong", about: "two clients, which stand for two processes, lock and unlock one lock in turn",
			cell:   cell{Workload: "ping-pong", Processes: 1, Goroutines: 2, Duration: d},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp},
		},
		{
			name: "handoff", about: "from the unlock call of one client to the return of the other's blocked lock call",
			cell:   cell{Workload: "handoff", Processes: 1, Goroutines: 2, Duration: d},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp},
		},
		{
			name: "contended", about: "one lock, 4 processes with 25 goroutines each",
			cell:   cell{Workload: "contended", Processes: 4, Goroutines: 25, Duration: d},
			shared: true,
			metric: perSecond, columns: shared,
		},
		{
			name: "contended-1ms", about: "one lock, 4 processes with 25 goroutines each, and 1 ms more for each round trip",
			cell:   cell{Workload: "contended", Processes: 4, Goroutines: 25, RTT: time.Millisecond, Duration: d},
			shared: true,
			metric: perSecond, columns: shared,
		},
		{
			name: "contended-work", about: "one lock, 4 processes with 25 goroutines each, sections of 1 ms",
			cell:   cell{Workload: "contended", Processes: 4, Goroutines: 25, Section: time.Millisecond, Duration: long},
			shared: true,
			metric: perSecond, columns: shared,
		},
		{
			name: "local", about: "one lock, 100 goroutines of one process",
			cell:   cell{Workload: "local", Processes: 1, Goroutines: 100, Duration: d},
			shared: true,
			metric: perSecond, columns: shared,
		},
		{
			name: "herd", about: fmt.Sprint("one lock, ", herdWorkers*crowd, " clients with one goroutine each, which stand for as many processes"),
			cell:   cell{Workload: "herd", Processes: herdWorkers, Clients: crowd, Goroutines: 1, Duration: long},
			shared: true,
			metric: perSecond, columns: told,
		},
		{
			name: "asymmetric", about: "one lock, sections of 1 ms, 6 goroutines of a near process, 1 of a far one with 1 ms more for each round trip",
			cell:   cell{Workload: "asymmetric", Processes: 2, Goroutines: 6, Far: time.Millisecond, Section: time.Millisecond, Duration: long},
			shared: true,
			metric: farShare, columns: far,
		},
		{
			name: "asymmetric-4ms", about: "one lock, sections of 1 ms, 6 goroutines of a near process, 1 of a far one with 4 ms more for each round trip",
			cell:   cell{Workload: "asymmetric", Processes: 2, Goroutines: 6, Far: 4 * time.Millisecond, Section: time.Millisecond, Duration: long},
			shared: true,
			metric: farShare, columns: far,
		},
		{
			name: "waiters", about: fmt.Sprint(many, " goroutines of one process wait for a lock that another client holds, and then get it in turn"),
			cell:   cell{Workload: "waiters", Processes: 1, Goroutines: many, Duration: long},
			metric: drain, columns: []metric{sentPerSecond, heap, stack, goroutines},
		},
		{
			name: "holds", about: fmt.Sprint("one process holds ", many, " locks, which are renewed"),
			cell:   cell{Workload: "holds", Processes: 1, Goroutines: many, Duration: long},
			metric: cpu, columns: []metric{sentPerSecond, heap, stack, goroutines},
		},
		{
			name: "fair", about: "one fair lock, 4 processes with 25 goroutines each",
			cell:   cell{Workload: "fair", Processes: 4, Goroutines: 25, Duration: d},
			shared: true,
			metric: perSecond, columns: shared,
		},
		{
			name: "fair-herd", about: fmt.Sprint("one fair lock, ", herdWorkers*crowd, " clients with one goroutine each, which stand for as many processes"),
			cell:   cell{Workload: "fair-herd", Processes: herdWorkers, Clients: crowd, Goroutines: 1, Duration: long},
			shared: true,
			metric: perSecond, columns: shared,
		},
		{
			name: "fair-handoff", about: "the hand-off of a fair lock",
			cell:   cell{Workload: "fair-handoff", Processes: 1, Goroutines: 2, Duration: d},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp},
		},
		{
			name: "readers", about: "one read/write lock, 64 readers of one process",
			cell:   cell{Workload: "readers", Processes: 1, Goroutines: 64, Duration: d},
			fickle: true, shared: true,
			metric: perSecond, columns: append(shared, allocs, allocBytes),
		},
		{
			name: "mixed", about: "one read/write lock, 4 processes with 25 goroutines each, which read 95 times of 100, and else write",
			cell:   cell{Workload: "mixed", Processes: 4, Goroutines: 25, Duration: long},
			shared: true,
			metric: perSecond, columns: shared,
		},
		{
			name: "all-100", about: "one goroutine takes 100 locks of one slot together, and unlocks them",
			cell:   cell{Workload: "all-100", Processes: 1, Goroutines: 1, Duration: d},
			fickle: true,
			metric: perSecond, columns: usual,
		},
		{
			name: "nested", about: "three layers that lock the same name inside of each other, in one goroutine",
			cell:   cell{Workload: "nested", Processes: 1, Goroutines: 1, Duration: d},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp, allocs, allocBytes},
		},
		{
			name: "nested-1ms", about: "three layers that lock the same name inside of each other, and 1 ms more for each round trip",
			cell:   cell{Workload: "nested", Processes: 1, Goroutines: 1, RTT: time.Millisecond, Duration: d},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp, allocs, allocBytes},
		},
		{
			name: "semaphore", about: fmt.Sprint("a semaphore of ", permits, " permits, 4 processes with 25 goroutines each, which take one"),
			cell:   cell{Workload: "semaphore", Processes: 4, Goroutines: 25, Duration: d},
			shared: true,
			metric: perSecond, columns: told,
		},
		{
			name: "semaphore-herd", about: fmt.Sprint("a semaphore of ", permits, " permits, ", herdWorkers*crowd, " clients with one goroutine each, which stand for as many processes"),
			cell:   cell{Workload: "semaphore-herd", Processes: herdWorkers, Clients: crowd, Goroutines: 1, Duration: long},
			shared: true,
			metric: perSecond, columns: told,
		},
		{
			name: "permits", about: fmt.Sprint("a semaphore of ", permits, " permits that expire, 4 processes with 25 goroutines each, which take one"),
			cell:   cell{Workload: "permits", Processes: 4, Goroutines: 25, Duration: d},
			shared: true,
			metric: perSecond, columns: told,
		},
		{
			name: "permits-herd", about: fmt.Sprint("a semaphore of ", permits, " permits that expire, ", herdWorkers*crowd, " clients with one goroutine each, which stand for as many processes"),
			cell:   cell{Workload: "permits-herd", Processes: herdWorkers, Clients: crowd, Goroutines: 1, Duration: long},
			shared: true,
			metric: perSecond, columns: told,
		},
		{
			name: "latch", about: fmt.Sprint(many, " goroutines of one process wait for a latch, and another client counts it down"),
			cell:   cell{Workload: "latch", Processes: 1, Goroutines: many, Duration: long},
			metric: through, columns: opened,
		},
		{
			name: "latch-herd", about: fmt.Sprint(herdWorkers*crowd, " clients, which stand for as many processes, wait for a latch with one goroutine each, and another one counts it down"),
			cell:   cell{Workload: "latch-herd", Processes: herdWorkers, Clients: crowd, Goroutines: 1, Duration: long},
			metric: through, columns: opened,
		},
		{
			name: "handoff-long", about: "the hand-off to one that has been waiting for 200 ms",
			cell:  cell{Workload: "handoff", Processes: 1, Goroutines: 2, Section: 200 * time.Millisecond, Duration: long},
			asked: true, metric: p50, columns: []metric{p99, sentPerOp},
		},
		{
			name: "crash", about: fmt.Sprint(crashes, " holders, each a process of its own, are killed, with the lease of their library; until the next has the lock"),
			cell:  cell{Workload: "crash", Processes: 1, Goroutines: crashes, Duration: crashTimeout},
			asked: true, metric: nextIn, columns: []metric{nextLeast, nextMost, stuck},
		},
		{
			name: "crash-10s", about: fmt.Sprint(crashes, " holders, each a process of its own, are killed, with a lease of 10 s; until the next has the lock"),
			cell:  cell{Workload: "crash", Processes: 1, Goroutines: crashes, Lease: 10 * time.Second, Duration: crashTimeout},
			asked: true, metric: nextIn, columns: []metric{nextLeast, nextMost, stuck},
		},
	}
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
