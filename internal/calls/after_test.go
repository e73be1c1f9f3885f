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
		require.True(t, late == m.after(began.Add(3*time.Second+grain)), "also with one that ends as late as the first one may")
		early := m.after(began.Add(time.Second))
		require.False(t, early == late, "but not with one that ends much earlier")
		later := m.after(began.Add(3*time.Second + grain + 1))
		require.False(t, later == late, "nor with one that ends later")
		require.Equal(t, time.Second+grain, closesIn(early))
		require.Equal(t, 3*time.Second+grain, closesIn(late))
		require.Equal(t, 3*time.Second+2*grain+1, closesIn(later))
	})
}
