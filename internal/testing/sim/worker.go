package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

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
	given, blocks := k.abroad(outer)
	ctx, unlock, err := k.lock(given, w)
	if err != nil {
		return outer.Err() == nil && !errors.Is(err, rlock.ErrClosed)
	}
	sections := k.enter(ctx, w, began)
	blocks.shut(k)
	k.work(ctx, w, sections)
	blocks.wait() // an unlock, too, calls the methods
	if along := k.world().plan.Along; along > 0 && w.mayExport() && !sections[0].shared && k.chance(along) {
		k.takeAlong(outer, ctx, w, sections[0], unlock)
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
	if err != nil && inner == nil && w.persists {
		k.isPatient(outer, o, "Do", time.Time{}, w.isFixed(), err)
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
	began := time.Now()
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
	if err != nil && w.persists && wait != 0 {
		if wait > 0 {
			latest = began.Add(wait)
		}
		k.isPatient(outer, o, "Lock", latest, w.isFixed(), err)
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
	v := &waiter{process: k.process, began: time.Now(), gate: w.upper != nil, first: k.process.isFirst()}
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

// mayHave reports whether a change that failed may have been made, or may yet be: another one may be repeated.
func (k *worker) mayHave(err error) bool {
	return err != nil && (k.process.ended.Load() || errors.Is(err, rlock.ErrPending))
}

// check notes an error that nothing explains.
func (k *worker) check(o *oracle, what string, err error, left bool) {
	w := k.world()
	switch {
	case k.process.isDead(), errors.Is(err, rlock.ErrClosed), k.process.ctx.Err() != nil:
		return
	case !left && k.process.isFirst() && !errors.Is(err, rlock.ErrUnreachable):
	case w.quiet() < w.settle():
		return // a fault may be the cause
	case left && (errors.Is(err, rlock.ErrNotAcquired) || errors.Is(err, rlock.ErrLost) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded)):
		return
	}
	w.violation(o.name.Text, "p%d: %s: %v", k.process.number, what, err)
}
