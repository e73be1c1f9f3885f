package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHistogramBucketsTile(t *testing.T) {
	next := uint64(0)
	for i := range bucket(math.MaxInt64) {
		from, to := bounds(i)
		require.Equal(t, next, from, "bucket %d begins where the one before it ends", i)
		require.Equal(t, i, bucket(from))
		require.Equal(t, i, bucket(to-1))
		next = to
	}
	require.Less(t, bucket(math.MaxInt64), len(new(histogram).buckets))
}

func TestHistogramQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var h histogram
	var all []float64
	for range 20000 {
		ns := math.Exp(5 + rng.Float64()*15) // 150 ns to 0.5 s
		all = append(all, ns)
		h.record(time.Duration(ns))
	}
	slices.Sort(all)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99} {
		assert.InEpsilon(t, all[int(q*float64(len(all)))], float64(h.quantile(q)), 0.02, "q=%v", q)
	}
	assert.Equal(t, time.Duration(all[len(all)-1]), time.Duration(h.latency().Max))
	assert.LessOrEqual(t, h.quantile(1), time.Duration(h.latency().Max))
}

func TestHistogramOfFew(t *testing.T) {
	var h histogram
	assert.Equal(t, latency{}, h.latency())
	h.record(-time.Second) // a clock that went back
	assert.Equal(t, latency{}, h.latency())
	h.record(1000)
	assert.EqualValues(t, 1000, h.latency().Max)
	assert.InEpsilon(t, 1000, float64(h.latency().P99), 0.02)
}

func TestHistogramAllocatesNothing(t *testing.T) {
	var h histogram
	assert.Zero(t, testing.AllocsPerRun(100, func() { h.record(time.Millisecond) }))
}
