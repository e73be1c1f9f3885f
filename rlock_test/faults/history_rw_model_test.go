package faults

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

// rwState is who holds a read/write lock in the eyes of its users: "<owner>=<levels>/<most of them so far>" for each live hold, in the order of the owners. The
// owner of a writer ends with ":write".
type rwState string

// rwModel is a read/write lock: many readers, or one writer, and the readers in its section. One reader may become the writer if there
// is no other, and stays a reader. Holds end as those of histModel do. What others see in Redis has all live holds; their counts follow.
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
	case histUnlock:
		return s.with(e.Owner, levels-1), levels > 0
	case histUnknown: // its level is over, if it was not before
		return s.with(e.Owner, max(levels-1, 0)), true
	case histLost:
		return s.with(e.Owner, 0), levels > 0
	case histRefused, histOver:
		return s, levels == 0
	case histLook:
		return s, s.shows(strings.Fields(e.Seen))
	case histDelete, histTold: // no run about these locks has them
	}
	return s, false
}

// lets reports whether a Lock that begins a hold may succeed.
func (s rwState) lets(e histEntry) bool {
	if !rwWrites(e.Owner) {
		return s.writer() == e.Within
	}
	others := slices.DeleteFunc(strings.Fields(string(s)), func(hold string) bool { return rwOwner(hold) == e.Within })
	return len(others) == 0 && (e.Within == "" || s.levels(e.Within) > 0)
}

// shows reports whether Redis may have looked like that. A hold that is not live may be there if it was lost, or if a command
// for it had an unknown outcome: such owners end with "?", see histMerge.
func (s rwState) shows(seen []string) bool {
	mode, writer := "mode=read", s.writer() != ""
	for _, hold := range seen {
		sure, doubted := strings.CutSuffix(hold, "?")
		switch {
		case strings.HasPrefix(hold, "mode="):
		case doubted:
			writer = writer || rwWrites(rwOwner(sure)) && slices.Contains(seen, "mode=write")
		case !s.follows(hold):
			return false
		}
	}
	if writer {
		mode = "mode=write"
	}
	for hold := range strings.FieldsSeq(string(s)) {
		there := func(h string) bool { return rwOwner(h) == rwOwner(hold) }
		if !slices.ContainsFunc(seen, there) || !slices.Contains(seen, mode) {
			return false
		}
	}
	return true
}

// writer returns the owner of the live hold that writes, or "".
func (s rwState) writer() string {
	for hold := range strings.FieldsSeq(string(s)) {
		if rwWrites(rwOwner(hold)) {
			return rwOwner(hold)
		}
	}
	return ""
}

// follows reports whether the count of that hold in Redis is one that it has, or has had.
func (s rwState) follows(seen string) bool {
	_, n, _ := strings.Cut(seen, "=")
	count, err := strconv.Atoi(n)
	_, most := s.depth(rwOwner(seen))
	return err == nil && 0 < count && count <= most
}

func (s rwState) levels(owner string) int {
	levels, _ := s.depth(owner)
	return levels
}

// depth is how many levels an owner has, and the most that it has had.
func (s rwState) depth(owner string) (levels, most int) {
	for hold := range strings.FieldsSeq(string(s)) {
		if n, ok := strings.CutPrefix(hold, owner+"="); ok {
			_, _ = fmt.Sscanf(n, "%d/%d", &levels, &most)
		}
	}
	return levels, most
}

// with is the state in which an owner has so many levels.
func (s rwState) with(owner string, levels int) rwState {
	_, most := s.depth(owner)
	holds := slices.DeleteFunc(strings.Fields(string(s)), func(hold string) bool { return rwOwner(hold) == owner })
	if levels > 0 {
		holds = append(holds, fmt.Sprintf("%s=%d/%d", owner, levels, max(most, levels)))
	}
	slices.Sort(holds)
	return rwState(strings.Join(holds, " "))
}

func rwOwner(hold string) string {
	owner, _, _ := strings.Cut(hold, "=")
	return owner
}

func rwWrites(owner string) bool { return strings.HasSuffix(owner, ":write") }
