package redistest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
)

func TestEventually(t *testing.T) {
	t.Parallel()
	n := 0
	redistest.Eventually(t, soon, func() bool { n++; return n == 3 }, "third look")
	require.Equal(t, 3, n)
}

func TestCommands(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client(t)
	before := redistest.Commands(t, c)
	for range 3 {
		require.NoError(t, ping(t, c, soon))
		require.NoError(t, c.Do(t.Context(), c.B().ClientList().Build()).Error())
	}
	after := redistest.Commands(t, c)
	require.EqualValues(t, 3, after["ping"]-before["ping"])
	require.EqualValues(t, 3, after["client|list"]-before["client|list"])
	require.EqualValues(t, 1, after["info"]-before["info"])
}

func parked(stop chan struct{}) { <-stop }

func TestGoroutines(t *testing.T) {
	t.Parallel()
	const mine = "redistest_test.parked("
	stop := make(chan struct{})
	for range 3 {
		go parked(stop) // ended by the close below
	}
	redistest.Eventually(t, soon, func() bool { return redistest.Goroutines(mine) == 3 }, "three are seen")
	require.Equal(t, 3, redistest.Started(mine, "no such thing"))
	require.Zero(t, redistest.Started(mine, "created by"))
	others := make(chan int)
	go func() { others <- redistest.Started(mine, "no such thing") }()
	require.Zero(t, <-others)
	close(stop)
	redistest.Eventually(t, soon, func() bool { return redistest.Goroutines(mine) == 0 }, "all are gone")
	require.Zero(t, redistest.Goroutines("redistest_test.TestGoroutines("), "the test itself does not count")
}
