package rlocktest_test

import (
	"os"
	"runtime"
	"testing"
)

// These tests are written as users write theirs, with bubbles of testing/synctest, and run as README.md advises: on one P,
// because on several the race detector crashes Go now and then.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}
