package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// Plan is a world before it begins, as its seed determines it.
type Plan struct {
	Seed      uint64
	Time      time.Duration // during which work begins
	Most      int           // scripts, after which it ends early; 0: no bound
	Watchdog  time.Duration
	Servers   int // 1, or the size of a quorum
	Names     []Name
	Processes []Process
	Faults    []Fault
	Lossy     float64 // share of answers that are lost, each with its connection
	Uncounted Uncounted

	Hold, Think time.Duration // means of the short ones
	Long        float64       // share of sections that last up to three watchdog times
	Leave       float64       // share of Locks whose callers leave: a deadline, a cancellation, a wait
	Nest        float64       // share of sections with another Lock inside
	Odd         float64       // share of Locks with an option
	Linger      float64       // share of the other Locks of plain and fenced locks with WithLinger
	Many        float64       // share of Locks of several at once
	Asked       float64       // share of Locks whose holds want to know whether somebody waits
	Along       float64       // share of sections that are exported
	Circles     bool          // locks are taken in any order, with deadlock detection
	Foreign     float64       // share of Locks under a ctx whose methods block during the section
	Patient     float64       // share of Locks, Adopts and Acquires that wait for Redis
	Meddle      float64       // share of calls for a semaphore preceded by a change of its number of permits, or of others' permits
}

// Name is a lock, or a counter.
type Name struct {
	Kind  Kind
	Text  string
	Token bool  // its holds have fencing tokens, for a read/write lock its writers' holds
	Count int64 // permits of a semaphore, or the highest count of a latch
}

// Uncounted says whose subscriptions the servers do not count, though they deliver messages to them. A node of a cluster counts its own
// subscribers only, and so does a master whose replica has them.
type Uncounted int

const (
	nobody Uncounted = iota
	half             // of the processes, on their own channels
	everybody
)

func (u Uncounted) String() string {
	return [...]string{"nobody", "half of the processes", "everybody"}[u]
}

// Kind is one of the kinds of locks, or a counter.
type Kind int

// The kinds of locks.
const (
	Plain Kind = iota
	Fenced
	Fair
	ReadWrite
	Quorum
	kinds // their number
)

// The kinds of counters.
const (
	Semaphore = kinds + iota
	Latch
	Permits // a PermitSemaphore
)

func (k Kind) String() string {
	return [...]string{"plain", "fenced", "fair", "readwrite", "quorum", "semaphore", "latch", "permits"}[k]
}

func (k Kind) isCounter() bool { return k >= kinds }

// Process is one Client and the goroutines that use it.
type Process struct {
	Latency, Jitter time.Duration // of one direction
	Options         rlock.Options // except the watchdog's
	Late            bool          // it connects when it first uses a lock
	Ahead           time.Duration // how far its clock is ahead, for deadlock detection
	Workers         []Worker
}

// Worker is a goroutine.
type Worker struct {
	Seed  uint64
	Names []int // that it locks
}

// Fault is one fault.
type Fault struct {
	At, For time.Duration
	What    What
	Process int // -1: it is a server's
	Server  int
	Name    int
}

// A What is a kind of fault.
type What int

// The faults.
const (
	HeldBack    What = iota // a process's traffic arrives later in both directions: others see a SIGSTOP
	Late                    // the same on its existing connections; new ones work
	Cut                     // its connections end, for both ends
	HalfCut                 // its subscriptions end
	ReplyLost               // the next answer, with its connection
	Silent                  // all traffic is lost, without an error
	Refused                 // its connections end, and new ones are refused
	Killed                  // the process
	Closed                  // its Client, in order
	ShutDown                // its Client, with a second for its sections
	ServerSlow              // the server is stopped, and goes on
	ServerBack              // it restarts with its data
	ServerEmpty             // or without
	Loading                 // it answers that it is not ready
	Busy
	ReadOnly
	OutOfMemory
	NoScript // it has forgotten its scripts
	Deleted  // a key
	Forced   // a lock is forced open
	whats
)

func (w What) String() string {
	return [...]string{
		"held back", "connections held back", "cut", "subscriptions cut", "reply lost", "silent", "refused", "killed", "closed", "shut down", "server stopped",
		"server started again", "server started empty", "LOADING", "BUSY", "READONLY", "OOM", "NOSCRIPT", "key deleted", "forced open",
	}[w]
}

func (f Fault) String() string {
	text := fmt.Sprintf("%v %v", f.At.Round(time.Millisecond), f.What)
	if f.Process >= 0 {
		text += fmt.Sprintf(" p%d", f.Process)
	} else {
		text += fmt.Sprintf(" s%d", f.Server)
	}
	if f.For > 0 {
		text += fmt.Sprintf(" for %v", f.For.Round(time.Millisecond))
	}
	return text
}

// loses reports whether it may make a server forget holds.
func (w What) loses() bool { return w == ServerEmpty || w == Deleted || w == Forced }

// breaks reports whether it may break connections.
func (w What) breaks() bool { return w < Loading && w != Closed && w != ShutDown }

// ends reports whether it ends the process.
func (w What) ends() bool { return w == Killed || w == Closed || w == ShutDown }

// Limits of a plan; zero values are drawn from the seed.
type Limits struct {
	Processes int
	Time      time.Duration
	Kinds     []Kind // of its names
	Counters  bool   // there are semaphores or latches among them
	Permits   bool   // or semaphores of both kinds, with all possible calls
	Asked     bool   // there are holds that want to know whether somebody waits
	Linger    bool   // its locks are kept, by processes that seldom want the same ones
	Circles   bool   // its workers wait for each other in circles
	Crowd     bool   // thousands of goroutines of one process want the same locks
	Calm      bool   // no faults
}

// NewPlan draws a world from its seed.
func NewPlan(seed uint64, l Limits) *Plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := &Plan{Seed: seed, Time: l.Time, Most: 3000, Servers: 1}
	if p.Time == 0 {
		p.Time = between(r, 5*time.Second, 3*time.Minute)
	} else {
		p.Most += int(100 * p.Time.Seconds())
	}
	n := l.Processes
	if n == 0 {
		n = 2 + int(float64(24)*r.Float64()*r.Float64()*r.Float64()) + r.IntN(4)
	}
	p.Watchdog = pick(r, 600*time.Millisecond, 3*time.Second, 10*time.Second, 30*time.Second)
	p.Hold = pick(r, 0, time.Millisecond, 10*time.Millisecond, 100*time.Millisecond)
	p.Think = pick(r, 0, time.Millisecond, 20*time.Millisecond, 500*time.Millisecond)
	if r.IntN(4) == 0 { // a quiet queue: a waiter that misses its wake-up sleeps long
		p.Hold, p.Think = time.Second, pick(r, time.Second, 5*time.Second, 20*time.Second)
	}
	if n > 50 {
		p.Think = max(p.Think, 20*time.Millisecond)
	}
	p.Long = pick(r, 0, 0, 0.01, 0.1)
	p.Leave = pick(r, 0, 0.1, 0.5)
	p.Nest = pick(r, 0, 0.1, 0.4)
	p.Odd = pick(r, 0, 0, 0.2)
	p.Many = pick(r, 0, 0, 0.3)

	p.drawNames(r, l)
	far := pick(r, 200*time.Microsecond, 2*time.Millisecond, 20*time.Millisecond)
	// A renew call has a sixth of the watchdog time. It needs two round trips if the server has forgotten the script,
	// or on a new connection after a call that took too long: if these take longer, it never succeeds again.
	far = min(far, p.Watchdog/60)
	hand := pick(r, rlock.HandOff{}, rlock.HandOff{}, rlock.HandOff{Most: 1}, rlock.HandOff{Most: 64, For: time.Second}, rlock.HandOff{Most: -1})
	replicas := pick(r, 0, 0, 0, 0, 0, 0, 0, 1)
	workers := pick(r, 1, 1, 2, 8)
	if n > 50 {
		workers = 1
	}
	label := ""
	if p.Seed%4 == 3 {
		label = "a process"
	}
	for range n {
		one := Process{Latency: between(r, 50*time.Microsecond, far), Options: rlock.Options{HandOff: hand, Replicas: replicas, Label: label}}
		one.Jitter = time.Duration(r.Float64() * float64(one.Latency))
		for range 1 + r.IntN(workers) {
			one.Workers = append(one.Workers, Worker{Seed: r.Uint64(), Names: p.drawUse(r)})
		}
		p.Processes = append(p.Processes, one)
	}
	if !l.Calm && r.IntN(5) > 0 {
		p.drawFaults(r)
		p.Lossy = pick(r, 0, 0, 0, 0.003, 0.03)
	}
	// rueidis holds a mutex of its pool while it closes a broken connection, and waits for the network then. A
	// goroutine that waits for a mutex stops the clock of a bubble. Only acquires with replicas share that pool.
	if p.Lossy > 0 || slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.What.breaks() }) {
		for i := range p.Processes {
			p.Processes[i].Options.Replicas = 0
		}
	}
	if !l.Counters && !l.Permits && !l.Calm {
		p.Uncounted = pick(r, nobody, nobody, nobody, half, everybody)
	}
	switch {
	case l.Circles:
		p.drawCircles(r)
	case l.Crowd:
		p.drawCrowd(r)
	}
	for i := range p.Names {
		switch n := &p.Names[i]; n.Kind { //nolint:exhaustive // locks have none
		case Semaphore, Permits:
			n.Count = pick[int64](r, 1, 2, 3, 10)
		case Latch:
			n.Count = pick[int64](r, 1, 3, 10, 1_000_000) // the last of these is never counted down to its end, so its sum stays exact
		}
	}
	if l.Asked {
		p.Asked = pick(r, 0.5, 1, 1)
	}
	if hands := p.Processes[0].Options; hands.HandOff.Most >= 0 && replicas == 0 {
		p.Linger = pick(r, 0, 0, 0.5, 1)
	}
	if l.Linger {
		p.lingers(r)
	}
	if !l.Counters && !l.Permits {
		p.Along = pick(r, 0, 0, 0.1, 0.3)
	}
	if l.Permits {
		p.Meddle = pick(r, 0, 0.1, 0.3)
		p.Most /= 3 // scripts for expiring permits take that much longer
	}
	if !l.Circles {
		p.drawOutages(r, l)
	}
	return p
}

// drawOutages has Locks wait for Redis, and processes connect late, some of them before their Redis is there.
func (p *Plan) drawOutages(r *rand.Rand, l Limits) {
	p.Patient = pick(r, 0, 0, 0.5, 1)
	late := pick(r, 0, 0, 0.3, 1)
	if slices.ContainsFunc(p.Processes, func(one Process) bool { return one.Options.Replicas > 0 }) {
		return // see NewPlan: a late Client's connections break at READONLY, too
	}
	for i := range p.Processes {
		one := &p.Processes[i]
		one.Late = r.Float64() < late
		if one.Late && !l.Calm && r.IntN(2) == 0 {
			p.Faults = append(p.Faults, Fault{What: pick(r, Refused, Silent), Process: i, For: between(r, 0, min(p.Time/2, 20*time.Second))})
		}
	}
}

// drawCircles makes workers wait for each other, mostly for those of other processes.
func (p *Plan) drawCircles(r *rand.Rand) {
	p.Circles, p.Odd, p.Leave, p.Long = true, 0, pick(r, 0, 0.2, 0.6), 0
	p.Processes = p.Processes[:min(len(p.Processes), 6)]
	after := pick(r, 5*time.Millisecond, 50*time.Millisecond, 300*time.Millisecond, time.Second)
	skew := pick(r, 0, 0, after/2, 4*after)
	for i := range p.Processes {
		one := &p.Processes[i]
		one.Workers = one.Workers[:min(len(one.Workers), 3)]
		one.Options.Deadlock = rlock.Deadlock{After: after, Action: rlock.DeadlockFail}
		one.Ahead = between(r, -skew, skew)
		for j := range one.Workers {
			one.Workers[j].Names = r.Perm(len(p.Names))
		}
	}
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.Process >= len(p.Processes) || f.What.loses() })
}

// drawCrowd makes thousands of goroutines of one process want the same locks. Most of them give up, or are still waiting when their Client is
// shut down.
func (p *Plan) drawCrowd(r *rand.Rand) {
	p.Leave, p.Nest, p.Many = pick(r, 0.5, 0.9), 0, 0
	one := &p.Processes[r.IntN(len(p.Processes))]
	names := p.drawUse(r)
	for range pick(r, 500, 1000, 3000) {
		one.Workers = append(one.Workers, Worker{Seed: r.Uint64(), Names: names})
	}
	for i := range p.Processes {
		if one := &p.Processes[i]; r.IntN(2) == 0 {
			p.Faults = append(p.Faults, Fault{At: between(r, 0, p.Time), What: pick(r, Closed, ShutDown), Process: i})
			one.Options.Replicas = 0
		}
	}
}

func (p *Plan) drawNames(r *rand.Rand, l Limits) {
	of := l.Kinds
	if l.Circles {
		of = pick(r, []Kind{Plain}, []Kind{Fair}, []Kind{ReadWrite}, []Kind{Plain, Fenced, Fair, ReadWrite})
	}
	if l.Counters {
		of = pick(r, []Kind{Semaphore}, []Kind{Semaphore}, []Kind{Latch}, []Kind{Semaphore, Latch}, []Kind{Latch, Semaphore, Plain})
	}
	if l.Permits {
		of = pick(r, []Kind{Permits}, []Kind{Permits}, []Kind{Permits}, []Kind{Semaphore}, []Kind{Permits, Semaphore}, []Kind{Permits, Plain})
	}
	if l.Linger {
		of = []Kind{Plain, Fenced}
	}
	if of == nil {
		of = []Kind{Kind(r.IntN(int(kinds)))}
		if r.IntN(2) == 0 {
			of = append(of, Kind(r.IntN(int(kinds))), Kind(r.IntN(int(kinds))))
		}
	}
	if slices.Contains(of, Quorum) {
		p.Servers = pick(r, 3, 5)
	}
	many := pick(r, 1, 1, 2, 5, 40)
	if l.Circles {
		many = 2 + r.IntN(4)
	}
	for i := range many {
		k := of[i%len(of)]
		token := k == Fenced || k == ReadWrite && p.Seed%2 == 0
		p.Names = append(p.Names, Name{Kind: k, Text: fmt.Sprintf("%v%02d", k, i), Token: token})
	}
}

// lingers turns a plan into a world whose locks are kept for longer than they are held, and requested now and then.
func (p *Plan) lingers(r *rand.Rand) {
	p.Linger, p.Hold, p.Think = pick(r, 0.5, 1, 1), pick(r, 0, time.Millisecond, 10*time.Millisecond), pick(r, 20*time.Millisecond, 100*time.Millisecond, time.Second)
	for i := range p.Processes {
		one := &p.Processes[i]
		one.Options.Replicas, one.Options.HandOff.Most = 0, max(one.Options.HandOff.Most, 0)
		for k := range one.Workers {
			names := &one.Workers[k].Names
			if own := i % len(p.Names); len(p.Names) > 1 && r.IntN(3) > 0 {
				*names = []int{own}
			}
		}
	}
}

// drawUse draws the names that a worker locks; the first is the commonest.
func (p *Plan) drawUse(r *rand.Rand) []int {
	use := r.Perm(len(p.Names))
	return use[:1+r.IntN(len(use))]
}

func (p *Plan) drawFaults(r *rand.Rand) {
	every := pick(r, p.Time, p.Time/3, 10*time.Second, 2*time.Second)
	of := []What{What(r.IntN(int(whats))), What(r.IntN(int(whats)))}
	if r.IntN(2) == 0 {
		of = of[:0]
		for w := range whats {
			of = append(of, w)
		}
	}
	if p.Servers > 1 { // a quorum tolerates the faults of a minority of its servers
		of = slices.DeleteFunc(of, func(w What) bool { return w.loses() })
	}
	ended := 0
	for at := between(r, 0, every); at < p.Time && len(of) > 0 && len(p.Faults) < 500; at += between(r, every/2, every*3/2) {
		f := Fault{At: at, What: of[r.IntN(len(of))], Process: -1, Server: r.IntN(p.Servers), Name: r.IntN(len(p.Names))}
		if f.What < ServerSlow {
			f.Process = r.IntN(len(p.Processes))
		}
		if f.What.ends() {
			if ended++; 2*ended > len(p.Processes) {
				continue
			}
		}
		switch f.What { //nolint:exhaustive // the others take no time
		case HeldBack, Late, Silent, Refused, ServerSlow, ServerBack, ServerEmpty, Loading, Busy, ReadOnly, OutOfMemory:
			f.For = pick(r, between(r, 0, 100*time.Millisecond), between(r, 0, 3*time.Second), between(r, 0, 2*p.Watchdog))
		}
		p.Faults = append(p.Faults, f)
	}
}

// skew returns how far clocks are apart.
func (p *Plan) skew() time.Duration {
	least, most := time.Duration(0), time.Duration(0)
	for _, one := range p.Processes {
		least, most = min(least, one.Ahead), max(most, one.Ahead)
	}
	return most - least
}

// isCalm reports whether nothing disturbs it.
func (p *Plan) isCalm() bool { return len(p.Faults) == 0 && p.Lossy == 0 }

func (p *Plan) String() string {
	workers := 0
	for _, one := range p.Processes {
		workers += len(one.Workers)
	}
	lost := ""
	if p.Lossy > 0 {
		lost = fmt.Sprintf(" and %.1f %% of answers lost", 100*p.Lossy)
	}
	if p.Uncounted != nobody {
		lost += fmt.Sprintf(", %v uncounted", p.Uncounted)
	}
	if p.Patient > 0 {
		lost += fmt.Sprintf(", %.0f %% of Locks wait for Redis", 100*p.Patient)
	}
	if n := len(slices.DeleteFunc(slices.Clone(p.Processes), func(one Process) bool { return !one.Late })); n > 0 {
		lost += fmt.Sprintf(", %d processes connect late", n)
	}
	return fmt.Sprintf("seed %d: %d processes, %d workers, %d names (%v, …), %d servers, %d faults%s, %v, watchdog %v", p.Seed,
		len(p.Processes), workers, len(p.Names), p.Names[0].Kind, p.Servers, len(p.Faults), lost, p.Time.Round(time.Second), p.Watchdog)
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func between(r *rand.Rand, a, b time.Duration) time.Duration {
	if b <= a {
		return a
	}
	return a + time.Duration(r.Int64N(int64(b-a)))
}
