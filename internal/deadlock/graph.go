// Package deadlock finds cycles of Locks that wait for each other's holds.
//
// The graph has a node for each long wait: a Lock that has waited for a while with holds in its ctx. An edge leads from a wait to each
// owner whose hold blocks it, and from an owner to each wait whose ctx carries that hold. A section is assumed not to end while a Lock
// under it waits. A lock needs every hold in its way to end, so each cycle is a deadlock.
//
// The last wait of a cycle is the one that began last; it is the victim. All holds of the cycle existed when it began, because each is
// older than the wait in its section. So no cycle forms later, and the last wait can find it. A search follows only earlier waits, and
// finds each cycle once.
//
// An edge exists as long as its wait and its hold: neither comes back once it has ended. If all waits and holds of a cycle are found again
// after it was followed once, the cycle existed between the two. That is how a cycle is confirmed.
package deadlock

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// Most bounds the number of waits in a cycle that can be found.
const Most = 32

// Hold is a hold in the ctx of a wait. The tags are those of a probe.
type Hold struct {
	Owner string `json:"o,omitempty"` // the owner field in Redis, unique across all servers
	Name  string `json:"l,omitempty"` // of the lock, for users
	Since Micros `json:"t,omitzero"`
}

// Micros is a time that other processes see in microseconds since 1970.
type Micros struct{ time.Time }

// MarshalJSON writes it.
func (m Micros) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, m.UnixMicro(), 10), nil }

// UnmarshalJSON reads it.
func (m *Micros) UnmarshalJSON(text []byte) error {
	n, err := strconv.ParseInt(string(text), 10, 64)
	m.Time = time.UnixMicro(n)
	return err
}

// Sleeper is a wait as its engine sees it. Its methods may be called at any time, on any goroutine, with no mutex held.
type Sleeper interface {
	// IsWaiting reports whether it still waits, as far as known.
	IsWaiting() bool
	// Keeps reports whether its ctx still carries the hold of that owner, neither unlocked nor lost.
	Keeps(owner string) bool
	// Refresh adds owners to Blockers that came since the last call. It may ask Redis.
	Refresh()
	// Blockers returns the owners whose holds it waits for, as far as known without asking. Some may have ended since.
	Blockers() []string
	// IsBlocked reports whether an owner returned by Blockers has blocked it ever since, if both still exist. It may ask Redis.
	IsBlocked(owner string) bool
	// Say sends a message to the process of an owner that it waits for, without waiting for the result. The message may be lost.
	Say(owner, text string)
	// Found receives a cycle in which this is the last wait, each time a search finds it.
	Found(cycle []Step)
}

// Wait is a waiting Lock. It is immutable.
type Wait struct {
	Sleeper

	Number uint64    // unique in this process
	Secret uint64    // known only to processes that learned of the wait
	Began  time.Time // when the Lock began to wait
	Client string    // the id of its Client
	Label  string    // of the Client; "": none
	Lock   string    // the name of the awaited lock
	Holds  []Hold    // in its ctx when it began
}

var lastNumber atomic.Uint64

// NewWait returns a wait that begins now.
func NewWait(s Sleeper, client, lock string, holds []Hold) Wait {
	return Wait{
		Sleeper: s, Number: lastNumber.Add(1), Secret: rand.Uint64(),
		Began:  time.Now().Round(0).Truncate(time.Microsecond), // as other processes see it
		Client: client, Lock: lock, Holds: holds,
	}
}

// Step is a wait in a cycle, and the hold in its ctx for which the previous wait waits.
type Step struct {
	Host   string `json:"h"`
	PID    int    `json:"p"`
	Client string `json:"c"`
	Label  string `json:"m,omitempty"` // of the Client; "": none
	Number uint64 `json:"n"`
	Secret uint64 `json:"x"`
	Hold
	Lock    string `json:"w"`
	WaitsBy Micros `json:"u"` // when the wait began
}

// before orders waits identically in all processes.
func (s *Step) before(o *Step) bool {
	return cmp.Or(s.WaitsBy.Compare(o.WaitsBy.Time), cmp.Compare(s.Client, o.Client), cmp.Compare(s.Number, o.Number)) < 0
}

func (s *Step) is(w *Wait) bool {
	return s.Client == w.Client && s.Number == w.Number && s.Secret == w.Secret
}

// Graph holds the long waits of a process.
type Graph struct {
	Ahead time.Duration // for tests: how far the process's clock is ahead; set before use

	host string
	pid  int

	mu    sync.Mutex // guards the following; no other lock is taken under it
	waits map[waitKey]*Wait
	of    map[string]map[*Wait]struct{} // by the owners of their holds
	seen  map[visit]bool                // waits of this process to which a probe has come
}

type waitKey struct {
	client string
	number uint64
}

// New returns an empty graph.
func New() *Graph {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &Graph{host: host, pid: os.Getpid(), waits: make(map[waitKey]*Wait), of: make(map[string]map[*Wait]struct{})}
}

// Add adds a long wait, until Remove.
func (g *Graph) Add(w *Wait) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits[waitKey{w.Client, w.Number}] = w
	for _, h := range w.Holds {
		if g.of[h.Owner] == nil {
			g.of[h.Owner] = make(map[*Wait]struct{}, 1)
		}
		g.of[h.Owner][w] = struct{}{}
	}
}

// Remove removes a wait that has ended, if it is in the graph.
func (g *Graph) Remove(w *Wait) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.waits, waitKey{w.Client, w.Number})
	for _, h := range w.Holds {
		if delete(g.of[h.Owner], w); len(g.of[h.Owner]) == 0 {
			delete(g.of, h.Owner)
		}
	}
}

// Waits returns the long waits in the order in which they began.
func (g *Graph) Waits() []*Wait {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.SortedFunc(maps.Values(g.waits), byNumber)
}

func byNumber(a, b *Wait) int { return cmp.Compare(a.Number, b.Number) }

// earlier returns the waits that began before first, and whose ctx carries the hold of that owner. known is false if none of this process
// does, whenever it began. A section may fan out into thousands of waits, so the rest is not looked at.
func (g *Graph) earlier(first *Step, owner string) (all []*Wait, known bool) {
	g.mu.Lock()
	known = len(g.of[owner]) > 0
	for w := range g.of[owner] {
		if g.time(w).before(first) {
			all = append(all, w)
		}
	}
	g.mu.Unlock()
	all = slices.DeleteFunc(all, func(w *Wait) bool { return !w.IsWaiting() || !w.Keeps(owner) })
	slices.SortFunc(all, byNumber)
	return all, known
}

// waitOf returns the wait of a step, if it is in this process and its ctx carries the hold of that owner; otherwise nil.
func (g *Graph) waitOf(s *Step, owner string) *Wait {
	g.mu.Lock()
	w := g.waits[waitKey{s.Client, s.Number}]
	g.mu.Unlock()
	holds := func(h Hold) bool { return h.Owner == owner }
	if w == nil || !s.is(w) || !slices.ContainsFunc(w.Holds, holds) || !w.IsWaiting() || !w.Keeps(owner) {
		return nil
	}
	return w
}

// time returns what orders w among others.
func (g *Graph) time(w *Wait) *Step {
	return &Step{Client: w.Client, Number: w.Number, WaitsBy: Micros{w.Began.Add(g.Ahead)}}
}

// step returns w as the step after a wait for that owner.
func (g *Graph) step(w *Wait, owner string) *Step {
	s := g.time(w)
	s.Host, s.PID, s.Label, s.Secret, s.Lock = g.host, g.pid, w.Label, w.Secret, w.Lock
	if i := slices.IndexFunc(w.Holds, func(h Hold) bool { return h.Owner == owner }); i >= 0 {
		s.Hold = w.Holds[i]
	}
	return s
}

var process = New()

// Apart is a client that simulates another process in tests: Clients on it use its graph.
type Apart struct {
	rueidis.Client

	Graph *Graph
}

// Of returns the graph of the Clients on rdb: that of this process, except in tests.
func Of(rdb rueidis.Client) *Graph {
	if a, ok := rdb.(Apart); ok {
		return a.Graph
	}
	return process
}
