package main

import "time"

// curve is a workload of which one size changes.
type curve struct {
	name     string // of its plot
	workload string
	about    string // what changes
	cell     cell
	values   []int
	set      func(c *cell, v int)
	libs     []string
	metrics  []metric
}

// curveLibs are rlock, its floor, and the peers that do best.
var curveLibs = []string{floorName, rlockName, "rueidislock-1", "bsm"}

func curves(o *options) []curve {
	tens := []int{1, 10, 100, 1000, 10000}
	goroutinesOf := func(c *cell, v int) { c.Goroutines = v }
	rtt := func(c *cell, v int) { c.RTT = time.Duration(v) * time.Millisecond }
	one := func(workload string, n int) cell {
		return cell{Workload: workload, Processes: 1, Goroutines: n, Duration: o.duration}
	}
	four := one("contended", 25)
	four.Processes = 4
	throughput := []metric{perSecond, p99}
	return []curve{
		{"names", "names", "names, each with a goroutine", one("names", 64), []int{1, 8, 64, 512, 4096}, goroutinesOf, curveLibs, throughput},
		{"local", "local", "goroutines of one process that share a lock", one("local", 100), tens, goroutinesOf, curveLibs, throughput},
		{"contended", "contended", "goroutines that share a lock, in 4 processes", four, []int{4, 100, 1000, 10000},
			func(c *cell, v int) { c.Goroutines = v / 4 }, curveLibs, throughput},
		{"pair-rtt", "pair", "added round trip time, ms", one("pair", 1), []int{0, 1, 10}, rtt, curveLibs, throughput},
		{"names-rtt", "names", "added round trip time, ms", one("names", 64), []int{0, 1, 10}, rtt, curveLibs, throughput},
		{"handoff-rtt", "handoff", "added round trip time, ms", one("handoff", 2), []int{0, 1, 10}, rtt, curveLibs, []metric{p50, p99}},
		{"contended-rtt", "contended", "added round trip time, ms", four, []int{0, 1, 10}, rtt, curveLibs, throughput},
	}
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
