package faults

import (
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

func histOp(k histKind, owner string, count int, call, ret int64) histEntry {
	return histEntry{Kind: k, Name: "n", Owner: owner, Count: count, Call: call, Return: ret}
}

func histUnsure(e histEntry) histEntry {
	e.Unsure = true
	return e
}

func histToken(token int64, e histEntry) histEntry {
	e.Token = token
	return e
}

func histOn(name string, e histEntry) histEntry {
	e.Name = name
	return e
}

// The checker of histories knows good from bad (G1, G2, G5 to G8). The bad ones carry a bug each
// that a lock could have: a checker that can't fail proves nothing.
func TestHistoryCheckerVerdicts(t *testing.T) {
	op := histOp
	for _, c := range []struct {
		name string
		ok   bool
		h    []histEntry
	}{
		{"nothing happened", true, nil},
		{"one after the other", true, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histUnlock, "a", 0, 20, 30),
			op(histLock, "b", 1, 40, 50), op(histUnlock, "b", 0, 60, 70)}},
		{"waiter gets it while the unlock is under way", true, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLock, "b", 1, 5, 25),
			op(histUnlock, "a", 0, 20, 30), op(histUnlock, "b", 0, 40, 50)}},
		{"two names at once", true, []histEntry{
			op(histLock, "a", 1, 0, 10), histOn("m", op(histLock, "b", 1, 5, 8)),
			histOn("m", op(histUnlock, "b", 0, 9, 12)), op(histUnlock, "a", 0, 20, 30)}},
		{"two live owners", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLock, "b", 1, 15, 20),
			op(histUnlock, "a", 0, 30, 40), op(histUnlock, "b", 0, 50, 60)}},
		{"two live owners, acquired at once", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLock, "b", 1, 0, 10),
			op(histUnlock, "a", 0, 30, 40), op(histUnlock, "b", 0, 30, 40)}},
		{"two live owners that never unlock", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLock, "b", 1, 0, 10)}},

		{"re-entry, seen at each step", true, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLook, "a", 1, 11, 12), op(histLock, "a", 2, 13, 14),
			op(histLook, "a", 2, 15, 16), op(histUnlock, "a", 0, 17, 18), op(histLook, "a", 1, 19, 20),
			op(histUnlock, "a", 0, 21, 22), op(histLook, "", 0, 23, 24)}},
		{"double count: a repeated acquire counts twice", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLook, "a", 2, 11, 12), op(histUnlock, "a", 0, 20, 30)}},
		{"double release: an inner unlock counts twice", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLock, "a", 2, 11, 12), op(histUnlock, "a", 0, 13, 14),
			op(histLook, "", 0, 15, 16), op(histUnlock, "a", 0, 17, 18)}},
		{"inner unlock frees the lock for another", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLock, "a", 2, 11, 12), op(histUnlock, "a", 0, 13, 14),
			op(histLock, "b", 1, 15, 16), op(histUnlock, "a", 0, 17, 18), op(histUnlock, "b", 0, 20, 30)}},
		{"count jumps: a re-entry is two levels", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLock, "a", 3, 11, 12)}},
		{"count jumps in a command with unknown outcome", true, []histEntry{
			histUnsure(op(histLock, "a", 1, 0, 10)), histUnsure(op(histLook, "a", 2, 11, 12)),
			histUnsure(op(histUnlock, "a", 0, 20, 30))}},
		{"re-entry into a hold that is over", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histUnlock, "a", 0, 11, 12), op(histLock, "a", 2, 13, 14)}},

		{"hold seen after unlock: release is not visible", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histUnlock, "a", 0, 20, 30), op(histLook, "a", 1, 31, 32)}},
		{"unlock with unknown outcome: seen for a while", true, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histUnknown, "a", 0, 20, 30), op(histLook, "a", 1, 31, 32),
			op(histLook, "", 0, 40, 41), op(histLock, "b", 1, 50, 60), op(histUnlock, "b", 0, 61, 62)}},
		{"unlock with unknown outcome: next owner during it", true, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histUnknown, "a", 0, 20, 90), op(histLock, "b", 1, 25, 30),
			op(histUnlock, "b", 0, 35, 40)}},
		{"unlock with unknown outcome: next owner before it", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLock, "b", 1, 11, 15), op(histUnknown, "a", 0, 20, 90),
			op(histUnlock, "b", 0, 35, 40)}},
		{"unlock succeeds twice", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histUnlock, "a", 0, 20, 30), op(histUnlock, "a", 0, 31, 32)}},
		{"unlock by a stranger is accepted", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histUnlock, "b", 0, 11, 12), op(histUnlock, "a", 0, 20, 30)}},
		{"unlock by a stranger is refused, but releases", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histRefused, "b", 0, 11, 12), op(histLook, "", 0, 13, 14),
			op(histUnlock, "a", 0, 20, 30)}},
		{"unlock of a live hold is refused", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histRefused, "a", 0, 20, 30), op(histUnlock, "a", 0, 40, 50)}},
		{"unlock of a lost hold is refused", true, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLost, "a", 0, 100, 101), op(histRefused, "a", 0, 110, 120)}},
		{"lost during an inner unlock, which has run", true, []histEntry{
			histUnsure(op(histLock, "a", 1, 0, 10)), histUnsure(op(histLock, "a", 2, 11, 12)),
			histUnsure(op(histLook, "a", 1, 30, 31)), histUnsure(op(histLost, "a", 0, 100, 105)),
			histUnsure(op(histRefused, "a", 0, 20, 106))}},
		{"unlock of a lost hold is accepted", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLost, "a", 0, 100, 101), op(histUnlock, "a", 0, 110, 120)}},

		{"next owner after the loss", true, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLost, "a", 0, 100, 105), op(histLook, "a", 1, 106, 107),
			op(histLock, "b", 1, 50, 110), op(histUnlock, "b", 0, 120, 130)}},
		{"next owner when the trusted time has ended, told a little later", true, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLost, "a", 0, 100, 140), op(histLock, "b", 1, 50, 110),
			op(histUnlock, "b", 0, 120, 130)}},
		{"next owner within the trusted time of a hold that is lost later", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLock, "b", 1, 50, 60), op(histUnlock, "b", 0, 70, 80),
			op(histLost, "a", 0, 100, 105)}},
		{"lost hold comes back", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLost, "a", 0, 100, 105), op(histLock, "b", 1, 106, 110),
			op(histLook, "a", 1, 111, 112), op(histUnlock, "b", 0, 120, 130)}},
		{"hold outlives its trusted time", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histOver, "a", 0, 100, 100), op(histUnlock, "a", 0, 200, 210)}},
		{"hold gone from Redis within its trusted time", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLook, "", 0, 20, 21), op(histLost, "a", 0, 100, 105)}},
		{"lost twice", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLost, "a", 0, 100, 105), op(histLost, "a", 0, 110, 115)}},

		{"deleted, told, next owner meanwhile", true, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histDelete, "a", 1, 20, 21), op(histTold, "a", 0, 60, 60),
			op(histLock, "b", 1, 25, 30), op(histLost, "a", 0, 40, 40), op(histUnlock, "b", 0, 50, 51)}},
		{"deleted, but not told in time", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histDelete, "a", 1, 20, 21), op(histTold, "a", 0, 60, 60),
			op(histLock, "b", 1, 25, 30), op(histLost, "a", 0, 70, 70), op(histUnlock, "b", 0, 50, 51)}},
		{"deleted, and the unlock says that all is well", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histDelete, "a", 1, 20, 21), op(histUnlock, "a", 0, 40, 50)}},
		{"deleted, but nobody says so: two live owners", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLock, "b", 1, 25, 30), op(histLost, "a", 0, 40, 40),
			op(histUnlock, "b", 0, 50, 51)}},
		{"deleted and re-entered", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histDelete, "a", 1, 20, 21), op(histLock, "a", 2, 30, 31)}},

		{"fencing tokens rise, with gaps", true, []histEntry{
			histToken(1, op(histLock, "a", 1, 0, 10)), histToken(2, op(histLock, "a", 2, 11, 12)),
			op(histUnlock, "a", 0, 13, 14), op(histUnlock, "a", 0, 20, 30), histToken(5, op(histLock, "b", 1, 25, 50))}},
		{"next owner with the same token", false, []histEntry{
			histToken(1, op(histLock, "a", 1, 0, 10)), op(histUnlock, "a", 0, 20, 30),
			histToken(1, op(histLock, "b", 1, 40, 50))}},
		{"next owner with a lower token", false, []histEntry{
			histToken(4, op(histLock, "a", 1, 0, 10)), op(histLost, "a", 0, 20, 30),
			histToken(3, op(histLock, "b", 1, 25, 50))}},

		{"leftover of a cancelled Lock in a free lock", true, []histEntry{
			histUnsure(op(histLook, "x", 1, 0, 10)), op(histLook, "", 0, 20, 30), op(histLock, "a", 1, 40, 50)}},
		{"leftover of a cancelled Lock in a live hold", false, []histEntry{
			op(histLock, "a", 1, 0, 10), histUnsure(op(histLook, "x", 1, 20, 30)), op(histUnlock, "a", 0, 40, 50)}},
		{"somebody who never asked", false, []histEntry{op(histLook, "x", 1, 0, 10)}},
		{"two owners in the key", false, []histEntry{
			op(histLock, "a", 1, 0, 10), op(histLook, "a", -1, 20, 30), op(histUnlock, "a", 0, 40, 50)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := porcupine.Illegal
			if c.ok {
				want = porcupine.Ok
			}
			require.Equal(t, want, histCheck(c.h))
		})
	}
}
