package redistest_test

import (
	"fmt"
	"os"
	"os/signal"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// talks prints two lines, the second when it is asked to end, and exits with 3.
func talks() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt)
	_, _ = fmt.Fprintln(os.Stdout, os.Getenv("REDISTEST_ROLE"), "began")
	<-ended
	_, _ = fmt.Fprintln(os.Stdout, os.Getenv("REDISTEST_ROLE"), "ended")
	os.Exit(3)
}

// Processes of the test binary print, pause, go on, end and are killed.
func TestSelf(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.NewSelf(t)
	a := s.Start("REDISTEST_ROLE=a")
	s.Find("a began")
	b := s.Start("REDISTEST_ROLE=b")
	require.Equal(t, "b began", s.Line())
	a.Pause()
	a.Terminate()
	b.Terminate()
	require.Equal(t, 3, b.Wait())
	require.Equal(t, "b ended", s.Line())
	a.Resume()
	require.Equal(t, 3, a.Wait())
	c := s.Start("REDISTEST_ROLE=c")
	s.Find("c began")
	c.Kill()
	require.Equal(t, -1, c.Wait())
	require.Equal(t, 0, len(s.Rest(a, b, c)))
}
