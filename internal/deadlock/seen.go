package deadlock

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// To show the graph, a tool asks the Clients for their long waits, over their ears:
//
//	question   ask <id>               the answers go to the channel of an ear of that id, which is an asker's: it begins with 00000000-
//	answer     is <n> <of> <JSON>     number n of <of>, from 1
//	           none <id>              that Client has no long wait
//	           off <id>               the Client runs without Options.Deadlock, and does not know
//
// This is for operators; Clients never ask, so the asker's part is in cmd/rlock/asker.go.

// SeenKind is the kind of these messages.
const SeenKind = "waits"

// MostSeenWaits bounds the answers of a Client to one question.
const MostSeenWaits = 200

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
		if w.Client != client || !w.IsWaiting() || len(texts) == MostSeenWaits {
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
