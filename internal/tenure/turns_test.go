package tenure

import (
	"testing"
	"testing/synctest"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// I1: waiting calls get the right to call for a tenure in order, and each step wakes only the next. A call that leaves delays no other,
// even if it leaves just as it gets the right.
func TestCallsTakeTurns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(Tenure)
		ok, none := h.CallSlot()
		require.True(t, ok && none == nil)
		var got []int
		wait := func(n int) (leave func()) {
			ok, turn := h.CallSlot()
			require.False(t, ok)
			leaves := make(chan struct{})
			go func() {
				select {
				case <-leaves:
					h.LeaveCallSlot(turn)
				case _, given := <-turn:
					if given {
						got = append(got, n)
					} else {
						got = append(got, -n)
					}
				}
			}()
			synctest.Wait()
			return func() {
				close(leaves)
				synctest.Wait()
			}
		}
		passes := func() []int {
			h.ReleaseCallSlot()
			synctest.Wait()
			return got
		}
		wait(1)
		leave := wait(2)
		wait(3)
		require.Empty(t, got)
		require.Equal(t, []int{1}, passes())
		leave()
		require.Equal(t, []int{1, 3}, passes())

		_, turn := h.CallSlot()
		wait(4)
		h.mu.Lock()
		h.pass() // the token is for the first, which does not look, or for the other
		h.mu.Unlock()
		synctest.Wait()
		require.Equal(t, []int{1, 3, 4}, got)
		require.Equal(t, []int{1, 3, 4}, passes())
		h.LeaveCallSlot(turn) // with the right
		require.False(t, h.calling)

		ok, _ = h.CallSlot()
		require.True(t, ok)
		wait(5)
		_, turn = h.CallSlot()
		h.mu.Lock()
		h.wake() // as after a loss
		h.mu.Unlock()
		synctest.Wait()
		require.Equal(t, []int{1, 3, 4, -5}, got)
		h.LeaveCallSlot(turn)
		require.True(t, h.calling, "the right was never passed on")
		wait(6)
		require.Equal(t, []int{1, 3, 4, -5, 6}, passes())
		h.ReleaseCallSlot()
		require.False(t, h.calling)
	})
}

// A loss does not end the right of a call that has just got it: if that leaves, the right goes on.
func TestTurnAndLoss(t *testing.T) {
	h := new(Tenure)
	h.calling = true
	_, turn := h.CallSlot()
	h.ReleaseCallSlot()
	h.mu.Lock()
	h.wake()
	h.mu.Unlock()
	require.True(t, h.calling)
	h.LeaveCallSlot(turn)
	require.False(t, h.calling)
}
