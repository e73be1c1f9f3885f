package faults

import (
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

func histOp(k histKind, owner string, call, ret int64) histEntry {
	return histEntry{Kind: k, Name: "n", Owner: owner, Call: call, Return: ret}
}

func histSeen(owner string, count int, call, ret int64) histEntry {
	e := histOp(histLook, owner, call, ret)
	e.Count = count
	return e
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

// histPassing is an unlock that sent nothing.
func histPassing(e histEntry) histEntry {
	e.Passes = true
	return e
}

// The checker tells valid histories from invalid ones (G1, G2, G5 to G8). Each invalid history shows a bug that a lock
// could have.
func TestHistoryCheckerVerdicts(t *testing.T) {
	op, look := histOp, histSeen
	for _, c := range []struct {
		name string
		ok   bool
		h    []histEntry
	}{
		{"nothing happened", true, nil},
		{"one after the other", true, []histEntry{
			op(histLock, "a", 0, 10), op(histUnlock, "a", 20, 30),
			op(histLock, "b", 40, 50), op(histUnlock, "b", 60, 70)}},
		{"waiter gets it while the unlock is under way", true, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "b", 5, 25),
			op(histUnlock, "a", 20, 30), op(histUnlock, "b", 40, 50)}},
		{"two names at once", true, []histEntry{
			op(histLock, "a", 0, 10), histOn("m", op(histLock, "b", 5, 8)),
			histOn("m", op(histUnlock, "b", 9, 12)), op(histUnlock, "a", 20, 30)}},
		{"two live owners", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "b", 15, 20),
			op(histUnlock, "a", 30, 40), op(histUnlock, "b", 50, 60)}},
		{"two live owners, acquired at once", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "b", 0, 10),
			op(histUnlock, "a", 30, 40), op(histUnlock, "b", 30, 40)}},
		{"two live owners that never unlock", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "b", 0, 10)}},

		{"re-entry, seen at each step", true, []histEntry{
			op(histLock, "a", 0, 10), look("a", 1, 11, 12), op(histReenter, "a", 13, 14),
			look("a", 2, 15, 16), op(histUnlock, "a", 17, 18), look("a", 1, 19, 20),
			op(histUnlock, "a", 21, 22), look("", 0, 23, 24)}},
		{"the count in Redis follows", true, []histEntry{
			op(histLock, "a", 0, 10), op(histReenter, "a", 13, 14), look("a", 1, 15, 16), look("a", 2, 17, 18),
			op(histUnlock, "a", 19, 20), look("a", 2, 21, 22), op(histUnlock, "a", 23, 24), look("", 0, 25, 26)}},
		{"double count: a repeated acquire counts twice", false, []histEntry{
			op(histLock, "a", 0, 10), look("a", 2, 11, 12), op(histUnlock, "a", 20, 30)}},
		{"double release: an inner unlock counts twice", false, []histEntry{
			op(histLock, "a", 0, 10), op(histReenter, "a", 11, 12), op(histUnlock, "a", 13, 14),
			look("", 0, 15, 16), op(histUnlock, "a", 17, 18)}},
		{"inner unlock frees the lock for another", false, []histEntry{
			op(histLock, "a", 0, 10), op(histReenter, "a", 11, 12), op(histUnlock, "a", 13, 14),
			op(histLock, "b", 15, 16), op(histUnlock, "a", 17, 18), op(histUnlock, "b", 20, 30)}},
		{"count jumps: a re-entry is two levels", false, []histEntry{
			op(histLock, "a", 0, 10), op(histReenter, "a", 11, 12), look("a", 3, 13, 14)}},
		{"count jumps in a command with unknown outcome", true, []histEntry{
			histUnsure(op(histLock, "a", 0, 10)), histUnsure(look("a", 2, 11, 12)),
			histUnsure(op(histUnlock, "a", 20, 30))}},
		{"re-entry into a hold that is over", false, []histEntry{
			op(histLock, "a", 0, 10), op(histUnlock, "a", 11, 12), op(histReenter, "a", 13, 14)}},
		{"re-entry into the hold of another", false, []histEntry{
			op(histLock, "a", 0, 10), op(histReenter, "b", 11, 12), op(histUnlock, "b", 13, 14), op(histUnlock, "a", 15, 16)}},

		{"goroutines of a section inside it together", true, []histEntry{
			op(histLock, "a", 0, 10), op(histReenter, "a", 11, 30), op(histReenter, "a", 12, 20), look("a", 3, 21, 22),
			op(histUnlock, "a", 23, 40), op(histUnlock, "a", 31, 35), look("a", 1, 41, 42), op(histUnlock, "a", 50, 60)}},
		{"the first level unlocked before those of its goroutines", true, []histEntry{
			op(histLock, "a", 0, 10), op(histReenter, "a", 11, 12), op(histUnlock, "a", 13, 14), look("a", 1, 15, 16),
			op(histReenter, "a", 14, 20), look("a", 2, 21, 22), op(histUnlock, "a", 23, 24), op(histUnlock, "a", 25, 26)}},
		{"the first level unlocked ends the hold under its goroutines", false, []histEntry{
			op(histLock, "a", 0, 10), op(histReenter, "a", 11, 12), op(histUnlock, "a", 13, 14),
			op(histLock, "b", 15, 16), op(histUnlock, "a", 17, 18), op(histUnlock, "b", 20, 30)}},
		{"goroutines of a section in another lock one after the other", true, []histEntry{
			histOn("m", op(histLock, "m", 0, 10)), op(histLock, "a", 11, 12), op(histLock, "b", 11, 25),
			op(histUnlock, "a", 20, 22), op(histUnlock, "b", 30, 32), histOn("m", op(histUnlock, "m", 40, 42))}},
		{"goroutines of a section in another lock together", false, []histEntry{
			histOn("m", op(histLock, "m", 0, 10)), op(histLock, "a", 11, 12), op(histLock, "b", 11, 25),
			op(histUnlock, "a", 30, 32), op(histUnlock, "b", 30, 32), histOn("m", op(histUnlock, "m", 40, 42))}},
		{"goroutines of a section in another lock together, as one owner", false, []histEntry{
			histOn("m", op(histLock, "m", 0, 10)), op(histLock, "a", 11, 12), op(histLock, "a", 11, 25),
			op(histUnlock, "a", 30, 32), op(histUnlock, "a", 30, 32), histOn("m", op(histUnlock, "m", 40, 42))}},

		{"hold seen after unlock: release is not visible", false, []histEntry{
			op(histLock, "a", 0, 10), op(histUnlock, "a", 20, 30), look("a", 1, 31, 32)}},
		{"unlock with unknown outcome: seen for a while", true, []histEntry{
			op(histLock, "a", 0, 10), op(histUnknown, "a", 20, 30), look("a", 1, 31, 32),
			look("", 0, 40, 41), op(histLock, "b", 50, 60), op(histUnlock, "b", 61, 62)}},
		{"unlock with unknown outcome: next owner meanwhile", true, []histEntry{
			op(histLock, "a", 0, 10), op(histUnknown, "a", 20, 90), op(histLock, "b", 25, 30),
			op(histUnlock, "b", 35, 40)}},
		{"unlock with unknown outcome: next owner before it", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "b", 11, 15), op(histUnknown, "a", 20, 90),
			op(histUnlock, "b", 35, 40)}},
		{"unlock succeeds twice", false, []histEntry{
			op(histLock, "a", 0, 10), op(histUnlock, "a", 20, 30), op(histUnlock, "a", 31, 32)}},
		{"unlock by a stranger is accepted", false, []histEntry{
			op(histLock, "a", 0, 10), op(histUnlock, "b", 11, 12), op(histUnlock, "a", 20, 30)}},
		{"unlock by a stranger is refused, but releases", false, []histEntry{
			op(histLock, "a", 0, 10), op(histRefused, "b", 11, 12), look("", 0, 13, 14),
			op(histUnlock, "a", 20, 30)}},
		{"unlock of a live hold is refused", false, []histEntry{
			op(histLock, "a", 0, 10), op(histRefused, "a", 20, 30), op(histUnlock, "a", 40, 50)}},
		{"unlock of a lost hold is refused", true, []histEntry{
			op(histLock, "a", 0, 10), op(histLost, "a", 100, 101), op(histRefused, "a", 110, 120)}},
		{"lost during an inner unlock that has run", true, []histEntry{
			histUnsure(op(histLock, "a", 0, 10)), histUnsure(op(histReenter, "a", 11, 12)),
			histUnsure(look("a", 1, 30, 31)), histUnsure(op(histLost, "a", 100, 105)),
			histUnsure(op(histRefused, "a", 20, 106))}},
		{"Lock under a lost hold is refused without a wait", true, []histEntry{
			op(histLock, "a", 0, 10), op(histLost, "a", 100, 101), op(histLock, "b", 102, 110),
			op(histRefused, "a", 111, 112), op(histRefused, "a", 115, 116), op(histUnlock, "b", 120, 130)}},
		{"Lock under a live hold reports a loss", false, []histEntry{
			op(histLock, "a", 0, 10), op(histRefused, "a", 20, 30), op(histUnlock, "a", 40, 50)}},
		{"Lock under a lost hold re-enters", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLost, "a", 100, 101), op(histReenter, "a", 110, 120)}},
		{"unlock of a lost hold is accepted", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLost, "a", 100, 101), op(histUnlock, "a", 110, 120)}},

		{"next owner after the loss", true, []histEntry{
			op(histLock, "a", 0, 10), op(histLost, "a", 100, 105), look("a", 1, 106, 107),
			op(histLock, "b", 50, 110), op(histUnlock, "b", 120, 130)}},
		{"next owner after the trusted time, loss reported a little later", true, []histEntry{
			op(histLock, "a", 0, 10), op(histLost, "a", 100, 140), op(histLock, "b", 50, 110),
			op(histUnlock, "b", 120, 130)}},
		{"next owner within the trusted time of a hold lost later", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "b", 50, 60), op(histUnlock, "b", 70, 80),
			op(histLost, "a", 100, 105)}},
		{"lost hold comes back", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLost, "a", 100, 105), op(histLock, "b", 106, 110),
			look("a", 1, 111, 112), op(histUnlock, "b", 120, 130)}},
		{"hold outlives its trusted time", false, []histEntry{
			op(histLock, "a", 0, 10), op(histOver, "a", 100, 100), op(histUnlock, "a", 200, 210)}},
		{"hold gone from Redis within its trusted time", false, []histEntry{
			op(histLock, "a", 0, 10), look("", 0, 20, 21), op(histLost, "a", 100, 105)}},
		{"lost twice", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLost, "a", 100, 105), op(histLost, "a", 110, 115)}},

		{"deleted, loss reported, next owner meanwhile", true, []histEntry{
			op(histLock, "a", 0, 10), op(histDelete, "a", 20, 21), op(histTold, "a", 60, 60),
			op(histLock, "b", 25, 30), op(histLost, "a", 40, 40), op(histUnlock, "b", 50, 51)}},
		{"deleted, loss reported too late", false, []histEntry{
			op(histLock, "a", 0, 10), op(histDelete, "a", 20, 21), op(histTold, "a", 60, 60),
			op(histLock, "b", 25, 30), op(histLost, "a", 70, 70), op(histUnlock, "b", 50, 51)}},
		{"deleted, and the unlock returns nil", false, []histEntry{
			op(histLock, "a", 0, 10), op(histDelete, "a", 20, 21), op(histUnlock, "a", 40, 50)}},
		{"deleted, passed on to a Lock that finds it lost", true, []histEntry{
			op(histLock, "a", 0, 10), op(histDelete, "a", 20, 21), histPassing(op(histUnlock, "a", 40, 50)), op(histTold, "a", 60, 60),
			op(histLock, "b", 25, 30), op(histUnlock, "b", 70, 71)}},
		{"deleted, passed on to a Lock that finds it lost, and held after that", false, []histEntry{
			op(histLock, "a", 0, 10), op(histDelete, "a", 20, 21), histPassing(op(histUnlock, "a", 40, 50)), op(histReenter, "a", 55, 56)}},
		{"two live owners, deletion not recorded", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "b", 25, 30), op(histLost, "a", 40, 40),
			op(histUnlock, "b", 50, 51)}},
		{"deleted, re-entered and unlocked inside, loss reported in time", true, []histEntry{
			op(histLock, "a", 0, 10), op(histDelete, "a", 20, 21), op(histLock, "b", 25, 26), op(histReenter, "a", 30, 31),
			op(histUnlock, "a", 32, 33), op(histLost, "a", 40, 41), op(histTold, "a", 60, 60), op(histUnlock, "b", 70, 71)}},
		{"deleted, loss reported, re-entered", false, []histEntry{
			op(histLock, "a", 0, 10), op(histDelete, "a", 20, 21), op(histLost, "a", 25, 26), op(histReenter, "a", 30, 31)}},
		{"deleted, re-entered, and both unlocks return nil", false, []histEntry{
			op(histLock, "a", 0, 10), op(histDelete, "a", 20, 21), op(histReenter, "a", 30, 31),
			op(histUnlock, "a", 32, 33), op(histUnlock, "a", 40, 41)}},

		{"fencing tokens rise, with gaps", true, []histEntry{
			histToken(1, op(histLock, "a", 0, 10)), histToken(1, op(histReenter, "a", 11, 12)),
			op(histUnlock, "a", 13, 14), op(histUnlock, "a", 20, 30), histToken(5, op(histLock, "b", 25, 50))}},
		{"re-entry with another token", false, []histEntry{
			histToken(1, op(histLock, "a", 0, 10)), histToken(2, op(histReenter, "a", 11, 12))}},
		{"next owner with the same token", false, []histEntry{
			histToken(1, op(histLock, "a", 0, 10)), op(histUnlock, "a", 20, 30),
			histToken(1, op(histLock, "b", 40, 50))}},
		{"next owner with a lower token", false, []histEntry{
			histToken(4, op(histLock, "a", 0, 10)), op(histLost, "a", 20, 30),
			histToken(3, op(histLock, "b", 25, 50))}},

		{"leftover of a cancelled Lock in a free lock", true, []histEntry{
			histUnsure(look("x", 1, 0, 10)), look("", 0, 20, 30), op(histLock, "a", 40, 50)}},
		{"leftover of a cancelled Lock in a live hold", false, []histEntry{
			op(histLock, "a", 0, 10), histUnsure(look("x", 1, 20, 30)), op(histUnlock, "a", 40, 50)}},
		{"an owner that never asked", false, []histEntry{look("x", 1, 0, 10)}},
		{"passed on", true, []histEntry{
			op(histLock, "a", 0, 10), op(histReenter, "a", 11, 12), look("a", 2, 13, 14), op(histUnlock, "a", 15, 16),
			histThen("a#2", op(histUnlock, "a", 20, 30)), op(histLock, "a#2", 5, 25), look("a", 2, 31, 32), look("a", 1, 33, 34),
			histThen("a#3", op(histUnlock, "a#2", 40, 50)), op(histLock, "a#3", 6, 60), op(histUnlock, "a#3", 70, 80), look("", 0, 81, 82)}},
		{"passed on to two at once", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "a#2", 5, 25), op(histUnlock, "a", 30, 40), op(histUnlock, "a#2", 50, 60)}},
		{"passed on, with another owner between", false, []histEntry{
			op(histLock, "a", 0, 10), histThen("a#2", op(histUnlock, "a", 11, 12)), op(histLock, "b", 13, 14), op(histLock, "a#2", 5, 15),
			op(histUnlock, "b", 16, 17)}},
		{"passed on after a DEL beside the next owner, loss reported", true, []histEntry{
			op(histLock, "a", 0, 10), histDel("a", 11, 12), op(histLock, "b", 13, 14),
			histThen("a#2", op(histUnlock, "a", 15, 16)), op(histLock, "a#2", 5, 17), op(histLost, "a#2", 18, 19), op(histTold, "a", 30, 30),
			op(histUnlock, "b", 40, 41)}},
		{"passed on after a DEL, loss not reported", false, []histEntry{
			op(histLock, "a", 0, 10), histDel("a", 11, 12),
			histThen("a#2", op(histUnlock, "a", 15, 16)), op(histLock, "a#2", 5, 17), op(histTold, "a", 30, 30)}},
		{"passed on after a DEL, and the last unlock returns nil", false, []histEntry{
			op(histLock, "a", 0, 10), histDel("a", 11, 12),
			histThen("a#2", op(histUnlock, "a", 15, 16)), op(histLock, "a#2", 5, 17), op(histUnlock, "a#2", 18, 19)}},
		{"exported and adopted", true, []histEntry{
			histToken(1, op(histLock, "a", 0, 10)), histOf("t", op(histExport, "a", 11, 12)), look("t", 1, 13, 14),
			histToken(2, histOf("t", op(histAdopt, "b", 15, 16))), look("b", 1, 17, 18), op(histUnlock, "b", 19, 20), look("", 0, 21, 22)}},
		{"another owner between an Export and its Adopt", false, []histEntry{
			op(histLock, "a", 0, 10), histOf("t", op(histExport, "a", 11, 12)), op(histLock, "c", 13, 14), op(histUnlock, "c", 15, 16),
			histOf("t", op(histAdopt, "b", 17, 18)), op(histUnlock, "b", 19, 20)}},
		{"a ticket with two adopters", false, []histEntry{
			op(histLock, "a", 0, 10), histOf("t", op(histExport, "a", 11, 12)), histOf("t", op(histAdopt, "b", 13, 14)), op(histUnlock, "b", 15, 16),
			histOf("t", op(histAdopt, "c", 17, 18)), op(histUnlock, "c", 19, 20)}},
		{"an Adopt with the same token", false, []histEntry{
			histToken(1, op(histLock, "a", 0, 10)), histOf("t", op(histExport, "a", 11, 12)), histToken(1, histOf("t", op(histAdopt, "b", 13, 14)))}},
		{"free between an Export and its Adopt", false, []histEntry{
			op(histLock, "a", 0, 10), histOf("t", op(histExport, "a", 11, 12)), look("", 0, 13, 14), histOf("t", op(histAdopt, "b", 15, 16))}},
		{"the exporting owner seen after its Export", false, []histEntry{
			op(histLock, "a", 0, 10), histOf("t", op(histExport, "a", 11, 12)), look("a", 1, 13, 14), histOf("t", op(histAdopt, "b", 15, 16))}},
		{"kept and reused", true, []histEntry{
			op(histLock, "a", 0, 10), histKept(histThen("a#2", op(histUnlock, "a", 11, 12))), look("a", 1, 13, 14),
			op(histLock, "a#2", 15, 16), op(histUnlock, "a#2", 17, 18), look("", 0, 19, 20)}},
		{"kept, given up, next owner", true, []histEntry{
			op(histLock, "a", 0, 10), histKept(op(histUnlock, "a", 11, 12)), look("a", 1, 13, 14), look("", 0, 15, 16), op(histLock, "b", 17, 18)}},
		{"kept without the option", false, []histEntry{
			op(histLock, "a", 0, 10), histThen("a#2", op(histUnlock, "a", 11, 12)), look("a", 1, 13, 14),
			op(histLock, "a#2", 15, 16), op(histUnlock, "a#2", 17, 18)}},
		{"kept beside another owner", false, []histEntry{
			op(histLock, "a", 0, 10), histKept(op(histUnlock, "a", 11, 12)), op(histLock, "b", 13, 14), look("a", 1, 15, 16)}},
		{"kept, and reused after another owner", false, []histEntry{
			op(histLock, "a", 0, 10), histKept(histThen("a#2", op(histUnlock, "a", 11, 12))), op(histLock, "b", 13, 14), op(histUnlock, "b", 15, 16),
			op(histLock, "a#2", 17, 18)}},
		{"kept, and reused beside another owner", false, []histEntry{
			op(histLock, "a", 0, 10), histKept(histThen("a#2", op(histUnlock, "a", 11, 12))), op(histLock, "b", 13, 14), op(histLock, "a#2", 15, 16)}},
		{"kept, deleted, reused, and the loss reported", true, []histEntry{
			op(histLock, "a", 0, 10), histKept(histThen("a#2", op(histUnlock, "a", 11, 12))), histDel("a", 13, 14), op(histLock, "b", 15, 16),
			op(histLock, "a#2", 17, 18), op(histLost, "a#2", 19, 20), op(histTold, "a", 21, 21), op(histUnlock, "b", 22, 23)}},
		{"kept, deleted, reused, and the loss reported too late", false, []histEntry{
			op(histLock, "a", 0, 10), histKept(histThen("a#2", op(histUnlock, "a", 11, 12))), histDel("a", 13, 14), op(histLock, "b", 15, 16),
			op(histLock, "a#2", 17, 18), op(histTold, "a", 21, 21), op(histLost, "a#2", 22, 23), op(histUnlock, "b", 24, 25)}},
		{"two owners in the key", false, []histEntry{
			op(histLock, "a", 0, 10), look("a", -1, 20, 30), op(histUnlock, "a", 40, 50)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := porcupine.Illegal
			if c.ok {
				want = porcupine.Ok
			}
			require.Equal(t, want, histCheck(histModel, c.h))
		})
	}
}

// histKept is an unlock that may leave the lock to its Client.
func histKept(e histEntry) histEntry {
	e.Keeps = true
	return e
}

// histOf is an Export or Adopt of the given ticket.
func histOf(ticket string, e histEntry) histEntry {
	e.Ticket = ticket
	return e
}

// histThen is an unlock that passed the owner on to another hold.
func histThen(next string, e histEntry) histEntry {
	e.Next = next
	return e
}

// histDel is a DEL that found the owner with one level.
func histDel(owner string, call, ret int64) histEntry {
	e := histOp(histDelete, owner, call, ret)
	e.Count = 1
	return e
}

// An owner is used for one tenure only (I3).
func TestHistoryCheckerSeesOwnersUsedTwice(t *testing.T) {
	once := []histEntry{
		histOp(histLock, "a", 0, 10), histOp(histReenter, "a", 11, 12), histOp(histUnlock, "a", 13, 14), histOp(histUnlock, "a", 15, 16),
		histOn("m", histOp(histLock, "b", 0, 10)), histOn("m", histOp(histUnlock, "b", 11, 12)),
	}
	require.Empty(t, histReused(once))
	require.Equal(t, "a", histReused(append(once, histOp(histLock, "a", 20, 30))), "again")
	require.Equal(t, "b", histReused(append(once, histOp(histLock, "b", 20, 30))), "for another lock")
	require.Equal(t, "b", histReused(append(once, histOp(histLock, "b#2", 20, 30))), "for another lock, as if passed on")
	passed := func(unlock int64) []histEntry {
		return histMerge(histReport{Entries: []histEntry{
			histOp(histLock, "a", 0, 10), histOp(histUnlock, "a", unlock, unlock+5), histOp(histLock, "a#2", 5, 30),
		}})
	}
	require.Empty(t, histReused(passed(20)))
	require.Equal(t, "a", histReused(passed(31)), "before the unlock was called")
}
