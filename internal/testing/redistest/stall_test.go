package redistest

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/require"
)

func TestStallsAreBlamed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s stallLog
		stop := make(chan struct{})
		go s.watch(stop)
		defer close(stop)
		began := time.Now()
		time.Sleep(10 * time.Second)
		require.Equal(t, "", s.blame(began), "timers in time")
		s.beats(time.Now().Add(-stalled+1), time.Now())
		require.Equal(t, "", s.blame(began), "a busy core")
		s.beats(time.Now().Add(-2*time.Second), time.Now())
		require.Equal(t, "the machine stood still for 2s of this time: ", s.blame(began))
		require.Equal(t, "", s.blame(time.Now()), "before it began")
	})
}
