package redistest_test

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

func TestSentinelReplacesADeadMaster(t *testing.T) {
	t.Parallel()
	s := redistest.StartWatchfulSentinel(t)
	require.Len(t, s.Nodes(), 3)
	require.Len(t, s.Sentinels(), 3)
	old := s.Master(t)
	require.Same(t, s.Nodes()[0], old)

	c := s.Client(t)
	require.NoError(t, c.Do(t.Context(), c.B().Set().Key("key").Value("v").Build()).Error())
	old.Kill()
	// Sentinels that notice a two-second stall do nothing for half a minute (TILT).
	redistest.Eventually(t, time.Minute, func() bool { return s.Master(t) != old }, "a replica is promoted")
	redistest.Eventually(t, time.Minute, func() bool {
		return c.Do(within(t, time.Second), c.B().Set().Key("key").Value("w").Build()).Error() == nil
	}, "the client follows")
}
