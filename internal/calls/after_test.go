package calls

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/require"
)

func TestAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m moments
		began := time.Now()
		closesIn := func(c <-chan struct{}) time.Duration {
			<-c
			return time.Since(began)
		}
		late := m.after(began.Add(3 * time.Second))
		require.True(t, late == m.after(began.Add(3*time.Second)), "it is shared")
		time.Sleep(grain)
		require.True(t, late == m.after(began.Add(3*time.Second+grain)), "shared with a timer that ends at the latest time the first may")
		early := m.after(began.Add(time.Second))
		require.False(t, early == late, "not shared with a much earlier timer")
		later := m.after(began.Add(3*time.Second + grain + 1))
		require.False(t, later == late, "not shared with a later timer")
		require.Equal(t, time.Second+grain, closesIn(early))
		require.Equal(t, 3*time.Second+grain, closesIn(late))
		require.Equal(t, 3*time.Second+2*grain+1, closesIn(later))
	})
}
