package deadlock

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// To show the graph, a tool asks the Clients for their long waits, over their ears:
//
//	question   ask <id>               the answers go to the channel of an ear of that id, which is an asker's ([NewAsker])
//	answer     is <n> <of> <JSON>     number n of <of>, from 1
//	           none <id>              that Client has no long wait
//	           off <id>               the Client runs without Options.Deadlock, and does not know
//
// This is for operators; Clients never ask.

// SeenKind is the kind of these messages.
const SeenKind = "waits"

// mostSeenWaits bounds the answers of a Client to one question.
const mostSeenWaits = 200

// Seen is a long wait as reported by its Client.
type Seen struct {
	Host     string     `json:"host"`
	PID      int        `json:"pid"`
	Client   string     `json:"client"`
	Label    string     `json:"label,omitempty"`
	Number   uint64     `json:"number"`
	Lock     string     `json:"waits_for"`
	Began    time.Time  `json:"waiting_since"`
	Holds    []SeenHold `json:"holds"`
	Blockers []string   `json:"blocked_by"` // owners, as far as is known; some may be over
}

// SeenHold is a hold in the ctx of the wait.
type SeenHold struct {
	Owner string    `json:"owner"`
	Name  string    `json:"name"`
	Since time.Time `json:"since"`
}

// askerPrefix begins the ids of askers: they are told from Clients, which answer, by that.
const askerPrefix = "00000000-"

// NewAsker returns an id for a tool that asks. It has the form of a Client's id.
func NewAsker() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // it never fails
	return fmt.Sprintf("%s%x-%x-%x-%x", askerPrefix, b[:2], b[2:4], b[4:6], b[6:])
}

// IsAsker reports whether an id is a tool's.
func IsAsker(id string) bool { return strings.HasPrefix(id, askerPrefix) }

// Question returns the message that asks a Client to report its waits to id.
func Question(id string) string { return "ask " + id }

var askers = regexp.MustCompile(`^ask ([0-9a-f-]{36})$`)

// ReadQuestion returns the id to answer to.
func ReadQuestion(text string) (id string, ok bool) {
	if m := askers.FindStringSubmatch(text); m != nil {
		return m[1], true
	}
	return "", false
}

// Answers returns the reports of the long waits of a Client. A Client without the option has no graph (nil).
func (g *Graph) Answers(client string) (texts []string) {
	if g == nil {
		return []string{"off " + client}
	}
	for _, w := range g.Waits() {
		if w.Client != client || !w.IsWaiting() || len(texts) == mostSeenWaits {
			continue
		}
		w.Refresh()
		s := Seen{Host: g.host, PID: g.pid, Client: client, Label: w.Label, Number: w.Number, Lock: cut(w.Lock, mostName), Began: w.Began, Blockers: w.Blockers()}
		slices.Sort(s.Blockers)
		s.Blockers = slices.Compact(s.Blockers)
		for _, h := range w.Holds {
			if w.Keeps(h.Owner) {
				s.Holds = append(s.Holds, SeenHold{h.Owner, cut(h.Name, mostName), h.Since.Time})
			}
		}
		text, err := json.Marshal(s)
		if len(text) > mostText {
			s.Holds, s.Blockers = s.Holds[:min(len(s.Holds), 5)], s.Blockers[:min(len(s.Blockers), 20)]
			text, err = json.Marshal(s)
		}
		if err == nil && len(text) <= mostText {
			texts = append(texts, string(text))
		}
	}
	if len(texts) == 0 {
		return []string{"none " + client}
	}
	for i, text := range texts {
		texts[i] = fmt.Sprintf("is %d %d %s", i+1, len(texts), text)
	}
	return texts
}

// Answer is a reply of a Client.
type Answer struct {
	Client string
	Off    bool  // the Client runs without Options.Deadlock
	Of     int   // how many waits it reports
	Wait   *Seen // one of these; nil: there are none
}

var waitless = regexp.MustCompile(`^(none|off) ([0-9a-f-]{36})$`)

// ReadAnswer parses an answer. It reports false if text is not one.
func ReadAnswer(text string) (a Answer, ok bool) {
	if m := waitless.FindStringSubmatch(text); m != nil {
		return Answer{Client: m[2], Off: m[1] == "off"}, true
	}
	var n int
	if _, err := fmt.Sscanf(text, "is %d %d", &n, &a.Of); err != nil || n < 1 || n > a.Of || a.Of > mostSeenWaits {
		return a, false
	}
	parts := strings.SplitN(text, " ", 4)
	a.Wait = new(Seen)
	if len(parts) < 4 || json.Unmarshal([]byte(parts[3]), a.Wait) != nil {
		return a, false
	}
	a.Client = a.Wait.Client
	return a, true
}

// still makes a reported wait a Sleeper that a search can follow.
type still struct {
	*Seen

	found []Step
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

func (s *still) Blockers() []string    { return s.Seen.Blockers }
func (s *still) Refresh()              {}
func (s *still) IsBlocked(string) bool { return true }
func (s *still) Say(_, _ string)       {}
func (s *still) Found(cycle []Step)    { s.found = cycle }

// Cycles returns the cycles among reported waits, one for each wait that is the last of any. The waits were not all reported at the same
// moment, so a cycle may never have existed.
func Cycles(seen []Seen) (all [][]*Seen) {
	type key struct {
		client string
		number uint64
	}
	g, at := New(), make(map[key]*Seen)
	waits := make([]*Wait, len(seen))
	for i := range seen {
		s := &seen[i]
		at[key{s.Client, s.Number}] = s
		w := &Wait{Sleeper: &still{Seen: s}, Number: s.Number, Began: s.Began, Client: s.Client, Lock: s.Lock}
		for _, h := range s.Holds {
			w.Holds = append(w.Holds, Hold{h.Owner, h.Name, Micros{h.Since}})
		}
		g.Add(w)
		waits[i] = w
	}
	for _, w := range waits {
		if !g.SearchCycle(w, 0) {
			continue
		}
		var cycle []*Seen
		for _, step := range w.Sleeper.(*still).found { //nolint:errcheck // no others were added
			cycle = append(cycle, at[key{step.Client, step.Number}])
		}
		all = append(all, cycle)
	}
	return all
}
