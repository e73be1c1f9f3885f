package main

import (
	"fmt"
	"strings"
)

// goBenchmark writes the samples in the format of Go's benchmarks, one line per round, for "benchstat -col /lib".
func (r *results) goBenchmark() string {
	var b strings.Builder
	m := &r.Machine
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\npkg: github.com/go-rlock/rlock/bench\ncpu: %s\n", m.GOOS, m.Arch, m.CPU)
	for i := range r.samples {
		s := &r.samples[i]
		if s.Error != "" || s.Ops == 0 {
			continue
		}
		fmt.Fprintf(&b, "BenchmarkLock/workload=%s/lib=%s-%d\t%d\t%.1f ns/op", s.title(), s.Lib, m.Cores, s.Ops, float64(s.ElapsedNs)/float64(s.Ops))
		if s.Latency.P99 > 0 {
			fmt.Fprintf(&b, "\t%d p50-ns\t%d p99-ns", s.Latency.P50, s.Latency.P99)
		}
		if s.Sent != uncounted {
			fmt.Fprintf(&b, "\t%.3f cmds/op", s.sentPerOp())
		}
		if s.AllocsPerOp > 0 {
			fmt.Fprintf(&b, "\t%.0f B/op\t%.1f allocs/op", s.BytesPerOp, s.AllocsPerOp)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
