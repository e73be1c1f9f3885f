package main

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// Each power of two is divided into 2^subBits buckets: a resolution of 1.6 %.
	subBits = 6
	sub     = 1 << subBits
)

// histogram counts durations in fixed buckets: recording costs one atomic add and no allocation. It is safe for concurrent use.
type histogram struct {
	buckets [(64 - subBits) * sub]atomic.Uint64
	max     atomic.Int64 // nanoseconds
}

// bucket is linear below sub, logarithmic above.
func bucket(ns uint64) int {
	if ns < sub {
		return int(ns)
	}
	shift := bits.Len64(ns) - subBits - 1
	return (shift+1)*sub + int(ns>>shift) - sub
}

// bounds returns the smallest value of bucket i, and of the next.
func bounds(i int) (from, to uint64) {
	if i < sub {
		return uint64(i), uint64(i) + 1
	}
	shift := i/sub - 1
	from = uint64(sub+i%sub) << shift
	return from, from + 1<<shift
}

func (h *histogram) record(d time.Duration) {
	ns := max(d.Nanoseconds(), 0)
	h.buckets[bucket(uint64(ns))].Add(1)
	for {
		old := h.max.Load()
		if ns <= old || h.max.CompareAndSwap(old, ns) {
			return
		}
	}
}

// quantile returns the middle of the q-quantile's bucket, 0 for an empty histogram.
func (h *histogram) quantile(q float64) time.Duration {
	var n uint64
	for i := range h.buckets {
		n += h.buckets[i].Load()
	}
	if n == 0 {
		return 0
	}
	rank := min(uint64(q*float64(n)), n-1) // number of smaller values
	for i := range h.buckets {
		c := h.buckets[i].Load()
		if rank < c {
			from, to := bounds(i)
			return min(time.Duration(from+(to-from)/2), time.Duration(h.max.Load()))
		}
		rank -= c
	}
	return time.Duration(h.max.Load())
}

// latency summarizes a histogram, in nanoseconds.
type latency struct {
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
	Max int64 `json:"max"`
}

func (h *histogram) latency() latency {
	return latency{
		P50: h.quantile(0.50).Nanoseconds(),
		P99: h.quantile(0.99).Nanoseconds(),
		Max: h.max.Load(),
	}
}
