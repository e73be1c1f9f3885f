package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/go-rlock/rlock/internal/deadlock"
)

// The asker's part of what internal/deadlock/seen.go says of Clients and their long waits.

// askerPrefix begins the ids of askers: they are told from Clients, which answer, by that.
const askerPrefix = "00000000-"

// newAsker returns an id for a tool that asks. It has the form of a Client's id.
func newAsker() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // it never fails
	return fmt.Sprintf("%s%x-%x-%x-%x", askerPrefix, b[:2], b[2:4], b[4:6], b[6:])
}

// isAsker reports whether an id is a tool's.
func isAsker(id string) bool { return strings.HasPrefix(id, askerPrefix) }

// questionOf returns the message that asks a Client to report its waits to id.
func questionOf(id string) string { return "ask " + id }

// answer is a reply of a Client.
type answer struct {
	Client string
	Off    bool           // the Client runs without Options.Deadlock
	Of     int            // how many waits it reports
	Wait   *deadlock.Seen // one of these; nil: there are none
}

var waitless = regexp.MustCompile(`^(none|off) ([0-9a-f-]{36})$`)

// readAnswer parses an answer. It reports false if text is not one.
func readAnswer(text string) (a answer, ok bool) {
	if m := waitless.FindStringSubmatch(text); m != nil {
		return answer{Client: m[2], Off: m[1] == "off"}, true
	}
	var n int
	if _, err := fmt.Sscanf(text, "is %d %d", &n, &a.Of); err != nil || n < 1 || n > a.Of || a.Of > deadlock.MostSeenWaits {
		return a, false
	}
	parts := strings.SplitN(text, " ", 4)
	a.Wait = new(deadlock.Seen)
	if len(parts) < 4 || json.Unmarshal([]byte(parts[3]), a.Wait) != nil {
		return a, false
	}
	a.Client = a.Wait.Client
	return a, true
}

// still makes a reported wait a Sleeper that a search can follow.
type still struct {
	*deadlock.Seen

	found []deadlock.Step
}

func (s *still) IsWaiting() bool { return true }

func (s *still) Keeps(owner string) bool {
	for _, h := range s.Holds {
		if h.Owner == owner {
			return true
		}
	}
	return false
}

func (s *still) Blockers() []string          { return s.Seen.Blockers }
func (s *still) Refresh()                    {}
func (s *still) IsBlocked(string) bool       { return true }
func (s *still) Say(_, _ string)             {}
func (s *still) Found(cycle []deadlock.Step) { s.found = cycle }

// waitOf returns a reported wait for a graph.
func waitOf(s *deadlock.Seen) *deadlock.Wait {
	w := &deadlock.Wait{Sleeper: &still{Seen: s}, Number: s.Number, Began: s.Began, Client: s.Client, Lock: s.Lock}
	for _, h := range s.Holds {
		w.Holds = append(w.Holds, deadlock.Hold{Owner: h.Owner, Name: h.Name, Since: deadlock.Micros{Time: h.Since}})
	}
	return w
}

// cyclesOf returns the cycles among reported waits, one for each wait that is the last of any. The waits were not all reported at the same
// moment, so a cycle may never have existed.
func cyclesOf(seen []deadlock.Seen) (all [][]*deadlock.Seen) {
	type key struct {
		client string
		number uint64
	}
	g, at := deadlock.New(), make(map[key]*deadlock.Seen)
	waits := make([]*deadlock.Wait, len(seen))
	for i := range seen {
		s := &seen[i]
		at[key{s.Client, s.Number}] = s
		waits[i] = waitOf(s)
		g.Add(waits[i])
	}
	for _, w := range waits {
		if !g.SearchCycle(w, 0) {
			continue
		}
		var cycle []*deadlock.Seen
		for _, step := range w.Sleeper.(*still).found { //nolint:errcheck // no others were added
			cycle = append(cycle, at[key{step.Client, step.Number}])
		}
		all = append(all, cycle)
	}
	return all
}
