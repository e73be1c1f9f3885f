package rlocktest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/conformance"
	"github.com/go-rlock/rlock/internal/redistest"
)

// On the in-memory server, locks of all kinds behave as on a real one. Each cell of the table has its own server and bubble.
func TestConformanceInMemory(t *testing.T) {
	conformance.Run(t, conformance.Deployment{
		Soon: time.Millisecond,
		Run: func(t *testing.T, cell func(*testing.T)) {
			redistest.Parallel(t)
			synctest.Test(t, cell)
		},
		Connect: func(t *testing.T, _ bool) (sides [2]rueidis.Client, cutOff func(bool)) {
			s, err := newServer()
			require.NoError(t, err)
			t.Cleanup(s.Close)
			var networks [2]*network
			for side := range sides {
				networks[side] = newNetwork()
				sides[side], err = dial(s, networks[side])
				require.NoError(t, err)
				t.Cleanup(networks[side].close)
				t.Cleanup(sides[side].Close)
			}
			return sides, func(cut bool) {
				if cut {
					networks[0].fail()
				} else {
					networks[0].restoreAll()
				}
			}
		},
	})
}
