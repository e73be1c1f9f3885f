package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"time"
)

const (
	tick = 50 * time.Millisecond
	// grantLease is how long a lock belongs to the process that it was handed to, see docs/guarantees.md.
	grantLease = 2 * time.Second
	// placeLease is how long a waiter's place in the queue of a fair lock lasts.
	placeLease = 5 * time.Second
	// longestClimb is how long a Lock of several may hold some of them while it waits for the others.
	longestClimb = 5 * time.Second
)

// world is a running plan.
type world struct {
	plan    *Plan
	change  func(string) string                  // puts bugs into scripts; nil: there are none
	wrong   func(cmd string, args []string) bool // makes servers answer a command with 0; nil: they run all
	began   time.Time
	trace   trace
	servers []*server
	locks   []*oracle
	all     []*process
	of      map[string]*oracle // by its keys
	far     time.Duration      // the longest latency to a server
	circles *circles           // nil: locks are taken in one order
	ticks   int

	over   <-chan struct{} // closed when no work begins any more
	idles  context.Context // ends then
	finish context.CancelFunc
	faults sync.WaitGroup
	work   sync.WaitGroup

	mu         sync.Mutex // guards the fields below
	r          *rand.Rand
	active     int                  // faults
	disturbing time.Time            // when the first of these began
	outage     time.Duration        // the longest time with one
	connected  bool                 // all processes are
	unlocked   map[string]time.Time // owners, by when their unlock returned
	holding    map[string]int       // sections by owner
	kept       map[string]struct{}  // owners that a process may have had after an unlock
	ghosts     map[string]time.Time // the server's fields of nobody, by when they were seen
	lastFault  time.Time            // when the last one ended
	ended      int                  // processes that were killed or closed
	waiting    map[*waiter]struct{}
	used       map[*oracle]struct{} // those to be looked at
	violations []Violation

	conversation []string // until the first of these
}

// Violation is an oracle's finding.
type Violation struct {
	At   time.Duration
	Name string
	Text string
}

func (v Violation) String() string {
	return fmt.Sprintf("%v: %s: %s", v.At.Round(time.Microsecond), v.Name, v.Text)
}

// Result is the outcome of a world.
type Result struct {
	Plan         *Plan
	Violations   []Violation
	Conversation []string // about the lock of the first of these
	Sections     int
	Scripts      int // that ran
	Delivered    int // messages
	Kept         int // sections of locks that the process had kept, see WithLinger
	Deadlocks    int // that were found
	Longest      time.Duration
}

func (w *world) violation(name, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, Violation{time.Since(w.began), name, fmt.Sprintf(format, args...)})
	if len(w.violations) == 1 {
		w.conversation = w.trace.about(name, 400)
	}
}

func (w *world) since(at time.Time) time.Duration { return at.Sub(w.began).Round(time.Microsecond) }

func (w *world) jitter(most time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.r.Int64N(int64(most)))
}

// loses draws whether an answer to a process is lost, and notes it.
func (w *world) loses(process int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.plan.Lossy == 0 || !w.connected || w.r.Float64() >= w.plan.Lossy || isClosed(w.over) {
		return false
	}
	w.lastFault = time.Now()
	if p := w.all[process]; p.active == 0 {
		p.began, p.faulted = w.lastFault, w.lastFault
	}
	return true
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Run runs a world, in a bubble of its own time.
func Run(plan *Plan) *Result { return newWorld(plan).play() }

func newWorld(plan *Plan) *world {
	w := &world{
		plan: plan, waiting: make(map[*waiter]struct{}), used: make(map[*oracle]struct{}), r: rand.New(rand.NewPCG(plan.Seed, 1)),
		unlocked: make(map[string]time.Time), holding: make(map[string]int), kept: make(map[string]struct{}), ghosts: make(map[string]time.Time),
	}
	if plan.Circles {
		w.circles = &circles{world: w, of: make(map[*worker]*standing)}
	}
	w.idles, w.finish = context.WithCancel(context.Background())
	w.over = w.idles.Done()
	w.began = time.Now()
	w.trace.began = w.began
	w.lastFault = w.began.Add(-time.Hour)
	return w
}

func (w *world) play() *Result {
	if err := w.make(); err != nil {
		w.violation("", "%v", err)
	} else {
		w.run()
	}
	w.end()
	return w.result()
}

func (w *world) make() error {
	for i := range w.plan.Servers {
		s, err := newServer(i)
		if err != nil {
			return err
		}
		s.renewing = func(owners []string, again bool) { w.renewed(s, owners, again) }
		if i == 0 && slices.ContainsFunc(w.plan.Names, func(n Name) bool { return n.Kind.isCounter() }) {
			s.saw = w.saw
		}
		s.change, s.uncounted = w.change, w.plan.Uncounted
		s.wrong = w.wrong
		w.servers = append(w.servers, s)
	}
	w.of = make(map[string]*oracle)
	for _, n := range w.plan.Names {
		o := &oracle{world: w, name: n, sections: make(map[*section]struct{}), tickets: make(map[*along]struct{}), empty: w.began, free: w.began, gate: w.began}
		w.locks = append(w.locks, o)
		w.of[n.Text], w.of[gate(n.Text)] = o, o
		if n.Kind.isCounter() {
			o.counter = newCounter(o)
		}
		if n.Kind == Permits {
			w.of[timeouts(n.Text)], w.of[slots(n.Text)] = o, o
		}
	}
	errs := make([]error, len(w.plan.Processes))
	var made sync.WaitGroup
	for i, plan := range w.plan.Processes {
		p := &process{world: w, number: i, plan: plan, faulted: w.lastFault, busy: make(map[*oracle]int), many: make(map[*oracle]int), keeps: make(map[*oracle]time.Time)}
		w.far = max(w.far, plan.Latency+plan.Jitter)
		p.ctx, p.stop = context.WithCancel(context.Background()) //nolint:fatcontext // one each
		w.all = append(w.all, p)
		made.Go(func() { errs[i] = p.connect() })
	}
	made.Wait()
	return errors.Join(errs...)
}

func (w *world) run() {
	w.mu.Lock()
	w.connected = true
	w.mu.Unlock()
	w.lookAtLate()
	for _, f := range w.plan.Faults {
		w.faults.Go(func() {
			timer := time.NewTimer(f.At - time.Since(w.began))
			defer timer.Stop()
			select {
			case <-timer.C:
				w.fault(f)
			case <-w.over:
			}
		})
	}
	for _, p := range w.all {
		for _, plan := range p.plan.Workers {
			w.work.Go(func() {
				if k := newWorker(p, plan); w.circles != nil {
					k.inCircles()
				} else {
					k.run()
				}
			})
		}
	}
	worked := make(chan struct{})
	go func() { // ends when all workers have
		w.work.Wait()
		close(worked)
	}()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	ended := time.Time{}
	for working := true; working; {
		select {
		case <-worked:
			working = false
		case <-ticker.C:
			w.look()
			switch {
			case ended.IsZero() && (time.Since(w.began) > w.plan.Time || w.plan.Most > 0 && w.ran() > w.plan.Most):
				w.finish()
				w.faults.Wait()
				ended = time.Now()
			case !ended.IsZero() && time.Since(ended) > 2*w.settle()+w.turns():
				w.violation(w.stuck(), "calls have not returned %v after the end of all work", time.Since(ended))
				return
			}
		}
	}
	w.faults.Wait()
	w.checkRest()
}

// entered notes that a section has an owner, maybe after another one.
func (w *world) entered(s *section) {
	if s.owner == "" || s.holds == s.owner {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.holds = s.owner
	w.holding[s.owner]++
	delete(w.unlocked, s.owner)
}

// owners returns the owners of sections, on any lock, including those that ended at this instant, in which the next
// section may get the same owner.
func (w *world) owners() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Concat(slices.Collect(maps.Keys(w.holding)), slices.Collect(maps.Keys(w.kept)))
	for owner, at := range w.unlocked {
		if at.Equal(time.Now()) {
			all = append(all, owner)
		}
	}
	return all
}

// leaves notes that the unlock of a section is about to be called.
func (w *world) leaves(s *section) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holding[s.holds]--; w.holding[s.holds] <= 0 {
		delete(w.holding, s.holds)
	}
}

// renewed is called when a renewal arrives: none of an owner may have begun after its unlock (G7). It may have been
// in flight since before. A new connection of rueidis sends nothing else until its first command is answered, which
// takes a round trip. And a renewal whose script the server did not know comes again as text, after the answer.
func (w *world) renewed(s *server, owners []string, again bool) {
	under := 3 * w.far
	if again {
		under += 2 * w.far
	}
	w.mu.Lock()
	var ghost string
	for _, owner := range owners {
		at, ok := w.unlocked[owner]
		if ok && time.Since(at) > under+time.Millisecond && w.active == 0 && time.Since(w.lastFault) > 5*time.Second {
			ghost = fmt.Sprintf("%s is renewed, which unlocked at %v (G7)", short(owner), w.since(at))
		}
	}
	w.mu.Unlock()
	if ghost != "" {
		w.violation("", "server %d: %s", s.number, ghost)
	}
}

func (w *world) result() *Result {
	r := &Result{Plan: w.plan, Violations: w.violations, Conversation: w.conversation, Delivered: w.trace.delivered()}
	sort.SliceStable(r.Violations, func(a, b int) bool { return r.Violations[a].At < r.Violations[b].At })
	r.Scripts = w.ran()
	for _, p := range w.all {
		for _, c := range p.locks {
			r.Kept += int(c.Stats().Kept)
		}
	}
	for _, o := range w.locks {
		r.Sections += o.entered
		r.Longest = max(r.Longest, o.longest)
	}
	if w.circles != nil {
		r.Deadlocks = w.circles.found
	}
	return r
}
