package faults

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// faultsSeed returns the seed of all randomness in a test: FAULTS_SEED, or 1. It logs the seed, so that the run
// can be replayed.
func faultsSeed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(1)
	if s := os.Getenv("FAULTS_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err, "FAULTS_SEED")
	}
	t.Logf("FAULTS_SEED=%d", seed)
	return seed
}

// faultsDuration is how long a test with random faults runs: FAULTS_DURATION, or usual.
func faultsDuration(t testing.TB, usual time.Duration) time.Duration {
	t.Helper()
	s := os.Getenv("FAULTS_DURATION")
	if s == "" {
		return usual
	}
	d, err := time.ParseDuration(s)
	require.NoError(t, err, "FAULTS_DURATION")
	return d
}
