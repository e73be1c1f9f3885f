package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
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

	over   chan struct{} // closed when no work begins any more
	faults sync.WaitGroup
	work   sync.WaitGroup

	mu         sync.Mutex // guards the following
	r          *rand.Rand
	active     int       // faults
	lastFault  time.Time // when the last one ended
	ended      int       // processes that were killed or closed
	waiting    map[*waiter]struct{}
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
	ctx    context.Context
	stop   context.CancelFunc
	closed sync.WaitGroup

	active  int       // faults of its own, or of its server; world.mu guards it
	faulted time.Time // when the last of these ended; world.mu guards it
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
	return w.plan.Watchdog + time.Duration(w.ended+len(w.all)/4+1)*min(grantLease, w.plan.Watchdog) + 15*time.Second
}

// handOver is how long it takes at most from one section to the next, without faults.
func (w *world) handOver() time.Duration {
	far := time.Duration(0)
	for _, p := range w.all {
		far = max(far, p.plan.Latency+p.plan.Jitter)
	}
	bound := 500*time.Millisecond + 16*far + longestMinHold
	if w.plan.Many > 0 {
		bound += longestClimb
	}
	return bound
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

// unlock is how long an unlock may take.
func (w *world) unlock() time.Duration {
	if len(w.plan.Faults) == 0 {
		return w.handOver()
	}
	return 30 * time.Second
}

// Run runs a world, in a bubble of its own time.
func Run(plan *Plan) *Result { return newWorld(plan).play() }

func newWorld(plan *Plan) *world {
	w := &world{plan: plan, over: make(chan struct{}), waiting: make(map[*waiter]struct{}), r: rand.New(rand.NewPCG(plan.Seed, 1))}
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
		w.servers = append(w.servers, s)
	}
	for _, n := range w.plan.Names {
		w.locks = append(w.locks, &oracle{
			world: w, name: n, sections: make(map[*section]struct{}), empty: w.began,
		})
	}
	errs := make([]error, len(w.plan.Processes))
	var made sync.WaitGroup
	for i, plan := range w.plan.Processes {
		p := &process{world: w, number: i, plan: plan, faulted: w.lastFault}
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
	for _, o := range w.locks {
		o.look()
	}
	w.mu.Lock()
	waiting := slices.Collect(maps.Keys(w.waiting))
	w.mu.Unlock()
	for _, v := range waiting {
		v.look()
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
	if len(w.plan.Faults) > 0 {
		wait = w.settle() + 3*w.plan.Watchdog + 65*time.Second // what could not be released is tried for a minute
	}
	time.Sleep(wait)
	for _, s := range w.servers {
		for _, channel := range s.redis.PubSubChannels("") {
			w.violation(w.nameIn(channel), "channel %s of server %d has a subscriber %v after the end (G5)", channel, s.number, wait)
		}
		for _, key := range s.redis.Keys() {
			if !strings.HasPrefix(key, "redisson_lock_token") {
				w.violation(w.nameIn(key), "key %s of server %d is there %v after the end (G5)", key, s.number, wait)
			}
		}
	}
	for _, p := range w.all {
		began := time.Now()
		for _, c := range p.locks {
			c.Close()
		}
		if took := time.Since(began); took > 2*time.Second && len(w.plan.Faults) == 0 {
			w.violation("", "Close of p%d took %v", p.number, took)
		}
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
	w.active += n
	w.lastFault = time.Now()
	for _, p := range concerned {
		p.active += n
		p.faulted = w.lastFault
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
	for _, c := range p.locks {
		p.closed.Go(c.Close)
	}
}
