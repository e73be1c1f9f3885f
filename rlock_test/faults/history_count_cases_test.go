package faults

import (
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

func countOp(kind countKind, n, got, call, ret int64) countEntry {
	return countEntry{Kind: kind, N: n, Got: got, Call: call, Return: ret}
}

func countFails(kind countKind, n, call int64) countEntry {
	return countEntry{Kind: kind, N: n, Outcome: countFailed, Call: call}
}

func countDies(kind countKind, n, call int64) countEntry {
	return countEntry{Kind: kind, N: n, Outcome: countKilled, Call: call}
}

type countCase struct {
	name string
	ok   bool
	h    []countEntry
}

func countVerdicts(t *testing.T, model porcupine.Model, cases []countCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want := porcupine.Illegal
			if c.ok {
				want = porcupine.Ok
			}
			require.Equal(t, want, countCheck(model, c.h))
		})
	}
}

// The checker tells valid histories of semaphores from invalid ones. G4 to G6.
func TestHistoryCheckerVerdictsSemaphore(t *testing.T) {
	op, fails, dies := countOp, countFails, countDies
	set := func(n int64) countEntry { return op(permSet, n, 1, 0, 1) }
	look := func(got, at int64) countEntry { return op(permLook, 0, got, at, at+1) }
	peace := func(at int64) countEntry { return op(countPeace, 0, 0, at, at) }
	countVerdicts(t, permModel, []countCase{
		{"taken and given back", true, []countEntry{
			look(0, -10), set(3), look(3, 5), op(permAcquire, 2, 0, 10, 20), look(1, 21), op(permAdd, 2, 0, 30, 40), look(3, 41)}},
		{"effect at any time during the call", true, []countEntry{
			set(3), op(permAcquire, 2, 0, 10, 40), look(3, 15), look(1, 20), op(permAdd, 2, 0, 50, 90), look(1, 55), look(3, 60)}},
		{"waits for a release", true, []countEntry{
			set(1), op(permAcquire, 1, 0, 10, 11), op(permAcquire, 1, 0, 12, 40), op(permAdd, 1, 0, 30, 50), look(0, 41)}},
		{"one permit with two holders", false, []countEntry{
			set(1), op(permAcquire, 1, 0, 10, 11), op(permAcquire, 1, 0, 12, 20), op(permAdd, 1, 0, 30, 50)}},
		{"more than there are", false, []countEntry{set(3), op(permAcquire, 2, 0, 10, 11), op(permAcquire, 2, 0, 12, 13)}},
		{"taken before it was set", false, []countEntry{op(permAcquire, 1, 0, -10, -5), set(3)}},
		{"one call takes twice", false, []countEntry{set(3), op(permAcquire, 1, 0, 10, 11), look(1, 12)}},
		{"a release counted twice", false, []countEntry{
			set(3), op(permAcquire, 1, 0, 10, 11), op(permAdd, 1, 0, 20, 21), look(4, 22)}},
		{"a release counted twice, and taken", false, []countEntry{
			set(1), op(permAcquire, 1, 0, 10, 11), op(permAdd, 1, 0, 20, 21), op(permAcquire, 1, 0, 22, 23), op(permAcquire, 1, 0, 24, 25)}},
		{"a permit lost", false, []countEntry{set(3), op(permAcquire, 1, 0, 10, 11), op(permAdd, 1, 0, 20, 21), look(2, 22)}},
		{"a permit that disappears", false, []countEntry{set(3), look(3, 10), look(2, 12)}},

		{"set once", true, []countEntry{set(3), op(permSet, 5, 0, 10, 11), look(3, 12)}},
		{"set twice", false, []countEntry{set(3), op(permSet, 5, 1, 10, 11)}},
		{"not set, though it did not exist", false, []countEntry{op(permSet, 5, 0, 10, 11)}},
		{"a release creates it", true, []countEntry{op(permAdd, 1, 0, 0, 1), op(permSet, 5, 0, 10, 11), look(1, 12)}},
		{"a set without an answer that runs late", true, []countEntry{fails(permSet, 3, 0), look(0, 10), look(3, 12), op(permSet, 5, 0, 14, 15)}},
		{"a set without an answer that changes a set semaphore", false, []countEntry{fails(permSet, 3, 0), op(permSet, 5, 1, 2, 3), look(3, 12)}},
		{"below 0", true, []countEntry{
			set(1), op(permAdd, -3, 0, 2, 3), look(-2, 4), op(permDrain, 0, 0, 6, 7), op(permAdd, 3, 0, 8, 9), op(permAcquire, 1, 0, 10, 11)}},
		{"taken below 0", false, []countEntry{set(1), op(permAdd, -3, 0, 2, 3), op(permAcquire, 1, 0, 10, 11)}},
		{"drained", true, []countEntry{
			set(3), op(permAcquire, 1, 0, 10, 11), op(permDrain, 0, 2, 12, 13), look(0, 14), op(permAdd, 3, 0, 20, 21), look(3, 22)}},
		{"drained beside an acquire, a permit twice", false, []countEntry{
			set(3), op(permAcquire, 1, 0, 10, 30), op(permDrain, 0, 3, 11, 29)}},
		{"too little drained", false, []countEntry{set(3), op(permDrain, 0, 2, 12, 13)}},

		{"a failed release that runs late", true, []countEntry{
			set(1), op(permAcquire, 1, 0, 10, 11), fails(permAdd, 1, 20), look(0, 100), op(permAcquire, 1, 0, 30, 120), peace(130), look(0, 131)}},
		{"a failed release that runs twice", false, []countEntry{
			set(2), op(permAcquire, 1, 0, 10, 11), fails(permAdd, 1, 20), look(2, 50), look(3, 60)}},
		{"a failed release that runs before its call", false, []countEntry{
			set(1), op(permAcquire, 1, 0, 10, 11), look(1, 15), fails(permAdd, 1, 20)}},
		{"a failed release that never runs", false, []countEntry{
			set(1), op(permAcquire, 1, 0, 10, 11), fails(permAdd, 1, 20), peace(130), look(0, 131)}},
		{"a failed release that runs after the peace", false, []countEntry{
			set(1), op(permAcquire, 1, 0, 10, 11), fails(permAdd, 1, 20), look(0, 100), peace(130), look(0, 131), look(1, 140)}},
		{"two failed releases, seen one by one", true, []countEntry{
			set(3), op(permAcquire, 3, 0, 10, 11), fails(permAdd, 1, 20), fails(permAdd, 2, 21), look(2, 30), look(3, 40), peace(50)}},
		{"a failed release of another number", false, []countEntry{
			set(3), op(permAcquire, 3, 0, 10, 11), fails(permAdd, 1, 20), fails(permAdd, 1, 21), look(3, 40)}},

		{"a failed acquire that had permits for a while", true, []countEntry{
			set(2), fails(permAcquire, 1, 10), look(1, 20), look(2, 30), look(1, 40), peace(50), look(2, 51)}},
		{"a failed acquire that had more than requested", false, []countEntry{set(2), fails(permAcquire, 1, 10), look(0, 20)}},
		{"a failed acquire whose permits are lost", false, []countEntry{
			set(2), fails(permAcquire, 1, 10), look(1, 20), peace(50), look(1, 51)}},
		{"a failed acquire that gives back permits it never had", false, []countEntry{
			set(2), fails(permAcquire, 1, 10), look(3, 20), peace(50)}},
		{"a drain that finds fewer beside a failed acquire", true, []countEntry{
			set(2), fails(permAcquire, 1, 10), op(permDrain, 0, 1, 20, 21), peace(50), look(1, 51)}},
		{"a failed drain", true, []countEntry{set(2), fails(permDrain, 0, 10), look(0, 20), peace(50), look(2, 51)}},
		{"a failed drain that keeps its permits", false, []countEntry{set(2), fails(permDrain, 0, 10), look(0, 20), peace(50), look(0, 51)}},

		{"killed in an acquire that ran", true, []countEntry{set(2), dies(permAcquire, 1, 10), look(1, 20), peace(50), look(1, 51)}},
		{"killed in an acquire that did not run", true, []countEntry{set(2), dies(permAcquire, 1, 10), peace(50), look(2, 51)}},
		{"killed in an acquire that ran twice", false, []countEntry{set(2), dies(permAcquire, 1, 10), peace(50), look(0, 51)}},
		{"killed in an acquire that runs after the peace", false, []countEntry{
			set(2), dies(permAcquire, 1, 10), peace(50), look(2, 51), look(1, 60)}},
		{"killed in a release that ran", true, []countEntry{
			set(2), op(permAcquire, 2, 0, 2, 3), dies(permAdd, 2, 10), peace(50), look(2, 51)}},
		{"killed in a release that did not run", true, []countEntry{
			set(2), op(permAcquire, 2, 0, 2, 3), dies(permAdd, 2, 10), peace(50), look(0, 51)}},
		{"killed in a release that ran in part", false, []countEntry{
			set(2), op(permAcquire, 2, 0, 2, 3), dies(permAdd, 2, 10), peace(50), look(1, 51)}},
	})
}

// The checker tells valid histories of latches from invalid ones. G4 to G6.
func TestHistoryCheckerVerdictsLatch(t *testing.T) {
	op, fails, dies := countOp, countFails, countDies
	set := func(n int64) countEntry { return op(latchSet, n, 1, 0, 1) }
	look := func(got, at int64) countEntry { return op(latchLook, 0, got, at, at+1) }
	down := func(at int64) countEntry { return op(latchDown, 0, 0, at, at+1) }
	peace := func(at int64) countEntry { return op(countPeace, 0, 0, at, at) }
	countVerdicts(t, latchModel, []countCase{
		{"counted down", true, []countEntry{
			look(0, -10), set(2), look(2, 5), op(latchAwait, 0, 0, 6, 60), down(10), look(1, 20), down(30), look(0, 40)}},
		{"open before it was set", true, []countEntry{op(latchAwait, 0, 0, -10, 5), set(2), look(2, 20)}},
		{"an await of a count that has been set anew", true, []countEntry{
			set(1), op(latchAwait, 0, 0, 5, 90), op(latchDown, 0, 0, 10, 15), op(latchSet, 3, 1, 12, 20), look(3, 21)}},
		{"an await that returns early", false, []countEntry{set(2), op(latchAwait, 0, 0, 6, 25), down(10), down(30)}},
		{"an await that returns without any countdown", false, []countEntry{set(2), op(latchAwait, 0, 0, 6, 25)}},
		{"an await that returns for an opening before its call", false, []countEntry{
			set(1), down(5), op(latchSet, 1, 1, 8, 9), op(latchAwait, 0, 0, 10, 20)}},
		{"a countdown counted twice", false, []countEntry{set(3), down(10), look(1, 20)}},
		{"a countdown counted twice, opening the latch", false, []countEntry{set(2), down(10), op(latchAwait, 0, 0, 20, 21)}},
		{"a countdown lost", false, []countEntry{set(2), down(10), look(2, 20)}},
		{"a countdown of an open latch", true, []countEntry{down(-5), set(2), look(2, 20)}},
		{"a countdown of an open latch that takes effect later", false, []countEntry{down(-5), set(2), look(1, 20)}},
		{"a count of 0", true, []countEntry{set(0), op(latchAwait, 0, 0, 5, 6), op(latchSet, 1, 0, 7, 8), down(10), op(latchSet, 1, 1, 12, 13)}},
		{"set twice", false, []countEntry{set(2), op(latchSet, 2, 1, 10, 11)}},
		{"not set, though it was open", false, []countEntry{op(latchSet, 2, 0, 10, 11)}},
		{"deleted", true, []countEntry{set(2), op(latchAwait, 0, 0, 5, 20), op(latchDelete, 0, 1, 10, 11), op(latchDelete, 0, 0, 12, 13), look(0, 14)}},
		{"deleted twice", false, []countEntry{set(2), op(latchDelete, 0, 1, 10, 11), op(latchDelete, 0, 1, 12, 13)}},
		{"deleted, and still there", false, []countEntry{set(2), op(latchDelete, 0, 1, 10, 11), look(2, 14)}},

		{"a failed countdown that runs late", true, []countEntry{set(2), fails(latchDown, 0, 10), look(2, 50), look(1, 60), peace(70)}},
		{"a failed countdown that opens the latch", true, []countEntry{
			set(1), fails(latchDown, 0, 10), op(latchAwait, 0, 0, 20, 90), look(1, 50), peace(100)}},
		{"a failed countdown that runs after the latch is set anew", true, []countEntry{
			set(1), fails(latchDown, 0, 5), down(10), op(latchSet, 2, 1, 20, 21), look(2, 30), look(1, 40), peace(50)}},
		{"a failed countdown that runs twice", false, []countEntry{set(3), fails(latchDown, 0, 10), look(2, 50), look(1, 60), peace(70)}},
		{"a failed countdown that never runs", false, []countEntry{set(2), fails(latchDown, 0, 10), peace(70), look(2, 80)}},
		{"a failed countdown that runs after the peace", false, []countEntry{
			set(2), fails(latchDown, 0, 10), look(2, 60), peace(70), look(2, 80), look(1, 90)}},
		{"a failed set that did not run", true, []countEntry{
			fails(latchSet, 2, 0), look(0, 20), op(latchAwait, 0, 0, 12, 30), peace(40), look(0, 41)}},
		{"a failed set that was undone", false, []countEntry{fails(latchSet, 2, 0), look(2, 10), op(latchSet, 1, 0, 15, 16), look(0, 20), peace(40)}},
		{"a failed set that is counted down", true, []countEntry{fails(latchSet, 2, 0), down(5), look(1, 10), down(15), look(0, 20), peace(40)}},
		{"a failed set that stays", true, []countEntry{fails(latchSet, 2, 0), look(2, 10), peace(40), look(2, 41)}},
		{"a failed set that deletes another call's count", false, []countEntry{
			fails(latchSet, 2, 0), op(latchSet, 1, 1, 15, 16), look(0, 20), peace(40)}},
		{"a failed delete that runs late", true, []countEntry{set(2), fails(latchDelete, 0, 10), look(2, 20), look(0, 30), peace(40)}},
		{"a failed delete that never runs", true, []countEntry{set(2), fails(latchDelete, 0, 10), peace(40), look(2, 41)}},
		{"a failed delete that runs twice", false, []countEntry{
			set(2), fails(latchDelete, 0, 10), look(0, 20), op(latchSet, 1, 1, 25, 26), look(0, 30), peace(40)}},

		{"killed in a countdown that ran", true, []countEntry{set(2), dies(latchDown, 0, 10), look(1, 20), peace(40), look(1, 41)}},
		{"killed in a countdown that did not run", true, []countEntry{set(2), dies(latchDown, 0, 10), peace(40), look(2, 41)}},
		{"killed in a countdown that ran twice", false, []countEntry{set(3), dies(latchDown, 0, 10), peace(40), look(1, 41)}},
		{"killed in a set that ran", true, []countEntry{dies(latchSet, 2, 10), peace(40), look(2, 41)}},
	})
}
