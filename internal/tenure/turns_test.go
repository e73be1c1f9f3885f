package tenure

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// I1: waiting calls get the right to call for a tenure in order, and each step wakes only the next. A call that leaves delays no other,
// even if it leaves just as it gets the right.
func TestCallsTakeTurns(t *testing.T) {
	h := new(Tenure)
	ok, none := h.CallSlot()
	require.True(t, ok)
	require.True(t, none == nil)
	var turns []*CallSlotTurn
	for range 6 {
		ok, turn := h.CallSlot()
		require.False(t, ok)
		turns = append(turns, turn)
	}
	over := func() (n []int) {
		for i, turn := range turns {
			select {
			case <-turn.Over:
				n = append(n, i)
			default:
			}
		}
		return n
	}
	require.Empty(t, over())
	h.ReleaseCallSlot()
	require.Equal(t, []int{0}, over())
	ok, none = h.TakeCallSlot(turns[0])
	require.True(t, ok && none == nil)
	h.LeaveCallSlot(turns[1])
	h.ReleaseCallSlot()
	require.Equal(t, []int{0, 2}, over())
	h.LeaveCallSlot(turns[2]) // while it has the right
	require.Equal(t, []int{0, 2, 3}, over())

	h.mu.Lock()
	h.wake() // as after a loss
	h.mu.Unlock()
	require.Equal(t, []int{0, 2, 3, 4, 5}, over())
	h.LeaveCallSlot(turns[4])
	ok, again := h.TakeCallSlot(turns[5])
	require.False(t, ok)
	h.ReleaseCallSlot() // by turn 3, which kept the right throughout
	ok, none = h.TakeCallSlot(again)
	require.True(t, ok && none == nil)
	h.ReleaseCallSlot()
	ok, _ = h.CallSlot()
	require.True(t, ok, "the right is free")
}

// A crowd leaves the queue for the right in any order, without walking it for each.
func TestTurnsInACrowd(t *testing.T) { // alone: it counts CPU time
	const n = 200_000
	h := new(Tenure)
	h.calling = true
	var turns []*CallSlotTurn
	for range n {
		_, turn := h.CallSlot()
		turns = append(turns, turn)
	}
	began := redistest.CPU(t)
	for i, turn := range turns {
		if i%1000 != 0 {
			h.LeaveCallSlot(turn)
		}
	}
	for i := 0; i < n; i += 1000 {
		h.ReleaseCallSlot()
		require.True(t, calls.IsClosed(turns[i].Over), "in order")
		ok, _ := h.TakeCallSlot(turns[i])
		require.True(t, ok)
	}
	h.ReleaseCallSlot()
	require.False(t, h.calling)
	require.Zero(t, len(h.callers.queue)+h.callers.gone)
	require.Less(t, redistest.CPU(t)-began, 10*time.Second)
}
