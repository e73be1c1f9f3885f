package quorum

import (
	"testing"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// Whoever has passed the turn is no longer in line when the next has it: nobody would wait for a hold that is asked for.
func TestWhoPassesTheTurnIsOutOfLine(t *testing.T) {
	for range 10_000 {
		first := enterLine("key")
		first.turn <- struct{}{}
		next := enterLine("key")
		waited := make(chan bool)
		go func() { // ends with its turn
			next.turn <- struct{}{}
			waited <- next.isWaitedFor()
		}()
		first.pass()
		require.False(t, <-waited)
		next.pass()
	}
	require.Empty(t, lines.of)
}
