package faults

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// histKind is the operation of a history entry. A failed or cancelled Lock has no entry: it has no effect, and
// until it is undone (G5), a look may see its owner as a stranger.
type histKind int

const (
	histLock    histKind = iota // a competing Lock or TryLock got the lock
	histReenter                 // a Lock or TryLock re-entered the hold in its ctx
	histUnlock                  // unlock returned nil
	histUnknown                 // unlock failed: its level is over, the state in Redis is unknown
	histRefused                 // an unlock or a re-entry reported the hold as lost
	histLost                    // the holder's ctx was cancelled by the loss of the hold
	histLook                    // somebody read the key: Owner and Count, "" if there was none
	histDelete                  // somebody deleted the key, with Owner in it, "" if there was none
	histTold                    // deadline for reporting the loss of a deleted hold
	histOver                    // deadline for the end of a hold, after its trusted time
	histExport                  // an Export, which leaves the lock to Ticket
	histAdopt                   // an Adopt of Ticket
)

var histKinds = [...]string{"lock", "re-enter", "unlock", "unlock-unknown", "refused", "lost", "look", "delete", "told", "over", "export", "adopt"}

// histEntry is one operation on the lock Name. It took effect at some moment from Call to Return.
type histEntry struct {
	Kind         histKind
	Name, Owner  string // for a hold that was passed on "<owner>#2", "<owner>#3" and so on, see histTenure
	Next         string // the next hold of the same owner, if there is one
	Passes       bool   // an unlock that sent no release: the last one passed the owner on to a Lock that failed
	Count        int    // of a look
	Call, Return int64  // on the clock of histNow
	Worker       int
	Token        int64  // of a fenced hold, from 1 on; 0 without fencing
	Shares       bool   // begins a reader's hold: other readers of its process may share the owner
	Ticket       string // the lock's owner in Redis from an Export to its Adopt
	Within       string // the hold on the other side of a read/write lock that admits this one
	Seen         string // by a look at a read/write lock: "<field>=<value>" of all

	// Unsure: the client does not know the outcome of a command for this owner. Such a command may act
	// late, so looks at Redis prove less about this owner: see internal/engine/doc.go, I2, I3.
	Unsure bool

	Keeps bool // an unlock after which the Client may keep the lock, with nobody inside
}

// histState is the state of one lock: the live hold as its users see it, and the known state in Redis.
type histState struct {
	owner   string // of the live hold
	tenure  string // of the last one
	passed  string // the hold to which its unlock passed the tenure
	count   int    // its open levels
	most    int    // open levels so far: the count in Redis may lag
	first   int64  // the fencing token that it began with
	leaves  string // an owner whose hold is over, but may still be in Redis
	deleted string // owners with a deleted key and no reported loss yet: "<owner>/<open levels>"; 0: on its way to that owner
	token   int64  // the highest fencing token so far
}

// histModel is a re-entrant lock with leases. A hold is live from its Lock until the unlock of its last level, or
// until its ctx is cancelled by a loss: not before the trusted time ends, unless somebody deletes the key.
// This covers G1, G2, G6 and G8; looks at Redis add G5 and G7. Fencing tokens rise from hold to hold, and a
// re-entry has the token of its hold.
//
// An owner is one tenure: successive holds of one process share it, and no other lock uses it (I3).
// histReused checks that.
var histModel = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		byName := make(map[string][]porcupine.Operation)
		for _, op := range all {
			name := op.Input.(histEntry).Name
			byName[name] = append(byName[name], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byName {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return histState{} },
	Step: func(state, input, _ any) (bool, any) {
		next, ok := state.(histState).step(input.(histEntry))
		return ok, next
	},
	DescribeOperation: func(input, _ any) string { return input.(histEntry).String() },
	DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
}

func (s histState) step(e histEntry) (histState, bool) {
	mine := s.owner == e.Owner
	switch e.Kind {
	case histLock:
		if s.isOnItsWay(e.Owner) { // without a command to Redis
			return s.deletedTo(e.Owner, 1), true
		}
		ok := s.owner == "" && (e.Token == 0 || e.Token > s.token) && (s.passed == e.Owner || !strings.Contains(e.Owner, "#"))
		if tenure := histTenure(e.Owner); tenure != s.tenure {
			s.tenure, s.most = tenure, 1
		}
		s.owner, s.count, s.leaves, s.passed = e.Owner, 1, "", ""
		s.first, s.token = e.Token, max(s.token, e.Token)
		return s, ok
	case histReenter:
		if n := s.deletedLevels(e.Owner); n > 0 { // without a command to Redis
			return s.deletedTo(e.Owner, n+1), true
		}
		s.count++
		s.most = max(s.most, s.count)
		return s, mine && (e.Token == 0 || e.Token == s.first)
	case histUnlock, histUnknown:
		return s.unlocked(e)
	case histRefused:
		return s, !mine
	case histLost:
		if s.isDeleted(e.Owner) {
			return s.toldOf(e.Owner), true
		}
		s.owner, s.count, s.leaves = "", 0, e.Owner
		return s, mine
	case histExport:
		ok := mine && s.count == 1
		s.owner, s.tenure, s.count, s.most, s.passed = e.Ticket, e.Ticket, 1, 1, ""
		return s, ok
	case histAdopt:
		ok := s.owner == e.Ticket && (e.Token == 0 || e.Token > s.token)
		s.owner, s.tenure, s.count, s.most = e.Owner, histTenure(e.Owner), 1, 1
		s.first, s.token = e.Token, max(s.token, e.Token)
		return s, ok
	case histLook:
		return s, s.shows(e)
	case histDelete:
		ok := s.shows(e)
		if s.owner != "" {
			s = s.deletedTo(s.owner, s.count)
			s.owner, s.count = "", 0
		} else if s.passed != "" && histTenure(s.leaves) == e.Owner { // kept for the next hold, which has not noticed yet
			s = s.deletedTo(s.passed, 0)
		}
		s.leaves, s.passed = "", ""
		return s, ok
	case histTold:
		return s, !s.isDeletedTenure(e.Owner)
	case histOver:
		return s, !mine && !s.isDeleted(e.Owner)
	}
	return s, false
}

func (s histState) unlocked(e histEntry) (histState, bool) {
	if s.owner != e.Owner {
		n := s.deletedLevels(e.Owner)
		if n > 1 { // an inner level sends no command
			return s.deletedTo(e.Owner, n-1), true
		}
		switch { // passed on in memory
		case n == 1 && e.Next != "":
			return s.toldOf(e.Owner).deletedTo(e.Next, 0), true
		case n == 1 && e.Passes: // and lost under way
			return s.toldOf(e.Owner), true
		}
		// A release whose first reply was lost cannot distinguish its own effect from a DEL.
		return s.toldOf(e.Owner), n == 1 && (e.Unsure || e.Kind == histUnknown)
	}
	if s.count--; s.count == 0 {
		s.owner, s.passed = "", e.Next
		if e.Kind == histUnknown || e.Keeps {
			s.leaves = e.Owner
		}
	}
	return s, true
}

// shows reports whether e is a possible view of Redis. The count follows the levels, and is not compared before a
// DEL. A key with several owners is recorded as -1, which is always wrong.
func (s histState) shows(e histEntry) bool {
	switch {
	case e.Count < 0:
		return false
	case e.Owner == "":
		return s.owner == ""
	case histTenure(s.owner) == e.Owner:
		return 0 < e.Count && e.Count <= s.most || e.Unsure || e.Kind == histDelete
	case s.owner != "":
		return false
	}
	// Not a live hold: being removed, or late.
	return e.Unsure || histTenure(s.leaves) == e.Owner
}

func (s histState) isDeleted(owner string) bool { return s.deletedLevels(owner) > 0 }

// isOnItsWay reports whether the key was deleted while the owner was on its way to a hold.
func (s histState) isOnItsWay(owner string) bool {
	return slices.Contains(strings.Fields(s.deleted), owner+"/0")
}

// isDeletedTenure is isDeleted for any hold of that owner.
func (s histState) isDeletedTenure(owner string) bool {
	return slices.ContainsFunc(strings.Fields(s.deleted), func(o string) bool {
		hold, levels, _ := strings.Cut(o, "/")
		return histTenure(hold) == owner && levels != "0"
	})
}

// histTenure is the owner of a hold in Redis.
func histTenure(hold string) string {
	owner, _, _ := strings.Cut(hold, "#")
	return owner
}

// deletedLevels counts the open levels of a hold whose key was deleted.
func (s histState) deletedLevels(owner string) (n int) {
	for o := range strings.FieldsSeq(s.deleted) {
		if levels, ok := strings.CutPrefix(o, owner+"/"); ok {
			n, _ = strconv.Atoi(levels)
		}
	}
	return n
}

func (s histState) deletedTo(owner string, levels int) histState {
	s = s.toldOf(owner)
	s.deleted = fmt.Sprintf("%s/%d %s", owner, levels, s.deleted)
	return s
}

func (s histState) toldOf(owner string) histState {
	rest := slices.DeleteFunc(strings.Fields(s.deleted), func(o string) bool { return strings.HasPrefix(o, owner+"/") })
	s.deleted = strings.Join(rest, " ")
	return s
}

func (e histEntry) String() string {
	return fmt.Sprintf("%s %s %s%s (%d) %s%s unsure=%v", e.Name, histKinds[e.Kind], e.Owner, e.Ticket, e.Count, e.Within, e.Seen, e.Unsure)
}

// histReused returns a reused owner, or "": one returned by Locks of several names, or by a Lock before its previous
// hold called unlock. Readers may share an owner.
func histReused(entries []histEntry) string {
	names := make(map[string]string)
	unlocked := make(map[string]int64) // the first call
	for _, e := range entries {
		if e.Kind == histUnlock || e.Kind == histExport {
			if at, ok := unlocked[e.Owner]; !ok || e.Call < at {
				unlocked[e.Owner] = e.Call
			}
		}
	}
	locked := make(map[string]int64)
	for _, e := range entries {
		if e.Kind != histLock && e.Kind != histAdopt {
			continue
		}
		owner := histTenure(e.Owner)
		if name, known := names[owner]; known && name != e.Name {
			return owner
		}
		if _, twice := locked[e.Owner]; twice {
			return owner
		}
		names[owner], locked[e.Owner] = e.Name, e.Return
	}
	for _, e := range entries {
		if e.Kind != histLock && e.Kind != histAdopt || e.Next == "" || e.Shares {
			continue
		}
		if at, ok := unlocked[e.Owner]; !ok || at > locked[e.Next] {
			return histTenure(e.Owner)
		}
	}
	return ""
}

// histCheck reports whether the model can explain a history. A timeout is a fault of the test: the
// history is too long or too concurrent.
func histCheck(model porcupine.Model, entries []histEntry) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model, histOperations(entries), 2*time.Minute)
}

func histOperations(entries []histEntry) []porcupine.Operation {
	ops := make([]porcupine.Operation, len(entries))
	for i, e := range entries {
		ops[i] = porcupine.Operation{ClientId: e.Worker, Input: e, Call: e.Call, Return: e.Return}
	}
	return ops
}
