package deadlock

import (
	"encoding/json"
	"strings"
)

// Between processes a search continues by probes (Chandy, Misra, Haas: "Distributed deadlock detection", 1983). A probe goes to the process
// of the blocking owner. There it follows each Lock that waits under that owner's hold and began before the wait that started the search.
// The next probe goes to the process of the owner that blocks that Lock, and so on.
//
// A probe that returns to its origin is confirmed by a second lap, in which every wait and hold of the cycle must be found unchanged.
// Everything found in the second lap existed when the first ended, so the whole cycle existed at that moment.
//
// A probe is a hint. The next look makes up for a lost probe. A late or duplicate probe finds other waits, or the same cycle again. A
// forged probe finds no cycle without the secrets of its waits.

// Kind is the kind of probes among the messages between processes.
const Kind = "deadlock"

const (
	// mostProbes bounds the probes sent for one look, or for one received probe.
	mostProbes = 16
	// mostSeen bounds the remembered visits of probes.
	mostSeen = 4096
	// mostText bounds the length of a probe, so that it fits into one message.
	mostText = 8000
	// mostClient bounds the length of a Client id in bytes, because it is remembered.
	mostClient = 36
	// mostName bounds the names in a probe, in bytes. If the probe would be too long, it has no labels, and shortName is the bound.
	mostName, shortName = 512, 48
)

// probe is the message, written as JSON with times in microseconds since 1970.
type probe struct {
	Version int    `json:"v"`
	Round   int    `json:"r"`           // how often the first wait has looked
	Owner   string `json:"o,omitempty"` // lap 1: the owner of the hold for which the last step waits
	At      int    `json:"a,omitempty"` // lap 2: the step to be confirmed next; 0, the first, comes last
	Back    bool   `json:"b,omitempty"` // lap 2: the steps are a cycle
	Steps   []Step `json:"s"`
}

const version = 1

// visit is a wait reached by another wait's search.
type visit struct {
	client string
	number uint64
	round  int
	at     uint64 // the number of the wait
}

// isNew notes a visit, and reports whether it is the first.
func (g *Graph) isNew(v visit) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen == nil || len(g.seen) >= mostSeen {
		g.seen = make(map[visit]bool)
	}
	known := g.seen[v]
	g.seen[v] = true
	return !known
}

// probe sends probes from where a search left the process.
func (s *search) probe() {
	for _, e := range s.exits {
		if s.said < mostProbes {
			s.said++
			p := probe{Round: s.round, Owner: e.owner, Steps: e.from.steps()}
			p.say(e.from.wait, e.owner)
		}
	}
	s.exits = nil
}

// say sends the probe through a wait of this process, to an owner that it waits for.
func (p *probe) say(from *Wait, owner string) {
	p.Version = version
	for _, most := range []int{mostName, shortName} {
		for i := range p.Steps {
			s := &p.Steps[i]
			s.Host, s.Name, s.Lock = cut(s.Host, most), cut(s.Name, most), cut(s.Lock, most)
			if most == shortName {
				s.Label = ""
			}
		}
		if text, err := json.Marshal(p); err == nil && len(text) <= mostText {
			from.Say(owner, string(text))
			return
		}
	}
}

// Hear handles a received probe. It may send others, and ask Redis.
func (g *Graph) Hear(text string) {
	var p probe
	if len(text) > mostText || json.Unmarshal([]byte(text), &p) != nil || p.Version != version || len(p.Steps) == 0 || len(p.Steps) > Most ||
		p.At < 0 || p.At >= len(p.Steps) || len(p.Steps[0].Client) > mostClient {
		return
	}
	if p.Back {
		g.confirm(&p, nil)
	} else {
		g.goOn(&p)
	}
}

// goOn follows a probe through this process.
func (g *Graph) goOn(p *probe) {
	steps := p.Steps
	var from *place
	for i := range steps {
		from = &place{step: &steps[i], before: from, depth: i}
	}
	s := &search{graph: g, first: &steps[0], round: p.Round, isNew: func(w *Wait) bool {
		return g.isNew(visit{steps[0].Client, steps[0].Number, p.Round, w.Number})
	}}
	end := s.follow(p.Owner, from)
	s.exits = nil // no wait here carries that hold
	if end == nil {
		end = s.run(false)
	}
	if end == nil {
		end = s.leave()
	}
	if end == nil {
		return
	}
	cycle := end.cycle()
	g.confirm(&probe{Round: p.Round, Back: true, At: 1 % len(cycle), Steps: cycle}, end.wait)
}

// confirm checks the steps of a cycle again, from p.At on, as far as this process has them, and sends the probe on. At the end of the lap
// the first wait gets the cycle. before is the wait of the previous step if this process has it; nil if the lap has come here for this
// step.
func (g *Graph) confirm(p *probe, before *Wait) {
	steps := p.Steps
	n := len(steps)
	for range n {
		w := g.waitOf(&steps[p.At], steps[p.At].Owner)
		if w == nil {
			if before != nil {
				p.say(before, steps[p.At].Owner)
			}
			return
		}
		next := (p.At + 1) % n
		if !w.IsBlocked(steps[next].Owner) || !w.IsWaiting() || !w.Keeps(steps[p.At].Owner) {
			return
		}
		if p.At == 0 {
			w.Found(steps)
			return
		}
		p.At, before = next, w
	}
}

// cut shortens a name that would fill a probe.
func cut(name string, most int) string {
	if len(name) <= most {
		return name
	}
	return strings.ToValidUTF8(name[:most-len("…")], "") + "…"
}
