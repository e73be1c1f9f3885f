package redistest_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
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
	redistest.Parallel(t)
	const mine = "redistest_test.parked("
	stop := make(chan struct{})
	for range 3 {
		go parked(stop) // ended by the close below
	}
	redistest.Eventually(t, soon, func() bool { return redistest.Goroutines(mine) == 3 }, "three are seen")
	require.Equal(t, 3, redistest.Started(mine, "no such thing"))
	require.Zero(t, redistest.Started(mine, "no such thing", "created by"))
	child, grandchild := make(chan int), make(chan int)
	go func() { // started by this test, which has started three
		child <- redistest.Started(mine)
		go func() { grandchild <- redistest.Started(mine) }()
	}()
	require.Equal(t, 3, <-child)
	require.Zero(t, <-grandchild)
	close(stop)
	redistest.Eventually(t, soon, func() bool { return redistest.Goroutines(mine) == 0 }, "all are gone")
	require.Zero(t, redistest.Goroutines("redistest_test.TestGoroutines("), "the test itself does not count")
}

func started(stop chan struct{}) { <-stop }

// TestGoroutinesBesideOtherTests: each test sees its own goroutines, even from another goroutine, and goroutines of unknown tests. A test
// that runs alone sees all.
func TestGoroutinesBesideOtherTests(t *testing.T) {
	const mine = "redistest_test.started("
	stop := make(chan struct{})
	time.AfterFunc(0, func() { started(stop) }) // ended by the close below
	t.Run("group", func(t *testing.T) {
		for n := range 3 {
			t.Run(strconv.Itoa(n), func(t *testing.T) {
				redistest.Parallel(t)
				for range n {
					go func() { // so that only its labels show its test
						go started(stop) // ended by the close below
					}()
				}
				seen := make(chan int)
				redistest.Eventually(t, soon, func() bool {
					go func() { seen <- redistest.Goroutines(mine) }()
					return <-seen == n+1
				}, "its own, and that of the timer")
			})
		}
	})
	require.Equal(t, 1+0+1+2, redistest.Goroutines(mine))
	close(stop)
	redistest.Eventually(t, soon, func() bool { return redistest.Goroutines(mine) == 0 }, "all are gone")
}
