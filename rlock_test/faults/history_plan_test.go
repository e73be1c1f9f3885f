package faults

import (
	"math/rand/v2"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/go-rlock/rlock/rlock"
)

// histEvent is something that may happen in a run.
type histEvent string

const (
	sections, nested, refused, cancelled, lost, failed histEvent = "sections", "nested", "refused", "cancelled", "lost", "failed"

	inside, beside, escaped, sticks histEvent = "inside", "beside", "escaped", "sticky" // see crowd, escape and failed
	exported, moved, asked          histEvent = "exported", "moved", "asked"            // moved: adopted by another worker

	handOffs, grants, kept histEvent = "hand-offs", "grants", "kept" // see rlock.Stats
	forged, overdue        histEvent = "forged", "overdue"           // a reply by a sabotage; a histOver
)

// histTally counts events, so that a test can require them.
type histTally struct {
	Events   map[histEvent]int64
	Failures []string // of the calls that failed
}

func newHistTally() histTally {
	return histTally{Events: make(map[histEvent]int64)}
}

// add adds the counts of another process or Client.
func (t *histTally) add(o histTally) {
	for e, n := range o.Events {
		t.Events[e] += n
	}
	t.Failures = append(t.Failures, o.Failures...)
}

// has reports whether each event has happened so often.
func (t *histTally) has(events map[histEvent]int64) bool {
	for e, n := range events {
		if t.Events[e] < n {
			return false
		}
	}
	return true
}

// histBounds draws the hand-off bounds of each client. Every other client has the defaults; the rest give the lock to other processes after
// one or two sections, so that a run exercises both.
func histBounds(seed uint64, clients int) []rlock.HandOff {
	rng := rand.New(rand.NewPCG(seed, 1<<32)) // not the stream of a worker or a schedule
	bounds := make([]rlock.HandOff, clients)
	for i := rng.IntN(2); i < clients; i += 2 {
		bounds[i].Most = 1 + rng.IntN(2)
		if rng.IntN(2) == 0 {
			bounds[i].For = time.Duration(1+rng.IntN(50)) * time.Millisecond
		}
	}
	return bounds
}

func (p workPlan) model() porcupine.Model {
	if p.is(histRW) {
		return rwModel
	}
	return histModel
}

// mutex returns an exclusive handle on a lock of the plan's kind.
func (p workPlan) mutex(c *rlock.Client, name string) *rlock.Mutex {
	switch {
	case p.is(histRW):
		return c.RWMutex(name).Write()
	case p.is(histFair):
		return c.FairMutex(name)
	}
	return c.Mutex(name)
}

// histReturn is how long a call may take to return after the nemesis has stopped: the time for which it
// tries, plus its own wait.
const histReturn = 30 * time.Second
