//go:build !unix

package redistest

import (
	"testing"
	"time"
)

var began = time.Now()

// CPU has no counterpart here: it returns the time since the start, which a busy machine lengthens.
func CPU(testing.TB) time.Duration { return time.Since(began) }
