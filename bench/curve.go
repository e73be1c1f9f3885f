package main

import (
	"slices"
	"time"
)

// curve is a workload with one varying size.
type curve struct {
	name     string // of its plots
	workload string // the name on the command line
	axis     string // the varying size
	cell     cell
	values   []int
	set      func(c *cell, v int)
	libs     []string
	metrics  []metric
}

// curveLibs are rlock, its floor, and the best peers: one that is woken, one that polls.
var curveLibs = []string{floorName, rlockName, tunedName, "bsm"}

// holderLibs are the libraries that renew a hold.
var holderLibs = []string{rlockName, tunedName}

// herdLibs are its floor, and the best library for each way to wait.
var herdLibs = []string{herdFloorName, rlockName, "rueidislock-1", "redsync", "redsync-rueidis", "bsm", redissonName}

// fairLibs and readLibs are the libraries with such locks.
var (
	fairLibs = []string{rlockName, redissonName}
	readLibs = []string{floorName, rlockName, redissonName}
)

// peersUpTo is where the peers' curves end: with 10,000 goroutines for one lock, or 100,000 holds, some take minutes to finish after the
// window, or never do.
const peersUpTo = 1000

// curves are all curves. Their windows are shorter, because there are many.
func curves(o *options) []curve {
	tens := []int{1, 10, 100, 1000, 10000}
	rtts := []int{0, 1, 10}
	goroutinesOf := func(c *cell, v int) { c.Goroutines = v }
	rtt := func(c *cell, v int) { c.RTT = time.Duration(v) * time.Millisecond }
	const added = "added round trip time, ms"
	one := func(workload string, n int) cell {
		return cell{Workload: workload, Processes: 1, Goroutines: n, Duration: o.duration / 2}
	}
	four := one("contended", 25)
	four.Processes = 4
	fairFour := four
	fairFour.Workload = "fair"
	herd := cell{Workload: "herd", Processes: herdWorkers, Goroutines: 1, Duration: o.long}
	fairHerd := herd
	fairHerd.Workload = "fair-herd"
	semaphoreHerd, latchHerd := herd, herd
	semaphoreHerd.Workload, latchHerd.Workload = "semaphore-herd", "latch-herd"
	waiting, holding, beside := one("waiters", 1), one("holds", 1), one("pair", 1)
	waiting.Duration, holding.Duration = o.long/2, o.long
	beside.Duration = max(beside.Duration, holdsLease/3) // to include renewals
	speed := []metric{perSecond, p99}
	split := func(c *cell, v int) { c.Goroutines = v / c.Processes }
	crowd := func(c *cell, v int) { c.Clients = v / c.Processes }
	turns := []metric{perSecond, sentPerOp, waitP99, slowest, starved}
	told := append(slices.Clone(turns), toldPerOp)
	return []curve{
		{
			"names", "names", "names, each with a goroutine", one("names", 64),
			[]int{1, 8, 64, 512, 4096},
			goroutinesOf,
			append([]string{"floor-scripts"}, curveLibs...),
			append(speed, opCPU, stack),
		},
		{
			"local", "local", "goroutines of one process that share a lock", one("local", 100),
			[]int{1, 2, 10, 100, 1000, 10000},
			goroutinesOf, curveLibs, speed,
		},
		{
			"contended", "contended", "goroutines of 4 processes that share a lock", four,
			[]int{4, 100, 1000, 10000},
			split, curveLibs, speed,
		},
		{
			"herd", "herd", "processes with a goroutine each that share a lock", herd,
			[]int{4, 16, 64, 256},
			crowd, herdLibs, told,
		},
		{"pair-rtt", "pair", added, one("pair", 1), rtts, rtt, curveLibs, []metric{p50, p99}},
		{"names-rtt", "names", added, one("names", 64), rtts, rtt, curveLibs, speed},
		{"handoff-rtt", "handoff", added, one("handoff", 2), rtts, rtt, curveLibs, []metric{p50, p99}},
		{"contended-rtt", "contended", added, four, rtts, rtt, curveLibs, speed},
		{
			"waiters", "waiters", "waiters", waiting, tens, goroutinesOf,
			holderLibs,
			[]metric{drain, sentPerSecond, heap},
		},
		{"holds", "holds", "holds", holding, append(tens, 100000), goroutinesOf, holderLibs, []metric{cpu, sentPerSecond, heap}},
		{
			"pair-holds", "pair", "holds kept meanwhile", beside,
			append(tens, 100000),
			func(c *cell, v int) { c.Holds = v },
			holderLibs,
			[]metric{p50, p99},
		},
		{
			"fair", "fair", "goroutines of 4 processes that share a fair lock", fairFour,
			[]int{4, 100, 1000},
			split, fairLibs, turns,
		},
		{
			"fair-herd", "fair-herd", "processes with a goroutine each that share a fair lock", fairHerd,
			[]int{4, 16, 64},
			crowd, append([]string{herdFloorName}, fairLibs...), turns,
		},
		{
			"semaphore-herd", "semaphore-herd", "processes with a goroutine each that share a semaphore", semaphoreHerd,
			[]int{4, 16, 64},
			crowd, append([]string{herdFloorName}, fairLibs...), told,
		},
		{
			"latch-herd", "latch-herd", "processes with a goroutine each that wait for a latch", latchHerd,
			[]int{4, 16, 64},
			crowd, fairLibs,
			[]metric{through, sentPerOp, toldPerOp},
		},
		{
			"readers", "readers", "readers of one process that share a lock", one("readers", 64),
			[]int{1, 8, 64, 512},
			goroutinesOf, readLibs,
			append(speed, sentPerOp, opCPU),
		},
	}
}

// libsAt returns the libraries measured at a point.
func (c *curve) libsAt(point cell) []string {
	if max(point.goroutines(), point.Holds) <= peersUpTo {
		return c.libs
	}
	return slices.DeleteFunc(slices.Clone(c.libs), func(name string) bool {
		lib, err := findLibrary(name)
		return err == nil && lib.peer()
	})
}

// cells returns the points of the curve, without libraries.
func (c *curve) cells() []cell {
	all := make([]cell, len(c.values))
	for i, v := range c.values {
		all[i] = c.cell
		c.set(&all[i], v)
	}
	return all
}
