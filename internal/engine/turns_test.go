package engine

import (
	"testing"

	"github.com/go-rlock/rlock/internal/require"
)

// I1: the right to make calls for a tenure passes to the waiting calls in order. However many wait, only the next is woken. A call that
// leaves delays no other, even if it leaves just when it gets the right.
func TestCallsTakeTurns(t *testing.T) {
	h := new(Tenure)
	ok, none := h.callSlot()
	require.True(t, ok)
	require.True(t, none == nil)
	var turns []*turn
	for range 6 {
		ok, turn := h.callSlot()
		require.False(t, ok)
		turns = append(turns, turn)
	}
	over := func() (n []int) {
		for i, turn := range turns {
			select {
			case <-turn.over:
				n = append(n, i)
			default:
			}
		}
		return n
	}
	require.Empty(t, over())
	h.releaseCallSlot()
	require.Equal(t, []int{0}, over())
	ok, none = h.takes(turns[0])
	require.True(t, ok && none == nil)
	h.leaves(turns[1])
	h.releaseCallSlot()
	require.Equal(t, []int{0, 2}, over())
	h.leaves(turns[2]) // although it has the right
	require.Equal(t, []int{0, 2, 3}, over())

	h.mu.Lock()
	h.wake() // as after a loss
	h.mu.Unlock()
	require.Equal(t, []int{0, 2, 3, 4, 5}, over())
	h.leaves(turns[4])
	ok, again := h.takes(turns[5])
	require.False(t, ok)
	h.releaseCallSlot() // by turn 3, which had the right all along
	ok, none = h.takes(again)
	require.True(t, ok && none == nil)
	h.releaseCallSlot()
	ok, _ = h.callSlot()
	require.True(t, ok, "nobody has it")
}
