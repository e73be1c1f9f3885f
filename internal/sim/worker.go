package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// longestLinger is the longest WithLinger of a worker.
const longestLinger = 5 * time.Second

// longestMinHold is the longest WithMinHold of a worker.
const longestMinHold = 300 * time.Millisecond

// worker is a goroutine of a process, which locks, works and unlocks.
type worker struct {
	process *process
	seed    uint64
	names   []int // in the order in which all workers lock them, so that nobody waits in a circle
	first   int   // the one it wants most
	r       *rand.Rand
}

func newWorker(p *process, plan Worker) *worker {
	names := slices.Sorted(slices.Values(plan.Names))
	return &worker{p, plan.Seed, names, slices.Index(names, plan.Names[0]), rand.New(rand.NewPCG(plan.Seed, 2))}
}

func (k *worker) world() *world { return k.process.world }

func (k *worker) run() {
	for k.sleep(k.process.ctx, k.about(k.world().plan.Think)) {
		from := k.first
		if k.chance(0.3) {
			from = k.r.IntN(len(k.names))
		}
		if !k.section(k.process.ctx, from) {
			return
		}
	}
}

// sleep returns false if the work is over.
func (k *worker) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-k.world().over:
		return false
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	select {
	case <-k.world().over:
		return false
	default:
		return ctx.Err() == nil
	}
}

// about draws a time around a mean.
func (k *worker) about(mean time.Duration) time.Duration {
	return time.Duration(k.r.ExpFloat64() * float64(mean))
}

func (k *worker) chance(p float64) bool { return k.r.Float64() < p }

// want is a worker's next lock or locks.
type want struct {
	lock  rlock.Locker
	do    func(context.Context, func(context.Context) error) error // its Do
	parts []part
	last  int // index in worker.names of its last name

	rw     *rlock.RWMutex     // if it is a side of one
	upper  *rlock.Upgradeable // if it is one
	shared bool
}

// part is one lock of those.
type part struct {
	oracle *oracle
	shared bool
	fixed  bool // its hold may end by itself
	asked  bool // it wants to know whether somebody waits
	least  time.Duration

	lingers time.Duration
}

func (w want) isFixed() bool {
	return slices.ContainsFunc(w.parts, func(p part) bool { return p.fixed })
}

// choose draws the locks, beginning with a name.
func (k *worker) choose(at int) want {
	w := k.single(at)
	if w.parts[0].oracle.name.Kind == Quorum || w.upper != nil || at+1 >= len(k.names) || !k.chance(k.world().plan.Many) {
		return w
	}
	lockers := []rlock.Locker{w.lock}
	for next := at + 1; next < len(k.names) && len(lockers) < 4; next++ {
		if kind := k.world().locks[k.names[next]].name.Kind; kind == Quorum || kind.isCounter() || k.chance(0.3) {
			continue
		}
		other := k.single(next)
		if other.upper != nil {
			continue
		}
		lockers = append(lockers, other.lock)
		w.parts = append(w.parts, other.parts...)
		w.last = next
	}
	w.rw = nil
	k.r.Shuffle(len(lockers), func(a, b int) { lockers[a], lockers[b] = lockers[b], lockers[a] })
	m := rlock.All(lockers...)
	w.lock, w.do = m, m.Do
	return w
}

func (k *worker) single(at int) want {
	o := k.world().locks[k.names[at]]
	p := part{oracle: o}
	c := k.process.locks[0]
	options := k.options(&p)
	if plan := k.world().plan; options == nil && plan.Linger > 0 && (o.name.Kind == Plain || o.name.Kind == Fenced) && k.chance(plan.Linger) {
		p.lingers = pick(k.r, 100*time.Millisecond, time.Second, longestLinger)
		options = []rlock.Option{rlock.WithLinger(p.lingers)}
	}
	w := want{last: at}
	switch o.name.Kind {
	case Plain:
		m := c.Mutex(o.name.Text, options...)
		w.lock, w.do = m, m.Do
	case Fenced:
		m := c.FencedMutex(o.name.Text, options...)
		w.lock, w.do = m, m.Do
	case Fair:
		m := c.FairMutex(o.name.Text, options...)
		w.lock, w.do = m, m.Do
	case ReadWrite:
		if w.rw = c.RWMutex(o.name.Text, options...); o.name.Token {
			w.rw = c.FencedRWMutex(o.name.Text, options...)
		}
		switch {
		case k.chance(0.1) && options == nil:
			w.upper = w.rw.Upgradeable()
			w.lock, w.do, p.shared = w.upper, w.upper.Do, true
		case k.chance(0.7):
			w.lock, w.do, p.shared = w.rw.Read(), w.rw.Read().Do, true
		default:
			w.lock, w.do = w.rw.Write(), w.rw.Write().Do
		}
		w.shared = p.shared
	case Quorum:
		var members []rlock.Locker
		for _, c := range k.process.locks {
			members = append(members, c.Mutex(o.name.Text))
		}
		m := rlock.Quorum(members...)
		w.lock, w.do = m, m.Do
	case Semaphore, Latch, Permits: // no locks
	}
	w.parts = []part{p}
	return w
}

func (k *worker) options(p *part) []rlock.Option {
	all, asked := k.odd(p), k.world().plan.Asked
	if kind := p.oracle.name.Kind; asked > 0 && kind != Quorum && kind != Permits && k.chance(asked) {
		p.asked = true
		all = append(all, rlock.WithAsked())
	}
	return all
}

// odd returns options that change how long a hold lasts.
func (k *worker) odd(p *part) []rlock.Option {
	kind := p.oracle.name.Kind
	if kind == Quorum || !k.chance(k.world().plan.Odd) {
		return nil
	}
	dog := k.world().plan.Watchdog
	switch k.r.IntN(5) {
	case 0:
		p.fixed = true
		return []rlock.Option{rlock.WithLease(between(k.r, 50*time.Millisecond, dog))}
	case 1:
		p.fixed = true
		return []rlock.Option{rlock.WithMaxHold(between(k.r, 50*time.Millisecond, 2*dog))}
	case 2:
		return []rlock.Option{rlock.WithGrace(between(k.r, 10*time.Millisecond, time.Second))}
	case 3: // no more than the oracles wait for after a crash, and time for two round trips in a sixth of it
		return []rlock.Option{rlock.WithWatchdog(dog * 5 / 6)}
	}
	if kind == ReadWrite || kind == Fair || kind == Permits {
		return nil
	}
	p.least = between(k.r, 10*time.Millisecond, longestMinHold)
	return []rlock.Option{rlock.WithMinHold(p.least)}
}

// section locks, works and unlocks once. It returns false if the process is over.
func (k *worker) section(outer context.Context, from int) bool {
	if from >= len(k.names) {
		return true
	}
	began := time.Now()
	switch c := k.world().locks[k.names[from]].counter.(type) {
	case *permits:
		return k.usePermits(outer, c) && k.tookTime(began)
	case *latch:
		return k.useLatch(outer, c) && k.tookTime(began)
	case *expiring:
		return k.useExpiring(outer, c) && k.tookTime(began)
	}
	w := k.choose(from)
	defer k.begin(w)()
	if k.chance(0.2) {
		return k.do(outer, w, began)
	}
	ctx, unlock, err := k.lock(outer, w)
	if err != nil {
		return outer.Err() == nil && !errors.Is(err, rlock.ErrClosed)
	}
	sections := k.enter(ctx, w, began)
	k.work(ctx, w, sections)
	if along := k.world().plan.Along; along > 0 && w.mayExport() && !sections[0].shared && k.chance(along) {
		k.takeAlong(ctx, w, sections[0], unlock)
	} else {
		k.unlock(ctx, w, sections, unlock)
	}
	return k.process.ctx.Err() == nil
}

// tookTime spends a moment if a call failed at once because an earlier one goes on in the background: the loop of a
// real caller takes time. It returns false if the work is over.
func (k *worker) tookTime(began time.Time) bool {
	return time.Since(began) > 0 || k.sleep(k.process.ctx, time.Millisecond)
}

// begin notes that the process is using locks, until the returned function is called.
func (k *worker) begin(w want) func() {
	add := func(n int) {
		k.world().mu.Lock()
		defer k.world().mu.Unlock()
		for _, p := range w.parts {
			k.process.busy[p.oracle] += n
			if len(w.parts) > 1 {
				k.process.many[p.oracle] += n
			}
		}
	}
	add(1)
	return func() { add(-1) }
}

// do is a section by Do.
func (k *worker) do(outer context.Context, w want, began time.Time) bool {
	waited := k.wait(w)
	var inner *section // the first of them
	var left time.Time
	excused := false
	err := w.do(outer, func(ctx context.Context) error {
		waited()
		sections := k.enter(ctx, w, began)
		inner = sections[0]
		k.work(ctx, w, sections)
		excused = k.leave(ctx, w, sections)
		k.lingers(w, sections)
		left = time.Now()
		return nil
	})
	waited()
	o := w.parts[0].oracle
	if inner != nil {
		k.returned(o, "Do", left.Add(k.world().unlock()), w.lock.Name())
	}
	if err != nil && !excused {
		k.check(o, "Do", err, outer.Err() != nil || inner != nil && inner.ctx.Err() != nil || w.isFixed())
	}
	return k.process.ctx.Err() == nil && !errors.Is(err, rlock.ErrClosed)
}

// work is the work inside a section.
func (k *worker) work(ctx context.Context, w want, sections []*section) {
	plan := k.world().plan
	if k.chance(plan.Nest) {
		switch {
		case w.upper != nil:
			k.upgrade(ctx, w, sections[0])
		case k.chance(0.2):
			k.detach(ctx)
		case k.chance(0.5):
			k.again(ctx, w)
		default:
			k.section(ctx, w.last+1)
		}
	}
	k.hold(ctx)
	if w.rw != nil && !w.shared && k.chance(0.2) {
		k.downgrade(ctx, w, sections[0])
	}
}

// hold lasts as long as a section.
func (k *worker) hold(ctx context.Context) {
	plan := k.world().plan
	d := k.about(plan.Hold)
	if k.chance(plan.Long) {
		d = between(k.r, 0, 3*plan.Watchdog)
	}
	k.sleep(ctx, d)
}

// detach starts a goroutine that competes, with this section too, until the section ends.
func (k *worker) detach(ctx context.Context) {
	other := *k
	other.r = rand.New(rand.NewPCG(k.seed, k.r.Uint64()))
	k.world().work.Go(func() { // ends with its one section
		other.section(rlock.Detach(ctx), other.r.IntN(len(other.names)))
	})
}

// lock calls Lock or TryLock, and may leave the call.
func (k *worker) lock(outer context.Context, w want) (context.Context, rlock.UnlockFunc, error) {
	o := w.parts[0].oracle
	asks, wait, latest := k.leaves(outer)
	waited := k.wait(w)
	var ctx context.Context
	var unlock rlock.UnlockFunc
	var err error
	if wait >= 0 {
		ctx, unlock, err = w.lock.TryLock(asks, wait)
	} else {
		ctx, unlock, err = w.lock.Lock(asks)
	}
	waited()
	k.returned(o, "Lock", latest, w.lock.Name())
	if err != nil {
		k.check(o, "Lock", err, !latest.IsZero() || outer.Err() != nil || w.isFixed())
	}
	return ctx, unlock, err
}

// leaves draws whether the caller leaves: the call's ctx, its wait, below 0 if unbounded, and when it must return.
func (k *worker) leaves(outer context.Context) (asks context.Context, wait time.Duration, latest time.Time) {
	plan, began := k.world().plan, time.Now()
	asks, wait = outer, -1
	if k.chance(plan.Leave) {
		d := k.about(plan.Hold + plan.Think + 5*time.Millisecond)
		switch k.r.IntN(4) {
		case 0:
			latest = began.Add(d)
			ctx, cancel := context.WithDeadline(outer, latest)
			context.AfterFunc(k.process.ctx, cancel) // with the process at the latest
			asks = ctx
		case 1:
			latest = began.Add(d)
			ctx, cancel := context.WithCancel(outer)
			time.AfterFunc(d, cancel)
			asks = ctx
		case 2:
			wait = d
			latest = began.Add(max(d, k.leastAttempt()))
		default:
			wait = 0
			latest = began.Add(k.leastAttempt())
		}
	}
	return asks, wait, latest
}

// leastAttempt is the time allowed to the first attempt of a TryLock, however short its wait is.
func (k *worker) leastAttempt() time.Duration {
	if k.process.plan.Options.Replicas > 0 {
		return 2 * time.Second // and as long for the replicas
	}
	return time.Second
}

// wait notes that a call waits, until the returned function is called.
func (k *worker) wait(w want) func() {
	v := &waiter{process: k.process, began: time.Now(), gate: w.upper != nil}
	for _, p := range w.parts {
		v.locks, v.shared = append(v.locks, p.oracle), append(v.shared, p.shared)
	}
	world := k.world()
	world.mu.Lock()
	defer world.mu.Unlock()
	for other := range world.waiting {
		if other.process == k.process && slices.Contains(other.locks, v.locks[0]) {
			v.here++
		}
	}
	world.waiting[v] = struct{}{}
	for _, o := range v.locks {
		world.used[o] = struct{}{}
	}
	return func() {
		for i, o := range v.locks {
			if !v.shared[i] {
				o.left()
			}
		}
		world.mu.Lock()
		defer world.mu.Unlock()
		delete(world.waiting, v)
	}
}

// enter notifies the oracles of a section.
func (k *worker) enter(ctx context.Context, w want, asked time.Time) []*section {
	var all []*section
	for _, p := range w.parts {
		s := &section{process: k.process, ctx: ctx, shared: p.shared, fixed: w.isFixed()}
		if len(w.parts) == 1 {
			s.minHold = p.least        // of several, nobody here knows when each was acquired
			s.owner = rlock.Owner(ctx) // of several it is the last one's
			if p.asked && w.upper == nil {
				s.asked = rlock.Asked(ctx)
			}
		}
		p.oracle.enter(s, asked)
		if len(w.parts) == 1 {
			p.oracle.overtaken(s, asked)
		}
		all = append(all, s)
	}
	return all
}

// leave announces the coming unlock of a section to the oracles. It reports whether the section may have been lost.
func (k *worker) leave(ctx context.Context, w want, sections []*section) bool {
	excused := ctx.Err() != nil
	for i, s := range sections {
		o := w.parts[i].oracle
		excused = o.leave(s) || excused || s.fixed
	}
	return excused
}

func (k *worker) unlock(ctx context.Context, w want, sections []*section, unlock rlock.UnlockFunc) {
	excused := k.leave(ctx, w, sections)
	began := time.Now()
	k.lingers(w, sections)
	err := unlock()
	o := w.parts[0].oracle
	k.returned(o, "unlock", began.Add(k.world().unlock()), w.lock.Name())
	if err == nil && len(sections) == 1 && w.parts[0].lingers == 0 {
		k.world().released(k.process, o, sections[0].owner)
		if !excused && sections[0].minHold == 0 && k.process.quiet() > unnoticed {
			o.unlocked()
		}
	}
	if err != nil && !excused {
		k.check(o, "unlock", err, ctx.Err() != nil)
	}
}

// lingers notes that the process may have locks for a while after an unlock.
func (k *worker) lingers(w want, sections []*section) {
	for i, p := range w.parts {
		if p.lingers > 0 && i < len(sections) {
			k.world().lingers(k.process, p.oracle, sections[i].owner, p.lingers)
		}
	}
}

// again locks the same lock inside.
func (k *worker) again(ctx context.Context, w want) {
	o := w.parts[0].oracle
	inner, unlock, err := w.lock.Lock(ctx)
	if err != nil {
		k.check(o, "Lock of the same again", err, ctx.Err() != nil)
		return
	}
	defer func() { _ = unlock() }() // the section notices
	k.sleep(inner, k.about(k.world().plan.Hold))
}

// upgrade turns a reader into the writer for a while.
func (k *worker) upgrade(ctx context.Context, w want, reader *section) {
	o := w.parts[0].oracle
	began := time.Now()
	waited := k.wait(want{parts: []part{{oracle: o}}})
	inner, unlock, err := w.upper.Upgrade(ctx)
	waited()
	if err != nil {
		k.check(o, "Upgrade", err, ctx.Err() != nil)
		return
	}
	s := &section{process: k.process, ctx: inner, owner: rlock.Owner(inner), within: reader}
	o.enter(s, began)
	k.sleep(inner, k.about(k.world().plan.Hold))
	k.unlock(inner, w, []*section{s}, unlock)
}

// downgrade goes on as a reader for a while. The unlock of the writer has nothing left to do.
func (k *worker) downgrade(ctx context.Context, w want, writer *section) {
	o := w.parts[0].oracle
	excused, before := o.share(writer)
	inner, unlock, err := w.rw.Downgrade(ctx)
	if err != nil {
		if !excused && ctx.Err() == nil {
			k.check(o, "Downgrade", err, false)
		}
		return
	}
	excused = o.leave(writer) || excused
	if _, after := o.share(writer); after != before && !excused {
		k.world().violation(o.name.Text, "a writer was in while p%d downgraded (G1)", k.process.number)
	}
	s := &section{process: k.process, ctx: inner, owner: rlock.Owner(inner), shared: true, fixed: writer.fixed}
	o.enter(s, writer.began)
	k.sleep(inner, k.about(k.world().plan.Hold))
	k.unlock(inner, w, []*section{s}, unlock)
}

// returned notes a call that returned too late.
func (k *worker) returned(o *oracle, what string, latest time.Time, name string) {
	if late := time.Since(latest); !latest.IsZero() && late > time.Millisecond && !k.process.isDead() {
		k.world().violation(o.name.Text, "p%d: %s of %s returned %v late", k.process.number, what, name, late)
	}
}

// check notes an error that nothing explains.
func (k *worker) check(o *oracle, what string, err error, left bool) {
	w := k.world()
	switch {
	case k.process.isDead(), errors.Is(err, rlock.ErrClosed), k.process.ctx.Err() != nil:
		return
	case w.quiet() < w.settle():
		return // a fault may be the cause
	case left && (errors.Is(err, rlock.ErrNotAcquired) || errors.Is(err, rlock.ErrLost) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded)):
		return
	}
	w.violation(o.name.Text, "p%d: %s: %v", k.process.number, what, err)
}
