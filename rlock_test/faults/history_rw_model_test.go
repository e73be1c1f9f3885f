package faults

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

// rwState is the holders of a read/write lock as its users see them: the rwHolds, in order.
type rwState string

// rwHold is a live hold: "<owner>", or "<owner>#2" and so on. A writer's owner ends with ":write". A hold without
// levels is a writer's that got a tenure passed on, and whose Lock has not returned yet.
type rwHold struct {
	name   string
	levels int
	most   int // total levels of the tenure's holds so far: the count in Redis follows
}

// rwModel is a read/write lock: many readers, some of which may share a tenure, or one writer and the readers in its
// section. A reader without others may become the writer, and stays a reader. Holds end as in histModel. A look at
// Redis shows the tenures of all live holds; their counts follow.
var rwModel = porcupine.Model{
	Partition: histModel.Partition,
	Init:      func() any { return rwState("") },
	Step: func(state, input, _ any) (bool, any) {
		next, ok := state.(rwState).step(input.(histEntry))
		return ok, next
	},
	DescribeOperation: func(input, _ any) string { return input.(histEntry).String() },
	DescribeState:     func(state any) string { return fmt.Sprintf("%q", state) },
}

func (s rwState) step(e histEntry) (rwState, bool) {
	levels := s.levels(e.Owner)
	switch e.Kind {
	case histLock:
		return s.with(e.Owner, 1), s.lets(e)
	case histReenter:
		return s.with(e.Owner, levels+1), levels > 0
	case histUnlock, histUnknown: // after an unknown one, the level is over in any case
		ok := levels > 0 || e.Kind == histUnknown
		if levels == 1 && e.Next != "" && rwWrites(e.Owner) {
			return s.passed(e.Owner, e.Next), ok
		}
		return s.with(e.Owner, max(levels-1, 0)), ok
	case histLost:
		return s.with(e.Owner, 0), levels > 0
	case histRefused, histOver:
		return s, levels == 0
	case histLook:
		return s, s.shows(strings.Fields(e.Seen))
	case histExport:
		return s.with(e.Owner, 0).with(e.Ticket, 1), levels == 1 && rwWrites(e.Owner) && len(s.holds()) == 1
	case histAdopt:
		return s.with(e.Ticket, 0).with(e.Owner, 1), s.levels(e.Ticket) == 1 && rwWrites(e.Owner)
	case histDelete, histTold: // these runs have none
	}
	return s, false
}

// lets reports whether a Lock that begins a hold may succeed.
func (s rwState) lets(e histEntry) bool {
	if !rwWrites(e.Owner) {
		return s.writer() == e.Within
	}
	passed := false
	for _, h := range s.holds() {
		passed = passed || h.name == e.Owner
		if h.name != e.Owner && h.name != e.Within {
			return false
		}
	}
	return passed == strings.Contains(e.Owner, "#") && (e.Within == "" || s.levels(e.Within) > 0)
}

// shows reports whether seen is a possible view of Redis. A hold that is not live may be visible if it was lost, or if
// a command for it had an unknown outcome: such owners end with "?", see histMerge.
func (s rwState) shows(seen []string) bool {
	mode, writer := "mode=read", s.writer() != ""
	for _, owner := range seen {
		sure, doubted := strings.CutSuffix(owner, "?")
		switch {
		case strings.HasPrefix(owner, "mode="):
		case doubted:
			writer = writer || rwWrites(rwOwner(sure)) && slices.Contains(seen, "mode=write")
		case !s.follows(owner):
			return false
		}
	}
	if writer {
		mode = "mode=write"
	}
	for _, h := range s.holds() {
		there := func(owner string) bool { return rwOwner(owner) == histTenure(h.name) }
		if !slices.ContainsFunc(seen, there) || !slices.Contains(seen, mode) {
			return false
		}
	}
	return true
}

// writer returns the writer's live hold, or "".
func (s rwState) writer() string {
	for _, h := range s.holds() {
		if rwWrites(h.name) {
			return h.name
		}
	}
	return ""
}

// follows reports whether the owner's count in Redis is a present or past count of its tenure.
func (s rwState) follows(seen string) bool {
	owner, n, _ := strings.Cut(seen, "=")
	count, err := strconv.Atoi(n)
	for _, h := range s.holds() {
		if histTenure(h.name) == owner {
			return err == nil && 0 < count && count <= h.most
		}
	}
	return false
}

func (s rwState) levels(hold string) int {
	for _, h := range s.holds() {
		if h.name == hold {
			return h.levels
		}
	}
	return 0
}

// with is the state in which the hold has the given levels.
func (s rwState) with(hold string, levels int) rwState {
	holds := s.holds()
	i := slices.IndexFunc(holds, func(h rwHold) bool { return h.name == hold })
	if i < 0 {
		i, holds = len(holds), append(holds, rwHold{name: hold})
	}
	holds[i].levels = levels
	together, most := 0, 0
	for _, h := range holds {
		if histTenure(h.name) == histTenure(hold) {
			together, most = together+h.levels, max(most, h.most)
		}
	}
	for i, h := range holds {
		if histTenure(h.name) == histTenure(hold) {
			holds[i].most = max(most, together)
		}
	}
	if levels == 0 {
		holds = slices.Delete(holds, i, i+1)
	}
	return rwStateOf(holds)
}

// passed is the state in which the hold's tenure is on its way to the next hold.
func (s rwState) passed(hold, next string) rwState {
	holds := s.holds()
	for i, h := range holds {
		if h.name == hold {
			holds[i] = rwHold{name: next, most: h.most}
		}
	}
	return rwStateOf(holds)
}

func (s rwState) holds() []rwHold {
	var holds []rwHold
	for field := range strings.FieldsSeq(string(s)) {
		var h rwHold
		name, counts, _ := strings.Cut(field, "=")
		h.name = name
		_, _ = fmt.Sscanf(counts, "%d/%d", &h.levels, &h.most)
		holds = append(holds, h)
	}
	return holds
}

func rwStateOf(holds []rwHold) rwState {
	fields := make([]string, len(holds))
	for i, h := range holds {
		fields[i] = fmt.Sprintf("%s=%d/%d", h.name, h.levels, h.most)
	}
	slices.Sort(fields)
	return rwState(strings.Join(fields, " "))
}

// rwOwner is the owner in a field of the hash, in rwSeen's format.
func rwOwner(seen string) string {
	owner, _, _ := strings.Cut(seen, "=")
	return owner
}

func rwWrites(hold string) bool { return strings.HasSuffix(histTenure(hold), ":write") }
