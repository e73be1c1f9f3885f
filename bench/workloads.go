package main

import (
	"fmt"
	"slices"
	"time"
)

// herdWorkers is the number of worker processes in a herd of any size.
const herdWorkers = 4

// These are the columns of several workloads.
var (
	usual  = []metric{p50, p99, sentPerOp, allocs, allocBytes}
	shared = []metric{waitP99, longest, sentPerOp, slowest, starved, stuck}
	told   = []metric{waitP99, longest, sentPerOp, toldPerOp, slowest, starved, stuck}
	opened = []metric{slowestRound, sentPerOp, toldPerOp, stuck}
	far    = []metric{farWait, perSecond, sentPerOp, starved, stuck}
)

// workloads returns all workloads, in the order of the tables.
func workloads(o *options) []workload {
	return slices.Concat(aloneWorkloads(o), contendedWorkloads(o), manyWorkloads(o), kindWorkloads(o), counterWorkloads(o), slowWorkloads(o))
}

// longer is the duration of the workloads that need more time.
func (o *options) longer() time.Duration { return max(o.duration, o.long) }

// many is the number of waiting goroutines, or of held locks.
func (o *options) many() int {
	if o.quick {
		return 100
	}
	return 1000
}

// crowd is the number of Clients per process of a herd.
func (o *options) crowd() int {
	if o.quick {
		return 2
	}
	return 16
}

// aloneWorkloads have callers that do not compete, or only two in turn.
func aloneWorkloads(o *options) []workload {
	return []workload{
		{
			name: "pair", about: "one goroutine locks and unlocks a lock that nobody else wants",
			cell:   cell{Workload: "pair", Processes: 1, Goroutines: 1, Duration: o.duration},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp, allocs, allocBytes},
		},
		{
			name: "names", about: "64 goroutines of one process, each with a lock of its own",
			cell:   cell{Workload: "names", Processes: 1, Goroutines: 64, Duration: o.duration},
			fickle: true,
			metric: perSecond, columns: usual,
		},
		{
			name: "service", about: fmt.Sprintf("%d goroutines of one process serve requests: each locks one of %d orders under a ctx with a deadline, for 5 ms", servers, orders),
			cell:   cell{Workload: "service", Processes: 1, Goroutines: servers, Section: 5 * time.Millisecond, Duration: o.longer()},
			fickle: true,
			metric: p50, columns: []metric{p99, perSecond, sentPerOp, allocs, allocBytes},
		},
		{
			name: "affinity", about: fmt.Sprint("one goroutine locks and unlocks ", affine, " locks in turn that nobody else wants"),
			cell:   cell{Workload: "affinity", Processes: 1, Goroutines: 1, Duration: o.duration},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp, allocs, allocBytes},
		},
		{
			name: "ping-pong", about: "two clients, which stand for two processes, lock and unlock one lock in turn",
			cell:   cell{Workload: "ping-pong", Processes: 1, Goroutines: 2, Duration: o.duration},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp},
		},
		{
			name: "handoff", about: "from the unlock call of one client to the return of the other's blocked lock call",
			cell:   cell{Workload: "handoff", Processes: 1, Goroutines: 2, Duration: o.duration},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp},
		},
	}
}

// contendedWorkloads have many callers of one mutex.
func contendedWorkloads(o *options) []workload {
	long := o.longer()
	crowd := o.crowd()
	return []workload{
		{
			name: "contended", about: "one lock, 4 processes with 25 goroutines each",
			cell:   cell{Workload: "contended", Processes: 4, Goroutines: 25, Duration: o.duration},
			shared: true,
			metric: perSecond, columns: shared,
		},
		{
			name: "contended-1ms", about: "one lock, 4 processes with 25 goroutines each, and 1 ms more for each round trip",
			cell:   cell{Workload: "contended", Processes: 4, Goroutines: 25, RTT: time.Millisecond, Duration: o.duration},
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
			cell:   cell{Workload: "local", Processes: 1, Goroutines: 100, Duration: o.duration},
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
	}
}

// manyWorkloads have many waiters, or holds, in one process.
func manyWorkloads(o *options) []workload {
	long := o.longer()
	many := o.many()
	return []workload{
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
	}
}

// kindWorkloads cover other kinds of locks, several locks together, and re-entry.
func kindWorkloads(o *options) []workload {
	long := o.longer()
	crowd := o.crowd()
	return []workload{
		{
			name: "fair", about: "one fair lock, 4 processes with 25 goroutines each",
			cell:   cell{Workload: "fair", Processes: 4, Goroutines: 25, Duration: o.duration},
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
			cell:   cell{Workload: "fair-handoff", Processes: 1, Goroutines: 2, Duration: o.duration},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp},
		},
		{
			name: "readers", about: "one read/write lock, 64 readers of one process",
			cell:   cell{Workload: "readers", Processes: 1, Goroutines: 64, Duration: o.duration},
			fickle: true, shared: true,
			metric: perSecond, columns: slices.Concat(shared, []metric{allocs, allocBytes}),
		},
		{
			name: "mixed", about: "one read/write lock, 4 processes with 25 goroutines each, which read 95 times of 100, and else write",
			cell:   cell{Workload: "mixed", Processes: 4, Goroutines: 25, Duration: long},
			shared: true,
			metric: perSecond, columns: shared,
		},
		{
			name: "all-100", about: "one goroutine takes 100 locks of one slot together, and unlocks them",
			cell:   cell{Workload: "all-100", Processes: 1, Goroutines: 1, Duration: o.duration},
			fickle: true,
			metric: perSecond, columns: usual,
		},
		{
			name: "nested", about: "three layers that lock the same name inside of each other, in one goroutine",
			cell:   cell{Workload: "nested", Processes: 1, Goroutines: 1, Duration: o.duration},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp, allocs, allocBytes},
		},
		{
			name: "nested-1ms", about: "three layers that lock the same name inside of each other, and 1 ms more for each round trip",
			cell:   cell{Workload: "nested", Processes: 1, Goroutines: 1, RTT: time.Millisecond, Duration: o.duration},
			fickle: true,
			metric: p50, columns: []metric{p99, sentPerOp, allocs, allocBytes},
		},
	}
}

// counterWorkloads cover semaphores and latches.
func counterWorkloads(o *options) []workload {
	long := o.longer()
	many := o.many()
	crowd := o.crowd()
	return []workload{
		{
			name: "semaphore", about: fmt.Sprint("a semaphore of ", permits, " permits, 4 processes with 25 goroutines each, which take one"),
			cell:   cell{Workload: "semaphore", Processes: 4, Goroutines: 25, Duration: o.duration},
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
			cell:   cell{Workload: "permits", Processes: 4, Goroutines: 25, Duration: o.duration},
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
	}
}

// slowWorkloads are measured only if named.
func slowWorkloads(o *options) []workload {
	long := o.longer()
	return []workload{
		{
			name: "handoff-long", about: "the hand-off to one that has been waiting for 200 ms",
			cell:  cell{Workload: "handoff", Processes: 1, Goroutines: 2, Section: 200 * time.Millisecond, Duration: long},
			asked: true, metric: p50, columns: []metric{p99, sentPerOp},
		},
		manyHolds("holds-100k", 100_000),
		manyHolds("holds-1m", 1_000_000),
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

// manyHolds are held with rlock's default lease, for one renewal of each.
func manyHolds(name string, n int) workload {
	const lease = 30 * time.Second
	return workload{
		name: name, about: fmt.Sprintf("one process holds %d locks with a lease of %v, which are renewed", n, lease),
		cell:   cell{Workload: "holds", Processes: 1, Goroutines: n, Lease: lease, Duration: lease / 3},
		asked:  true,
		metric: cpu, columns: []metric{sentPerSecond, heap, stack, goroutines},
	}
}
