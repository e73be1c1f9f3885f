package pubsub

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/require"
)

// Without listeners out of line, courtesies become seldom, whatever the locks: they cost 10 ms in 8 s at most.
func TestPresence(t *testing.T) {
	var p presence
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var due []time.Duration
	for d := time.Duration(0); d < 30*time.Second; d += again {
		if p.isLikely(now.Add(d)) {
			due = append(due, d/again)
		}
	}
	require.Equal(t, []time.Duration{0, 1, 3, 7, 15, 31, 63, 95}, due)

	now = now.Add(30 * time.Second)
	p.seen(now)
	require.True(t, p.isLikely(now))
	require.True(t, p.isLikely(now.Add(stays-1)), "as long as they are likely to be there, at each unlock")
	now = now.Add(stays)
	require.True(t, p.isLikely(now), "begins anew")
	require.False(t, p.isLikely(now.Add(again-1)))
	require.True(t, p.isLikely(now.Add(again)))
}
