package deadlock

import "slices"

// place is a wait reached by a search.
type place struct {
	wait   *Wait // nil: a wait of another process
	step   *Step
	before *place // waits for this one's hold; nil: the search began here
	depth  int    // distance from the beginning
}

// search follows waits of this process.
type search struct {
	graph    *Graph
	first    *Step            // where the search began: the last wait of the cycle
	round    int              // how often that wait has looked
	isNew    func(*Wait) bool // reports whether the search reaches that wait for the first time
	next     []*place
	been     []*place
	followed map[string]bool // owners
	exits    []exit
	said     int // number of owners that got a probe
}

// exit is where a search leaves the process: no wait here carries the hold of that owner.
type exit struct {
	from  *place
	owner string
}

// follow queues the waits that carry an owner's hold. If one of them is where the search began, it returns the end of the path.
func (s *search) follow(owner string, from *place) (end *place) {
	if s.followed[owner] {
		return nil
	}
	if s.followed == nil {
		s.followed = make(map[string]bool)
	}
	s.followed[owner] = true
	reach := func(w *Wait) *place {
		return &place{wait: w, step: s.graph.step(w, owner), before: from, depth: from.depth + 1}
	}
	if w := s.graph.waitOf(s.first, owner); w != nil {
		return reach(w)
	}
	earlier, known := s.graph.earlier(s.first, owner)
	if !known {
		s.exits = append(s.exits, exit{from, owner})
	}
	for _, w := range earlier {
		if from.depth+1 < Most && s.isNew(w) {
			s.next = append(s.next, reach(w))
		}
	}
	return nil
}

// run follows waits until it is back where the search began, or no waits are left. If asks, it asks Redis for their blockers.
func (s *search) run(asks bool) (end *place) {
	for ; len(s.next) > 0; s.next = s.next[1:] {
		p := s.next[0]
		s.been = append(s.been, p)
		if asks {
			p.wait.Refresh()
		}
		for _, owner := range p.wait.Blockers() {
			if end := s.follow(owner, p); end != nil {
				return end
			}
		}
	}
	return nil
}

// leave continues elsewhere after run found nothing: it sends probes from where the search left the process. Only then does it ask Redis,
// which takes as long as a probe: a hold of another process may have come before a wait since it last asked.
func (s *search) leave() (end *place) {
	s.probe()
	s.next, s.been = s.been, nil
	if end := s.run(true); end != nil {
		return end
	}
	s.probe()
	return nil
}

// SearchCycle looks for a cycle in which w is the last wait, and reports whether there is one in this process. The cycle existed at some moment of
// the call, and w.Found gets it. Otherwise probes go to the processes that the search led to; w.Found gets the cycle if one comes back.
// round differs each time; with 0 neither Redis nor other processes are asked.
func (g *Graph) SearchCycle(w *Wait, round int) bool {
	start := &place{wait: w, step: g.step(w, "")}
	seen := make(map[*Wait]bool)
	s := &search{graph: g, first: start.step, round: round, next: []*place{start}, isNew: func(w *Wait) bool {
		known := seen[w]
		seen[w] = true
		return !known
	}}
	end := s.run(false)
	if end == nil && round > 0 {
		end = s.leave()
	}
	if end == nil || !g.isStill(end) {
		return false
	}
	w.Found(end.cycle())
	return true
}

// isStill reports whether the whole path still exists as it was found.
func (g *Graph) isStill(end *place) bool {
	for p := end; p.before != nil; p = p.before {
		if !p.before.wait.IsBlocked(p.step.Owner) {
			return false
		}
	}
	for p := end; p.before != nil; p = p.before { // last, since IsBlocked may take a while
		if !p.wait.IsWaiting() || !p.wait.Keeps(p.step.Owner) {
			return false
		}
	}
	return true
}

// cycle lists the steps of a path that ends where it began.
func (p *place) cycle() []Step {
	steps := p.before.steps()
	steps[0] = *p.step // the same wait, with the hold for which the last one waits
	return steps
}

// steps lists a path from its beginning.
func (p *place) steps() (all []Step) {
	for ; p != nil; p = p.before {
		all = append(all, *p.step)
	}
	slices.Reverse(all)
	return all
}
