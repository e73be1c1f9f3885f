package faults

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A familyStay is a worker's time in a section, seen from outside: when it reported being inside first and last. Its
// ctx was live at both times, so it had the lock in between. A killed process has reported nothing since.
//
// The witness does not ask the lock for its holder. A history of stays is valid if no two stays overlap that exclude
// each other; levels and leases need no model for that.
type familyStay struct {
	id       string
	mode     string // see familyExcludes
	from, to int64  // on the clock of histNow
	token    int64  // of a fenced hold
}

const (
	familyReads     = "reads"
	familyMayWrite  = "may write" // a reader that may upgrade
	familyWrites    = "writes"
	familyModeCount = 3
)

// familyExcludes lists, for each mode, the modes that are never seen beside it.
var familyExcludes = map[string][]string{
	familyReads:    {familyWrites},
	familyMayWrite: {familyMayWrite, familyWrites},
	familyWrites:   {familyReads, familyMayWrite, familyWrites},
}

// familyWitness collects the stays of all processes.
type familyWitness struct {
	mu    sync.Mutex // guards the following
	stays map[string]map[string]*familyStay
	last  map[string]string // the last process seen inside, by lock
}

func newFamilyWitness() *familyWitness {
	return &familyWitness{stays: make(map[string]map[string]*familyStay), last: make(map[string]string)}
}

// hear records a line of a process: "in <id> <mode> <time> <taken until> <token> <name> …" or "lost <id> <since>". It
// returns false for anything else.
func (w *familyWitness) hear(peer string, line string) bool {
	words := strings.Split(line, "\t")
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(words[i], 10, 64)
		return n
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case words[0] == "in" && len(words) > 6:
		id, now := words[1], number(3)
		for _, name := range words[6:] {
			if w.stays[name] == nil {
				w.stays[name] = make(map[string]*familyStay)
			}
			s := w.stays[name][id]
			if s == nil {
				s = &familyStay{id: id, mode: words[2], from: now, token: number(5)}
				w.stays[name][id] = s
			}
			s.to = max(s.to, now, number(4))
			w.last[name] = peer
		}
	case words[0] == "lost" && len(words) == 3:
		for _, stays := range w.stays {
			if s := stays[words[1]]; s != nil {
				s.to = min(s.to, number(2))
			}
		}
	default:
		return false
	}
	return true
}

// names returns the locks that were entered, sorted.
func (w *familyWitness) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for name := range w.stays {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// seen returns the number of stays in a lock, and the process of the last one.
func (w *familyWitness) seen(name string) (stays int, peer string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.stays[name]), w.last[name]
}

// after returns a stay that lasted beyond the given time, or "".
func (w *familyWitness) after(at int64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, stays := range w.stays {
		for _, s := range stays {
			if s.to > at {
				return fmt.Sprintf("%s in %s, %v later", s.id, name, time.Duration(s.to-at))
			}
		}
	}
	return ""
}

// overlap returns two stays in a lock that exclude each other, or a token that did not rise; otherwise "".
func (w *familyWitness) overlap(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var stays []*familyStay
	for _, s := range w.stays[name] {
		if s.to >= s.from { // otherwise its ctx ended before it reported being inside
			stays = append(stays, s)
		}
	}
	slices.SortFunc(stays, func(a, b *familyStay) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	longest := make(map[string]*familyStay, familyModeCount) // the longest earlier stay of each mode
	var token *familyStay
	for _, s := range stays {
		for _, mode := range familyExcludes[s.mode] {
			if o := longest[mode]; o != nil && o.to > s.from {
				return fmt.Sprintf("%s: %s (%s) for %v, and %s (%s) %v before that was over",
					name, o.id, o.mode, time.Duration(o.to-o.from), s.id, s.mode, time.Duration(o.to-s.from))
			}
		}
		if o := longest[s.mode]; o == nil || s.to > o.to {
			longest[s.mode] = s
		}
		if token != nil && s.token <= token.token && s.token > 0 {
			return fmt.Sprintf("%s: %s has token %d after %s with %d", name, s.id, s.token, token.id, token.token)
		}
		if s.token > 0 { // not a reader between two writers
			token = s
		}
	}
	return ""
}

// The witness tells valid histories from invalid ones. G1.
func TestFamilyWitness(t *testing.T) {
	in := func(id, mode string, at ...int64) (lines []string) {
		for _, at := range at {
			lines = append(lines, strings.Join([]string{"in", id, mode, strconv.FormatInt(at, 10), "0", "0", "n"}, "\t"))
		}
		return lines
	}
	token := func(id string, at, token int64) string {
		return fmt.Sprintf("in\t%s\twrites\t%d\t0\t%d\tn", id, at, token)
	}
	for name, c := range map[string]struct {
		ok    bool
		lines []string
	}{
		"one after the other":  {true, append(in("a", familyWrites, 1, 5), in("b", familyWrites, 6, 9)...)},
		"beside each other":    {false, append(in("a", familyWrites, 1, 5), in("b", familyWrites, 3, 9)...)},
		"one within the other": {false, append(in("a", familyWrites, 1, 9), in("b", familyWrites, 3, 5)...)},
		"beside the last but one": {false, slices.Concat(
			in("a", familyReads, 1, 9), in("b", familyReads, 2, 3), in("c", familyWrites, 5, 6))},
		"readers":               {true, append(in("a", familyReads, 1, 5), in("b", familyReads, 3, 9)...)},
		"one that may write":    {true, append(in("a", familyReads, 1, 5), in("b", familyMayWrite, 3, 9)...)},
		"two that may write":    {false, append(in("a", familyMayWrite, 1, 5), in("b", familyMayWrite, 3, 9)...)},
		"a reader and a writer": {false, append(in("a", familyReads, 1, 5), in("b", familyWrites, 3, 9)...)},
		"a reader that writes":  {true, append(in("a", familyMayWrite, 1, 5), in("b", familyWrites, 5, 9)...)},
		"a reader that writes for a moment": {true, slices.Concat(
			in("a", familyMayWrite, 1, 5), in("b", familyMayWrite, 5, 9), in("c", familyWrites, 5))},
		"of two locks":                        {true, append(in("a", familyWrites, 1, 5), "in\tb\twrites\t3\t0\t0\tm")},
		"of several locks":                    {false, append(in("a", familyWrites, 1, 5), "in\tb\twrites\t3\t0\t0\tm\tn")},
		"told before":                         {true, append(in("a", familyWrites, 1, 5), append(in("b", familyWrites, 4, 9), "lost\ta\t3")...)},
		"told after":                          {false, append(in("a", familyWrites, 1, 5), append(in("b", familyWrites, 4, 9), "lost\ta\t5")...)},
		"within the time that it stays taken": {false, append([]string{"in\ta\twrites\t1\t8\t0\tn"}, in("b", familyWrites, 5, 9)...)},
		"tokens that rise":                    {true, []string{token("a", 1, 7), token("a", 2, 7), token("b", 3, 8)}},
		"a reader between tokens":             {false, []string{token("a", 1, 7), token("r", 2, 0), token("b", 3, 7)}},
		"a token that comes again":            {false, []string{token("a", 1, 7), token("b", 3, 7)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFamilyWitness()
			for _, line := range c.lines {
				require.True(t, w.hear("p", line))
			}
			require.Equal(t, c.ok, w.overlap("n") == "", w.overlap("n"))
		})
	}
}
