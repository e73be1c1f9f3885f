package faults

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// leasedCall is a call about the permits with the given ids, one letter each.
func leasedCall(kind countKind, ids string, got, call, ret int64) countEntry {
	e := countEntry{Kind: kind, Got: got, Call: call, Return: ret}
	for i, id := range ids {
		if i > 0 {
			e.IDs += " "
		}
		e.IDs += string(id)
		e.N++
	}
	return e
}

// The checker tells valid histories of expiring permits from invalid ones. G1, G2, G4 to G6.
func TestHistoryCheckerVerdictsPermits(t *testing.T) {
	op, fails, dies, call := countOp, countFails, countDies, leasedCall
	set := func(n int64) countEntry { return op(leasedSet, n, 1, 0, 1) }
	look := func(ids string, free, at int64) countEntry { return call(leasedLook, ids, free, at, at+1) }
	peace := func(at int64) countEntry { return op(countPeace, 0, 0, at, at) }
	// take is a take from at to at+1. Its holder was last inside at last.
	take := func(ids, slots string, at, last int64) countEntry {
		e := call(leasedTake, ids, 0, at, at+1)
		e.Slots, e.Last = slots, last
		return e
	}
	give := func(ids string, at int64) countEntry { return call(leasedGive, ids, 1, at, at+1) }
	lost := func(ids string, at int64) countEntry { return call(leasedGive, ids, 0, at, at+1) }
	away := func(id string, got, at int64) countEntry { return call(leasedAway, id, got, at, at+1) }
	as := func(outcome countOutcome, e countEntry) countEntry {
		e.Outcome, e.Return = outcome, 0
		return e
	}
	lasts := func(d int64, e countEntry) countEntry {
		e.Lease = time.Duration(d)
		return e
	}
	const told = 100
	slack := int64(leasedSlack)
	for _, c := range []countCase{
		{"taken and given back", true, []countEntry{
			look("", 0, -10), set(3), take("ab", "0 1", 10, 15), look("ab", 1, 20), give("ab", 30), look("", 3, 40), peace(50)}},
		{"effect at any time during the call", true, []countEntry{
			set(1), call(leasedTake, "a", 0, 10, 40), look("", 1, 15), look("a", 0, 20), call(leasedGive, "a", 1, 50, 90), look("a", 0, 55), look("", 1, 60)}},
		{"waits for a release", true, []countEntry{
			set(1), take("a", "0", 10, 25), func() countEntry { e := take("b", "0", 12, 60); e.Return = 45; return e }(), give("a", 30), give("b", 70), peace(80)}},
		{"one permit with two holders", false, []countEntry{set(1), take("a", "0", 10, 25), take("b", "0", 12, 60), give("a", 30), give("b", 70)}},
		{"more than there are", false, []countEntry{set(3), take("ab", "0 1", 10, 25), take("cd", "1 2", 12, 60)}},
		{"taken before the number was set", false, []countEntry{take("a", "0", -10, -5), set(3)}},
		{"fewer than requested", false, []countEntry{set(3), func() countEntry { e := take("a", "0", 10, 25); e.N = 2; return e }()}},
		{"an id used twice", false, []countEntry{set(3), take("a", "0", 10, 15), give("a", 20), take("a", "0", 30, 35), give("a", 40)}},

		{"a number shared by two permits", false, []countEntry{set(3), take("a", "1", 10, 25), take("b", "1", 12, 60), give("a", 30), give("b", 70)}},
		{"a number twice in one take", false, []countEntry{set(3), take("ab", "1 1", 10, 25)}},
		{"a number out of range", false, []countEntry{set(3), take("a", "3", 10, 25)}},
		{"a number reused after its release", true, []countEntry{set(3), take("a", "1", 10, 25), give("a", 30), take("b", "1", 32, 60)}},
		{"a number out of range only later", true, []countEntry{set(3), take("a", "2", 10, 55), op(leasedSet, 1, 0, 20, 21), look("a", 0, 30), give("a", 60)}},

		{"a permit lost", false, []countEntry{set(3), take("a", "0", 10, 15), give("a", 20), look("", 2, 30)}},
		{"a permit too many", false, []countEntry{set(3), take("a", "0", 10, 15), give("a", 20), look("", 4, 30)}},
		{"a released permit that stays", false, []countEntry{set(3), take("a", "0", 10, 15), give("a", 20), look("a", 2, 30)}},
		{"given back twice", false, []countEntry{set(3), take("a", "0", 10, 15), away("a", 1, 20), give("a", 30)}},
		{"a permit that nobody took", false, []countEntry{set(3), look("x", 2, 30)}},
		{"a permit held at the peace", false, []countEntry{set(3), take("a", "0", 10, 15), func() countEntry { e := give("a", 20); e.Call, e.Return = 60, 70; return e }(), peace(50)}},

		{"a lease that ends", true, []countEntry{
			set(1), lasts(20, take("a", "0", 10, 30)), look("a", 0, 20), look("", 1, 40), take("b", "0", 50, 55), lost("a", 60), give("b", 70)}},
		{"a lease that ends too early", false, []countEntry{set(1), lasts(20, take("a", "0", 10, 30)), take("b", "0", 20, 25), give("b", 60), lost("a", 70)}},
		{"a lease seen to end too early", false, []countEntry{set(1), lasts(20, take("a", "0", 10, 30)), look("", 1, 20), lost("a", 70)}},
		{"a lease that does not end", false, []countEntry{set(1), lasts(20, take("a", "0", 10, 30)), look("a", 0, 40+slack), lost("a", 80+slack)}},
		{"a holder that goes on after its lease", false, []countEntry{set(1), lasts(20, take("a", "0", 10, 90+slack)), lost("a", 100+slack)}},
		{"a permit that is not renewed", true, []countEntry{set(1), take("a", "0", 10, 30), look("a", 0, 90), look("", 1, 95), lost("a", 99), peace(100)}},
		{"a permit that ends under its holder", false, []countEntry{set(1), take("a", "0", 10, 30), look("", 1, 25), lost("a", 99), peace(100)}},
		{"two permits that end one after the other", true, []countEntry{set(2), take("ab", "0 1", 10, 30), look("b", 1, 40), look("", 2, 50), lost("ab", 60)}},

		{"given back by its id", true, []countEntry{set(1), take("a", "0", 10, 25), away("a", 1, 20), take("b", "0", 30, 40), away("a", 0, 41), lost("a", 50), give("b", 60)}},
		{"given back by its id, loss not reported", false, []countEntry{set(1), take("a", "0", 10, 25+told), away("a", 1, 20), lost("a", 50+told)}},
		{"given back by its id without an effect", false, []countEntry{set(1), take("a", "0", 10, 25), away("a", 1, 20), look("a", 0, 30), lost("a", 50)}},
		{"refused by its id, though it is held", false, []countEntry{set(1), take("a", "0", 10, 25), away("a", 0, 20), give("a", 50)}},
		{"given back by its id, without an answer", true, []countEntry{
			set(1), take("a", "0", 10, 25), as(countFailed, away("a", 0, 20)), look("a", 0, 22), look("", 1, 24), lost("a", 50), peace(60)}},
		{"another lease", true, []countEntry{
			set(1), take("a", "0", 10, 25), lasts(10, call(leasedLease, "a", 1, 12, 13)), look("a", 0, 20), look("", 1, 24), lost("a", 50), peace(60)}},
		{"another lease that ends too early", false, []countEntry{
			set(1), take("a", "0", 10, 40), lasts(20, call(leasedLease, "a", 1, 12, 13)), look("", 1, 24), lost("a", 50), peace(60)}},
		{"a longer lease", true, []countEntry{
			set(1), lasts(20, take("a", "0", 10, 30)), lasts(500, call(leasedLease, "a", 1, 12, 13)), look("a", 0, 90+slack), lost("a", 100+slack), look("", 1, 110+slack)}},
		{"another lease for a released permit", false, []countEntry{set(1), take("a", "0", 10, 15), give("a", 20), lasts(20, call(leasedLease, "a", 1, 30, 31))}},

		{"a failed take that had permits for a while", true, []countEntry{set(2), fails(leasedTake, 1, 10), look("x", 1, 20), look("", 2, 30), peace(40), look("", 2, 50)}},
		{"a failed take that keeps a permit", false, []countEntry{set(2), fails(leasedTake, 1, 10), look("x", 1, 20), peace(40), look("x", 1, 50)}},
		{"a failed take that had more than requested", false, []countEntry{set(2), fails(leasedTake, 1, 10), look("xy", 0, 20), peace(40)}},
		{"a failed take whose permit is missing", false, []countEntry{set(2), fails(leasedTake, 1, 10), look("", 1, 20), peace(40)}},
		{"a failed release that runs late", true, []countEntry{set(1), take("a", "0", 10, 15), as(countFailed, give("a", 20)), look("a", 0, 30), look("", 1, 40), peace(50)}},
		{"a failed release that runs twice", false, []countEntry{set(1), take("a", "0", 10, 15), as(countFailed, give("a", 20)), look("", 1, 30), look("", 2, 40)}},
		{"a failed change of the number, once", true, []countEntry{set(2), fails(permAdd, 1, 10), look("", 2, 20), look("", 3, 30), peace(40)}},
		{"a failed change of the number, twice", false, []countEntry{set(2), fails(permAdd, 1, 10), look("", 4, 30)}},
		{"a failed change of the number, never", false, []countEntry{set(2), fails(permAdd, 1, 10), peace(40), look("", 2, 50)}},
		{"a failed SetPermits that runs late", true, []countEntry{set(2), fails(leasedSet, 5, 10), op(leasedSet, 3, 0, 20, 21), look("", 3, 22), look("", 5, 30), peace(40)}},
		{"a failed SetPermits that runs after the peace", false, []countEntry{set(2), fails(leasedSet, 5, 10), peace(40), look("", 2, 50), look("", 5, 60)}},

		{"killed with permits", true, []countEntry{set(2), take("a", "0", 10, 15), look("a", 1, 30), look("", 2, 40), peace(50)}},
		{"killed with a permit that is free at once", false, []countEntry{set(1), take("a", "0", 10, 40), take("b", "0", 20, 25), give("b", 50)}},
		{"killed in a take that ran", true, []countEntry{set(2), dies(leasedTake, 1, 10), look("x", 1, 20), look("", 2, 40), peace(50)}},
		{"killed in a change of the number that did not run", true, []countEntry{set(2), dies(permAdd, 1, 10), peace(50), look("", 2, 60)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := porcupine.Illegal
			if c.ok {
				want = porcupine.Ok
			}
			require.Equal(t, want, countCheck(leasedModel, leasedHistory(c.h, told)))
		})
	}
}
