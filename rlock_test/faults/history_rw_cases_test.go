package faults

import (
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

func rwIn(outer string, e histEntry) histEntry {
	e.Within = outer
	return e
}

func rwLook(seen string, call, ret int64) histEntry {
	e := histOp(histLook, "", call, ret)
	e.Seen = seen
	return e
}

// passes makes an unlock one that passes the tenure on.
func passes(e histEntry) histEntry {
	e.Next = histNext(e.Owner)
	return e
}

// The checker tells valid read/write histories from invalid ones. G1, G2, G5, G6, G8.
func TestHistoryCheckerVerdictsReadWrite(t *testing.T) {
	op := histOp
	for _, c := range []struct {
		name string
		ok   bool
		h    []histEntry
	}{
		{"many readers, then a writer", true, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "b", 5, 12), rwLook("a=1 b=1 mode=read", 13, 14),
			op(histLock, "w:write", 11, 40), op(histUnlock, "a", 20, 22), rwLook("b=1 mode=read", 23, 24), op(histUnlock, "b", 25, 27),
			rwLook("mode=write w:write=1", 41, 42), op(histUnlock, "w:write", 50, 51), rwLook("", 52, 53)}},
		{"a reader beside a writer", false, []histEntry{
			op(histLock, "w:write", 0, 10), op(histLock, "a", 15, 20), op(histUnlock, "a", 25, 26), op(histUnlock, "w:write", 30, 40)}},
		{"a writer beside a reader", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "w:write", 15, 20), op(histUnlock, "w:write", 25, 26), op(histUnlock, "a", 30, 40)}},
		{"two writers", false, []histEntry{
			op(histLock, "v:write", 0, 10), op(histLock, "w:write", 15, 20), op(histUnlock, "v:write", 25, 26)}},
		{"a writer's section, exported and adopted", true, []histEntry{
			op(histLock, "w:write", 0, 10), histOf("t:write", op(histExport, "w:write", 11, 12)), rwLook("mode=write t:write=1", 13, 14),
			histOf("t:write", op(histAdopt, "v:write", 15, 16)), rwLook("mode=write v:write=1", 17, 18), op(histUnlock, "v:write", 19, 20),
			op(histLock, "a", 21, 22)}},
		{"a reader between an Export and its Adopt", false, []histEntry{
			op(histLock, "w:write", 0, 10), histOf("t:write", op(histExport, "w:write", 11, 12)), op(histLock, "a", 13, 14), op(histUnlock, "a", 15, 16),
			histOf("t:write", op(histAdopt, "v:write", 17, 18))}},
		{"an Export with a reader in the section", false, []histEntry{
			op(histLock, "w:write", 0, 10), rwIn("w:write", op(histLock, "a", 11, 12)), histOf("t:write", op(histExport, "w:write", 13, 14))}},
		{"a ticket of the write side with two adopters", false, []histEntry{
			op(histLock, "w:write", 0, 10), histOf("t:write", op(histExport, "w:write", 11, 12)), histOf("t:write", op(histAdopt, "v:write", 15, 16)),
			op(histUnlock, "v:write", 17, 18), histOf("t:write", op(histAdopt, "u:write", 19, 20))}},
		{"re-entries of a reader", true, []histEntry{
			op(histLock, "a", 0, 10), op(histReenter, "a", 11, 12), rwLook("a=2 mode=read", 13, 14), op(histUnlock, "a", 15, 16),
			rwLook("a=1 mode=read", 17, 18), op(histUnlock, "a", 20, 21), op(histLock, "w:write", 22, 23)}},
		{"an inner unlock lets a writer in", false, []histEntry{
			op(histLock, "a", 0, 10), op(histReenter, "a", 11, 12), op(histUnlock, "a", 15, 16), op(histLock, "w:write", 17, 18),
			op(histUnlock, "a", 20, 21)}},
		{"a reader's unlock lets a writer in to another reader", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "b", 0, 10), op(histUnlock, "a", 15, 16), op(histLock, "w:write", 17, 18),
			op(histUnlock, "b", 20, 21)}},

		{"readers that share a tenure", true, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "a#2", 5, 12), rwLook("a=1 mode=read", 13, 14), op(histReenter, "a", 15, 16),
			rwLook("a=3 mode=read", 17, 18), op(histUnlock, "a", 19, 20), op(histUnlock, "a", 21, 22), rwLook("a=2 mode=read", 23, 24),
			op(histUnlock, "a#2", 25, 27), op(histLock, "w:write", 26, 28)}},
		{"a writer beside one of two readers that share", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "a#2", 0, 10), op(histUnlock, "a", 15, 16), op(histLock, "w:write", 17, 18),
			op(histUnlock, "a#2", 20, 21)}},
		{"two readers that share, without a key", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "a#2", 0, 10), op(histUnlock, "a", 15, 16), rwLook("", 17, 18), op(histUnlock, "a#2", 20, 21)}},
		{"a level too many of two readers that share", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "a#2", 0, 10), rwLook("a=3 mode=read", 17, 18), op(histUnlock, "a#2", 20, 21)}},
		{"an upgrade of one of two readers that share", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "a#2", 0, 10), rwIn("a", op(histLock, "a:write", 11, 20)), op(histUnlock, "a#2", 22, 24)}},
		{"a writer that passes on", true, []histEntry{
			op(histLock, "w:write", 0, 10), op(histReenter, "w:write", 11, 12), op(histUnlock, "w:write", 13, 14),
			passes(op(histUnlock, "w:write", 15, 20)), op(histLock, "w:write#2", 11, 22), rwLook("mode=write w:write=2", 23, 24),
			op(histLock, "a", 25, 35), op(histUnlock, "w:write#2", 30, 32)}},
		{"a writer that passes on, with a reader between", false, []histEntry{
			op(histLock, "w:write", 0, 10), passes(op(histUnlock, "w:write", 11, 12)), op(histLock, "a", 13, 14),
			op(histLock, "w:write#2", 11, 22), op(histUnlock, "a", 23, 24)}},
		{"a writer that reuses a tenure after its release", false, []histEntry{
			op(histLock, "w:write", 0, 10), op(histUnlock, "w:write", 11, 12), op(histLock, "w:write#2", 13, 14)}},

		{"a reader that outlasts its writer's section", true, []histEntry{
			op(histLock, "w:write", 0, 10), rwIn("w:write", op(histLock, "a", 11, 12)), rwLook("a=1 mode=write w:write=1", 13, 14),
			op(histUnlock, "w:write", 15, 16), rwLook("a=1 mode=read", 17, 18), op(histLock, "b", 19, 20),
			op(histUnlock, "a", 21, 22), op(histUnlock, "b", 21, 22)}},
		{"a reader in the section of a writer that has left", false, []histEntry{
			op(histLock, "w:write", 0, 10), op(histUnlock, "w:write", 11, 12), rwIn("w:write", op(histLock, "a", 13, 14))}},
		{"a reader in the section of another writer", false, []histEntry{
			op(histLock, "w:write", 0, 10), rwIn("v:write", op(histLock, "a", 11, 12)), op(histUnlock, "w:write", 15, 16)}},
		{"a downgrade", true, []histEntry{
			op(histLock, "w:write", 0, 10), rwIn("w:write", op(histLock, "a", 11, 14)), op(histUnlock, "w:write", 11, 14),
			op(histLock, "v:write", 5, 30), op(histUnlock, "a", 20, 22)}},
		{"a downgrade with another writer between", false, []histEntry{
			op(histLock, "w:write", 0, 10), op(histUnlock, "w:write", 11, 20), rwIn("w:write", op(histLock, "a", 11, 20)),
			op(histLock, "v:write", 12, 14), op(histUnlock, "v:write", 15, 16), op(histUnlock, "a", 25, 26)}},
		{"an upgrade after the other readers have left", true, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "b", 0, 10), rwIn("a", op(histLock, "w:write", 11, 20)), op(histUnlock, "b", 12, 14),
			op(histUnlock, "w:write", 21, 22), op(histLock, "c", 21, 23), op(histUnlock, "a", 24, 25)}},
		{"an upgrade beside another reader", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "b", 0, 10), rwIn("a", op(histLock, "w:write", 11, 20)), op(histUnlock, "b", 22, 24)}},
		{"an upgrade of a reader that has left", false, []histEntry{
			op(histLock, "a", 0, 10), op(histUnlock, "a", 11, 12), rwIn("a", op(histLock, "w:write", 13, 20))}},

		{"a writer after the loss of a reader", true, []histEntry{
			op(histLock, "a", 0, 10), op(histLost, "a", 20, 30), op(histLock, "w:write", 15, 25), rwLook("mode=write w:write=1", 26, 27),
			op(histRefused, "a", 31, 32), op(histUnlock, "w:write", 40, 41)}},
		{"a writer within the trusted time of a reader", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "w:write", 11, 15), op(histUnlock, "w:write", 16, 17), op(histLost, "a", 20, 30)}},
		{"a reader that outlives its trusted time", false, []histEntry{
			op(histLock, "a", 0, 10), op(histOver, "a", 20, 20), op(histUnlock, "a", 30, 31)}},
		{"an unlock with unknown outcome", true, []histEntry{
			op(histLock, "a", 0, 10), op(histUnknown, "a", 20, 30), rwLook("a=1? mode=read", 31, 32), op(histLock, "w:write", 33, 40)}},
		{"unlock of a live reader is refused", false, []histEntry{op(histLock, "a", 0, 10), op(histRefused, "a", 20, 30)}},
		{"unlock of a lost reader is accepted", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLost, "a", 20, 30), op(histUnlock, "a", 31, 32)}},

		{"a lost unlock", false, []histEntry{
			op(histLock, "a", 0, 10), op(histUnlock, "a", 20, 30), rwLook("a=1 mode=read", 31, 32)}},
		{"a reader too few", false, []histEntry{
			op(histLock, "a", 0, 10), op(histLock, "b", 0, 10), rwLook("b=1 mode=read", 20, 21), op(histUnlock, "a", 30, 31)}},
		{"a level too many", false, []histEntry{
			op(histLock, "a", 0, 10), rwLook("a=2 mode=read", 20, 21), op(histUnlock, "a", 30, 31)}},
		{"a writer in read mode", false, []histEntry{
			op(histLock, "w:write", 0, 10), rwLook("mode=read w:write=1", 20, 21), op(histUnlock, "w:write", 30, 31)}},
		{"the leftover of a cancelled reader", true, []histEntry{
			rwLook("a=1? mode=read", 0, 1), rwLook("", 2, 3), op(histLock, "w:write", 4, 5)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := porcupine.Illegal
			if c.ok {
				want = porcupine.Ok
			}
			require.Equal(t, want, histCheck(rwModel, c.h))
		})
	}
}
