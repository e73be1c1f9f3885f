package rlocktest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/conformance"
	"github.com/go-rlock/rlock/internal/testing/memnet"
	"github.com/go-rlock/rlock/internal/testing/memredis"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlocktest/internal/memory"
)

// On the in-memory server, locks of all kinds behave as on a real one. Each cell of the table has its own server and bubble.
func TestConformanceInMemory(t *testing.T) {
	conformance.Run(t, conformance.Deployment{
		Watchdog: 3 * time.Second,
		Soon:     time.Millisecond,
		Run: func(t *testing.T, cell func(*testing.T)) {
			redistest.Parallel(t)
			synctest.Test(t, cell)
		},
		Connect: func(t *testing.T, _ bool) (sides [2]rueidis.Client, cutOff func(bool)) {
			s, err := memory.New(memredis.Options{})
			require.NoError(t, err)
			t.Cleanup(s.Close)
			var ways [2]*memnet.Way
			for side := range sides {
				sides[side], ways[side], err = dial(s, currentBubble())
				require.NoError(t, err)
				t.Cleanup(ways[side].Kill)
				t.Cleanup(sides[side].Close)
			}
			return sides, func(cut bool) {
				if cut {
					ways[0].Silence()
				} else {
					ways[0].Heal()
				}
			}
		},
	})
}
