package bubble_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// All bubbles share one P, and leave as many as there were.
func TestOneP(t *testing.T) {
	before := runtime.GOMAXPROCS(3)
	defer runtime.GOMAXPROCS(before)
	t.Run("group", func(t *testing.T) {
		for range 3 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				bubble.Test(t, func(t *testing.T) {
					began := time.Now()
					<-time.After(time.Hour)
					require.Equal(t, time.Hour, time.Since(began))
					require.Equal(t, 1, runtime.GOMAXPROCS(0))
				})
			})
		}
	})
	require.Equal(t, 3, runtime.GOMAXPROCS(0))
}
