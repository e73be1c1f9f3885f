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
		early := m.after(began.Add(time.Second))
		require.False(t, early == late, "not shared with a much earlier one")
		for range 100 { // in turn
			require.True(t, late == m.after(began.Add(3*time.Second+grain-1)), "it is shared")
			require.True(t, early == m.after(began.Add(time.Second)), "so is the other")
		}
		require.Len(t, m.at, 2)
		later := m.after(began.Add(3*time.Second + grain))
		require.False(t, later == late, "not shared with a later one")
		require.Equal(t, time.Second+grain, closesIn(early))
		require.Equal(t, 3*time.Second+grain, closesIn(late))
		require.Equal(t, 3*time.Second+2*grain, closesIn(later))
		past := m.after(began)
		require.Equal(t, 3*time.Second+2*grain, closesIn(past), "at once")
		synctest.Wait()
		require.Empty(t, m.at)
	})
}
