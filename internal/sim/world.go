package sim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

const (
	tick = 50 * time.Millisecond
	// grantLease is for how long a lock that was handed to another process is its, see docs/guarantees.md.
	grantLease = 2 * time.Second
	// placeLease is for how long the place of a waiter in the queue of a fair lock stays.
	placeLease = 5 * time.Second
	// longestClimb is for how long one that wants several locks may have some of them in hand and wait for the others.
	longestClimb = 5 * time.Second
)

// world is a plan that runs.
type world struct {
	plan    *Plan
	began   time.Time
	trace   trace
	servers []*server
	locks   []*oracle
	all     []*process
	of      map[string]*oracle // by its keys
	far     time.Duration      // the longest way to a server
	ticks   int

	over   chan struct{} // closed when no work begins any more
	faults sync.WaitGroup
	work   sync.WaitGroup

	mu         sync.Mutex // guards the following
	r          *rand.Rand
	active     int                  // faults
	disturbing time.Time            // when the first of these began
	outage     time.Duration        // the longest time with one
	connected  bool                 // all processes are
	unlocked   map[string]time.Time // owners, by when their unlock returned
	holding    map[string]int       // how many sections have an owner
	ghosts     map[string]time.Time // what the server has of nobody, by when it was seen
	lastFault  time.Time            // when the last one ended
	ended      int                  // processes that were killed or closed
	waiting    map[*waiter]struct{}
	used       map[*oracle]struct{} // those that have to be looked at
	violations []Violation

	conversation []string // until the first of these
}

// process is one Client, and one for each further server.
type process struct {
	world  *world
	number int
	plan   Process
	ways   []*way
	redis  []rueidis.Client
	locks  []*rlock.Client
	dead   atomic.Bool // killed: what it does is of no account
	ended  atomic.Bool // killed, or its Clients are closed: what it left ends with its lease
	ctx    context.Context
	stop   context.CancelFunc
	closed sync.WaitGroup

	// world.mu guards the following.
	active  int             // faults of its own, or of its server
	began   time.Time       // when the first of these began, or of the last ones
	faulted time.Time       // when the last of these ended
	longest time.Duration   // any of these, so far
	busy    map[*oracle]int // calls, and sections, that have to do with it
	many    map[*oracle]int // those that lock several at once
}

// quiet is for how long the process could reach its servers, and these remembered and answered.
func (p *process) quiet() time.Duration {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	if p.active > 0 {
		return 0
	}
	return time.Since(p.faulted)
}

func (p *process) isDead() bool { return p.dead.Load() }

// Violation is what an oracle says.
type Violation struct {
	At   time.Duration
	Name string
	Text string
}

func (v Violation) String() string {
	return fmt.Sprintf("%v: %s: %s", v.At.Round(time.Microsecond), v.Name, v.Text)
}

// Result is what became of a world.
type Result struct {
	Plan         *Plan
	Violations   []Violation
	Conversation []string // about the lock of the first of these
	Sections     int
	Scripts      int // that ran
	Delivered    int // messages
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

// quiet is for how long there has been no fault.
func (w *world) quiet() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active > 0 {
		return 0
	}
	return time.Since(w.lastFault)
}

// settle is how long the locks may be disturbed by faults that have ended: a dead holder's lease, grants to the dead, and connections
// that rueidis takes for alive.
func (w *world) settle() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.settled()
}

// settled is settle; w.mu is held.
func (w *world) settled() time.Duration {
	return w.plan.Watchdog + time.Duration(w.ended+len(w.all)/4+1)*min(grantLease, w.plan.Watchdog) + 15*time.Second
}

// handOver is how long it takes at most from one section to the next, without faults.
func (w *world) handOver() time.Duration {
	bound := 400*time.Millisecond + w.reach() + longestMinHold
	if w.plan.Many > 0 {
		bound += longestClimb
	}
	return bound
}

// reach is how long it takes at most until a call that waits has its place.
func (w *world) reach() time.Duration { return 100*time.Millisecond + 16*w.far }

// turn is how often a process may have a lock until another one has it that waits.
func (w *world) turn() int {
	return 1 + cmp.Or(w.plan.Processes[0].Options.HandOff.Most, rlock.DefaultHandOffMost)
}

// isInLine reports whether all processes wait in line for plain locks, and each unlock serves the line.
func (w *world) isInLine() bool {
	o := w.plan.Processes[0].Options
	return o.HandOff.Most >= 0 && o.Replicas == 0 && w.plan.Odd == 0 && w.plan.Many == 0
}

// isFree is for how long a lock may be free while a process waits for it that nothing disturbs, whatever became of the others: a grant
// lease, or what the place of a fair lock lasts. See docs/guarantees.md.
func (w *world) isFree(k Kind) time.Duration {
	bound := 2*min(grantLease, w.plan.Watchdog) + w.handOver()
	if k == Fair {
		bound += placeLease
	}
	return bound
}

// unlock is how long an unlock may take: by itself 3 seconds, and 0.1 more for each section around it that is unlocked just before.
func (w *world) unlock() time.Duration {
	if w.plan.isCalm() {
		return w.handOver()
	}
	return 3*time.Second + 500*time.Millisecond
}

// Run runs a world, in a bubble of its own time.
func Run(plan *Plan) *Result { return newWorld(plan).play() }

func newWorld(plan *Plan) *world {
	w := &world{
		plan: plan, over: make(chan struct{}), waiting: make(map[*waiter]struct{}), used: make(map[*oracle]struct{}), r: rand.New(rand.NewPCG(plan.Seed, 1)),
		unlocked: make(map[string]time.Time), holding: make(map[string]int), ghosts: make(map[string]time.Time),
	}
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
		s.renewing = func(owners []string) { w.renewed(s, owners) }
		w.servers = append(w.servers, s)
	}
	w.of = make(map[string]*oracle)
	for _, n := range w.plan.Names {
		o := &oracle{world: w, name: n, sections: make(map[*section]struct{}), empty: w.began, free: w.began, gate: w.began}
		w.locks = append(w.locks, o)
		w.of[n.Text], w.of[gate(n.Text)] = o, o
	}
	errs := make([]error, len(w.plan.Processes))
	var made sync.WaitGroup
	for i, plan := range w.plan.Processes {
		p := &process{world: w, number: i, plan: plan, faulted: w.lastFault, busy: make(map[*oracle]int), many: make(map[*oracle]int)}
		w.far = max(w.far, plan.Latency+plan.Jitter)
		p.ctx, p.stop = context.WithCancel(context.Background()) //nolint:fatcontext // one each
		w.all = append(w.all, p)
		made.Go(func() { errs[i] = p.connect() })
	}
	made.Wait()
	return errors.Join(errs...)
}

func (p *process) connect() error {
	for _, s := range p.world.servers {
		way := newWay(p.world, p.number, s, p.plan.Latency, p.plan.Jitter)
		redis, err := client(way)
		if err != nil {
			return err
		}
		options := p.plan.Options
		options.WatchdogTimeout = p.world.plan.Watchdog
		locks, err := rlock.New(redis, options)
		if err != nil {
			return fmt.Errorf("sim: %w", err)
		}
		p.ways, p.redis, p.locks = append(p.ways, way), append(p.redis, redis), append(p.locks, locks)
	}
	return nil
}

func (w *world) run() {
	w.mu.Lock()
	w.connected = true
	w.mu.Unlock()
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
			w.work.Go(func() { newWorker(p, plan).run() })
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
				close(w.over)
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

// turns is how long it may take until each worker had its turn once more.
func (w *world) turns() time.Duration {
	n := 0
	for _, p := range w.all {
		n += len(p.plan.Workers)
	}
	return time.Duration(n) * 4 * w.handOver() / 10
}

// look has all oracles look.
func (w *world) look() {
	w.mu.Lock()
	waiting, used := slices.Collect(maps.Keys(w.waiting)), w.used
	w.used = make(map[*oracle]struct{}, len(used))
	for _, v := range waiting {
		for _, o := range v.locks {
			w.used[o] = struct{}{}
		}
	}
	w.mu.Unlock()
	for o := range used {
		if o.look() {
			w.uses(o)
		}
	}
	for _, v := range waiting {
		v.look()
	}
	if w.ticks++; w.ticks%20 == 0 {
		w.lookForGhosts()
	}
}

// lookForGhosts reports holds of processes that have nothing to do with the lock any more: what a call without an answer left there is looked for,
// and released (G5).
func (w *world) lookForGhosts() {
	seen := make(map[string]time.Time)
	for i, server := range w.servers {
		of := make(map[string]*process)
		for _, p := range w.all {
			of[p.locks[i].ID()] = p
		}
		server.tick()
		for _, key := range server.redis.Keys() {
			o := w.of[key]
			if o == nil {
				continue
			}
			for _, field := range server.fields(key) {
				p := of[field[:min(36, len(field))]]
				if p == nil || p.ended.Load() {
					continue
				}
				if d := w.haunts(p, o, fmt.Sprint(i, key, field), seen); d > 0 {
					w.violation(o.name.Text, "server %d has %s for %v, and p%d has nothing to do with %s any more (G5)",
						i, short(field), d, p.number, key)
				}
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ghosts = seen
}

// disturbed is how many processes were, at some time since then.
func (w *world) disturbed(since time.Duration) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.all {
		if p.active > 0 || time.Since(p.faulted) < since || p.ended.Load() {
			n++
		}
	}
	return n
}

// uses notes that a lock has to be looked at.
func (w *world) uses(o *oracle) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used[o] = struct{}{}
}

// haunts notes a field of a process that has nothing to do with the lock, and returns for how long it is there if that is too long.
func (w *world) haunts(p *process, o *oracle, name string, seen map[string]time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.busy[o] > 0 {
		return 0
	}
	at, known := w.ghosts[name]
	if !known {
		at = time.Now()
	}
	seen[name] = at
	// One that came late by some time is found within that time and what a try takes. It is looked for as long as its lease, and for a minute at
	// the most; one that comes later ends with its lease.
	d, late := time.Since(at), p.longest+6*time.Second
	if p.longest > min(w.plan.Watchdog, time.Minute) {
		late += w.plan.Watchdog
	}
	if d < late || p.active > 0 || time.Since(p.faulted) < late {
		return 0
	}
	seen[name] = time.Now().Add(time.Hour) // it is told
	return d
}

// released notes that the unlock of an owner has returned. A section that came after it may have the same one, and may have come before that;
// a Lock of several may have it while it waits for another one.
func (w *world) released(p *process, o *oracle, owner string) {
	if owner == "" || len(w.all) > 100 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holding[owner] == 0 && p.many[o] == 0 {
		w.unlocked[owner] = time.Now()
	}
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

// owners are those that sections have, of whichever lock, or had until this instant, in which the next one may get it.
func (w *world) owners() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Collect(maps.Keys(w.holding))
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

// renewed is called when a renewal arrives: none of an owner may have been sent after its unlock (G7).
func (w *world) renewed(s *server, owners []string) {
	w.mu.Lock()
	var ghost string
	for _, owner := range owners {
		at, ok := w.unlocked[owner]
		if ok && time.Since(at) > w.far+time.Millisecond && w.active == 0 && time.Since(w.lastFault) > 5*time.Second {
			ghost = fmt.Sprintf("%s is renewed, which unlocked at %v (G7)", short(owner), w.since(at))
		}
	}
	w.mu.Unlock()
	if ghost != "" {
		w.violation("", "server %d: %s", s.number, ghost)
	}
}

// stuck is a lock that somebody waits for.
func (w *world) stuck() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for v := range w.waiting {
		return v.locks[0].name.Text
	}
	return ""
}

// checkRest looks for what is left when all calls have ended.
func (w *world) checkRest() {
	wait := 4 * time.Second // what lingers, and what was swept
	if !w.plan.isCalm() {
		wait = w.settle() + 3*w.plan.Watchdog + 65*time.Second // what could not be released is tried for a minute
	}
	time.Sleep(wait)
	for _, s := range w.servers {
		for _, channel := range s.redis.PubSubChannels("") {
			w.violation(w.nameIn(channel), "channel %s of server %d has a subscriber %v after the end (G5)", channel, s.number, wait)
		}
		s.tick()
		for _, key := range s.redis.Keys() {
			if !strings.HasPrefix(key, "redisson_lock_token") && !w.isOfTheDead(s, key) {
				w.violation(w.nameIn(key), "key %s of server %d is there %v after the end (G5)", key, s.number, wait)
			}
		}
	}
	for _, p := range w.all {
		p.close()
	}
}

// isOfTheDead reports whether a key is the queue of a fair lock in which only processes are that have ended, or could not leave it for a
// minute: they stay there until somebody wants the lock.
func (w *world) isOfTheDead(s *server, key string) bool {
	w.mu.Lock()
	outage := w.outage
	w.mu.Unlock()
	if outage > 50*time.Second && (strings.HasPrefix(key, "redisson_lock_queue") || strings.HasPrefix(key, "redisson_lock_timeout")) {
		return true
	}
	var entries []string
	switch {
	case strings.HasPrefix(key, "redisson_lock_queue"):
		entries, _ = s.redis.List(key)
	case strings.HasPrefix(key, "redisson_lock_timeout"):
		entries, _ = s.redis.ZMembers(key)
	}
	for _, entry := range entries {
		if !slices.ContainsFunc(w.all, func(p *process) bool { return p.ended.Load() && strings.HasPrefix(entry, p.locks[s.number].ID()) }) {
			return false
		}
	}
	return len(entries) > 0
}

// close closes the Clients of a process, one after the other, and looks at what each leaves behind (G9).
func (p *process) close() {
	w := p.world
	for i, c := range p.locks {
		began := time.Now()
		c.Close()
		took := time.Since(began)
		p.closed.Go(func() { // ends by itself
			time.Sleep(w.reach())
			if p.isDead() || p.quiet() < time.Minute {
				return
			}
			if took > time.Second {
				w.violation("", "Close of p%d took %v (G9)", p.number, took)
			}
			for _, channel := range w.servers[i].redis.PubSubChannels("") {
				if strings.Contains(channel, c.ID()) {
					w.violation(w.nameIn(channel), "p%d is closed, and subscribed to %s (G9)", p.number, channel)
				}
			}
		})
	}
}

func (w *world) ran() int {
	n := 0
	for _, s := range w.servers {
		n += s.ran()
	}
	return n
}

func (w *world) nameIn(text string) string {
	for _, n := range w.plan.Names {
		if strings.Contains(text, n.Text) {
			return n.Text
		}
	}
	return ""
}

// end ends all goroutines.
func (w *world) end() {
	select {
	case <-w.over:
	default:
		close(w.over)
	}
	w.faults.Wait()
	for _, p := range w.all {
		p.stop()
		for _, c := range p.locks {
			p.closed.Go(c.Close)
		}
	}
	w.work.Wait()
	w.lookForGoroutines()
	for _, p := range w.all {
		p.closed.Wait()
		for _, c := range p.redis {
			c.Close()
		}
		for _, way := range p.ways {
			way.kill()
		}
	}
	synctest.Wait()
	for _, s := range w.servers {
		s.redis.Close()
	}
}

// lookForGoroutines looks for those of the library when all of its Clients are closed, and all else still lives (G9).
func (w *world) lookForGoroutines() {
	for _, p := range w.all {
		p.closed.Wait()
	}
	if !w.plan.isCalm() || len(w.all) > 100 {
		return // one may wait for rueidis to give it a connection
	}
	synctest.Wait()
	own := make([]byte, 200)
	own = own[:runtime.Stack(own, false)]
	from := bytes.Index(own, []byte("synctest bubble "))
	bubble := own[from : from+bytes.IndexByte(own[from:], ']')+1]
	all := make([]byte, 1<<22)
	all = all[:runtime.Stack(all, true)]
	for stack := range bytes.SplitSeq(all, []byte("\n\n")) {
		if head, _, _ := bytes.Cut(stack, []byte{'\n'}); bytes.HasSuffix(bytes.TrimSuffix(head, []byte{':'}), bubble) &&
			bytes.Contains(stack, []byte("created by github.com/go-rlock/rlock/")) && !bytes.Contains(stack, []byte("/internal/sim.")) {
			w.violation("", "a goroutine is left after Close (G9): %s", stack)
		}
	}
}

func (w *world) result() *Result {
	r := &Result{Plan: w.plan, Violations: w.violations, Conversation: w.conversation, Delivered: w.trace.delivered()}
	sort.SliceStable(r.Violations, func(a, b int) bool { return r.Violations[a].At < r.Violations[b].At })
	r.Scripts = w.ran()
	for _, o := range w.locks {
		r.Sections += o.entered
		r.Longest = max(r.Longest, o.longest)
	}
	return r
}

// fault has one happen, and returns when it is over.
func (w *world) fault(f Fault) {
	concerned := w.all
	if f.Process >= 0 {
		concerned = w.all[f.Process : f.Process+1]
	}
	w.disturb(concerned, 1)
	w.trace.note(-1, "fault: %v", f)
	defer func() {
		w.disturb(concerned, -1)
		if f.For > 0 {
			w.trace.note(-1, "fault: %v is over", f.What)
		}
	}()
	server := w.servers[f.Server]
	var ways []*way // concerned
	if f.Process >= 0 {
		ways = w.all[f.Process].ways
	} else {
		for _, p := range w.all {
			ways = append(ways, p.ways[f.Server])
		}
	}
	each := func(do func(*way)) {
		for _, way := range ways {
			do(way)
		}
	}
	answer := func(text string) {
		server.answer(text)
		time.Sleep(f.For)
		server.answer("")
	}
	switch f.What { //nolint:exhaustive // the last one is none
	case Late:
		each((*way).holdLinks)
		time.Sleep(f.For)
		each((*way).free)
	case HeldBack, ServerSlow:
		each((*way).hold)
		time.Sleep(f.For)
		each((*way).free)
	case Cut:
		each(func(way *way) { way.cutAll(nil) })
	case HalfCut:
		each(func(way *way) { way.cutAll(func(l *link) bool { return l.listens }) })
	case ReplyLost:
		each(func(way *way) { way.loseReplies(1) })
	case Silent:
		each((*way).silence)
		time.Sleep(f.For)
		each((*way).heal)
	case Refused, ServerBack, ServerEmpty:
		each(func(way *way) { way.refuse(true); way.cutAll(nil) })
		if f.What == ServerEmpty {
			w.forgotten(w.locks)
			server.forget()
			w.forgotten(w.locks)
		}
		time.Sleep(f.For)
		each(func(way *way) { way.refuse(false) })
	case Killed, Closed, ShutDown:
		w.endProcess(w.all[f.Process], f.What)
	case Loading:
		answer("LOADING Redis is loading the dataset in memory")
	case Busy:
		answer("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.")
	case ReadOnly:
		answer("READONLY You can't write against a read only replica.")
	case OutOfMemory:
		answer("OOM command not allowed when used memory > 'maxmemory'.")
	case NoScript:
		server.scripts.forget()
	case Deleted:
		o := w.locks[f.Name]
		w.forgotten([]*oracle{o})
		server.redis.Del(o.name.Text)
		w.forgotten([]*oracle{o})
	case Forced: // as any client does it, in one moment
		o := w.locks[f.Name]
		w.forgotten([]*oracle{o})
		server.redis.Del(o.name.Text)
		w.forgotten([]*oracle{o})
		channel := "redisson_lock__channel:{"
		if o.name.Kind == ReadWrite {
			channel = "redisson_rwlock:{"
		}
		server.redis.Publish(channel+o.name.Text+"}", "1")
	}
}

// disturb notes that a fault begins or ends.
func (w *world) disturb(concerned []*process, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastFault = time.Now()
	if w.active == 0 {
		w.disturbing = w.lastFault
	}
	w.active += n
	w.outage = max(w.outage, w.lastFault.Sub(w.disturbing))
	for _, p := range concerned {
		if p.active == 0 && w.lastFault.Sub(p.faulted) > time.Second {
			p.began = w.lastFault
		}
		p.active += n
		p.faulted = w.lastFault
		p.longest = max(p.longest, p.faulted.Sub(p.began))
	}
}

// forgotten is called before and after the server forgets locks.
func (w *world) forgotten(locks []*oracle) {
	for _, o := range locks {
		o.forgotten()
	}
}

// endProcess ends one.
func (w *world) endProcess(p *process, how What) {
	w.mu.Lock()
	w.ended++
	w.mu.Unlock()
	p.ended.Store(true)
	if how == Killed {
		p.dead.Store(true)
		for _, way := range p.ways {
			way.kill()
		}
	}
	if how == ShutDown {
		for _, c := range p.locks {
			p.closed.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = c.Shutdown(ctx)
			})
		}
		return
	}
	p.stop()
	p.closed.Go(p.close)
}
