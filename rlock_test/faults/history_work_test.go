package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

const (
	histNoLock     = "no lock"     // some sections run without the lock
	histDeaf       = "deaf"        // sections ignore their ctx
	histForged     = "forged"      // the hand-off of a lost hold is reported as a success
	histShared     = "shared"      // the goroutines of a section take other locks as one owner
	histOldGrant   = "old grant"   // an expired grant of another process is used, without asking Redis
	histOtherGrant = "other grant" // a grant to another owner is used
	histReadAll    = "read all"    // some refused readers enter
	histNoUnlock   = "no unlock"   // some unlocks succeed without a command to Redis
	histLongWait   = 3 * time.Second

	histPlain = "history of plain and fenced locks"
	histRW    = "history of read/write locks"
	histFair  = "history of fair locks"
)

// histReentered has the sections that began with a re-entry, until their workers have noticed. The owner does not
// show this: a competing Lock may have got the owner of a section that had just ended.
var histReentered sync.Map

// histCrew has the workers of one Client, and their history.
type histCrew struct {
	*workProcess

	log    *histLog
	client *rlock.Client
	first  int // number of its first worker

	mu    sync.Mutex // guards the following
	tally histTally
}

func newHistCrew(p *workProcess, log *histLog, client *rlock.Client, first int) *histCrew {
	return &histCrew{workProcess: p, log: log, client: client, first: first, tally: newHistTally()}
}

func (c *histCrew) worker(id int) *histWorker {
	return &histWorker{histCrew: c, id: id, rng: rand.New(rand.NewPCG(c.plan.Seed, uint64(id)))}
}

func (c *histCrew) report() histReport {
	r := c.log.report()
	r.Tally = c.soFar()
	return r
}

// soFar counts the events so far.
func (c *histCrew) soFar() histTally {
	total := newHistTally()
	c.count(func(t *histTally) { total.add(*t) })
	stats := c.client.Stats()
	total.Events[handOffs], total.Events[grants], total.Events[kept] = int64(stats.HandOffs), int64(stats.Grants), int64(stats.Kept)
	total.Events[forged], total.Events[overdue] = c.log.sabotaged()
	return total
}

func (c *histCrew) count(f func(*histTally)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.tally)
}

func (c *histCrew) did(e histEvent) { c.count(func(t *histTally) { t.Events[e]++ }) }

func (c *histCrew) didNot(err error) {
	c.count(func(t *histTally) {
		t.Events[failed]++
		t.Failures = append(t.Failures, err.Error())
	})
}

func (c *histCrew) wrong(err error) { c.say("wrong", strings.ReplaceAll(err.Error(), "\n", "; ")) }

// histWorker takes locks in successive turns, and records its actions and their times.
type histWorker struct {
	*histCrew

	id  int
	rng *rand.Rand
}

func (w *histWorker) chance(percent int) bool { return w.rng.IntN(100) < percent }

// turn takes a random lock in a random way, nested or not.
func (w *histWorker) turn() {
	name := w.plan.Names[w.rng.IntN(len(w.plan.Names))]
	if w.plan.Spoken && w.chance(80) { // a lock that others seldom want
		name = w.plan.Names[w.first/w.plan.Each%len(w.plan.Names)]
	}
	if w.plan.Along > 0 && w.adoptOne() {
		return
	}
	if w.plan.is(histRW) {
		w.rwTurn(name)
		return
	}
	if w.plan.Sabotage == histNoLock && w.chance(5) {
		w.pretend(name)
		return
	}
	w.visit(context.Background(), name, nil, 2)
}

// visit tries to lock name for a section, with up to depth levels of sections inside.
func (w *histWorker) visit(ctx context.Context, name string, outer *histHold, depth int) *histHold {
	h := w.lock(ctx, name, outer)
	if h == nil {
		return nil
	}
	w.section(h, depth)
	if outer == nil && w.plan.Along > 0 && w.chance(w.plan.Along) && !h.left.Load() && !slices.Contains(w.plan.Unguard, name) {
		w.export(h)
	}
	h.unlock(w)
	if again := outer.of(name); again == nil || again.base != h.base {
		h.finish(w)
	}
	if outer == nil && w.chance(10) {
		w.escape(h)
	}
	return h
}

// escape locks again under the ctx of an ended section: that Lock must compete like any other.
func (w *histWorker) escape(h *histHold) {
	if w.visit(context.WithoutCancel(h.ctx), h.name, nil, 0) != nil {
		w.did(escaped)
	}
}

// pretend runs a section without the lock, as if it had the lock.
func (w *histWorker) pretend(name string) {
	owner := fmt.Sprintf("pretender:%d.%d", w.id, histNow())
	now := histNow()
	w.log.add(histEntry{Kind: histLock, Name: name, Owner: owner, Call: now, Return: now, Worker: w.id})
	w.sayIn(owner, familyWrites, now, 0, 0, name)
	w.pause(context.Background())
	now = histNow()
	w.sayIn(owner, familyWrites, now, 0, 0, name)
	w.log.add(histEntry{Kind: histUnlock, Name: name, Owner: owner, Call: now, Return: now, Worker: w.id})
}

// lock is a Lock or TryLock. It returns nil on failure. In a section, outer is its level.
func (w *histWorker) lock(parent context.Context, name string, outer *histHold) *histHold {
	spoken, keeps := w.spoken()
	m := w.mutex(name, spoken...)
	if !keeps && w.chance(40) {
		m = w.mutex(name, append(spoken, rlock.WithLease(w.plan.Watchdog/4+w.duration(w.plan.Watchdog)))...)
	}
	again := outer.of(name)
	lost := again != nil && again.base.isLost()
	ctx, cancel := context.WithCancel(parent)
	h := &histHold{name: name, outer: outer, cancel: cancel, keeps: keeps}
	var err error
	call := histNow()
	switch dice := w.rng.IntN(100); {
	case dice < 15:
		h.ctx, h.release, err = m.TryLock(ctx, 0)
	case dice < 35 || dice >= 60 && outer != nil && (again == nil || again.crowded.Load()):
		// A worker that holds a lock waits only briefly for another lock: the order of names is random.
		h.ctx, h.release, err = m.TryLock(ctx, w.duration(w.plan.Watchdog/4))
	case dice < 60:
		timer := time.AfterFunc(w.duration(w.plan.Watchdog/4), cancel)
		h.ctx, h.release, err = m.Lock(ctx)
		timer.Stop()
	case dice < 80:
		timer := time.AfterFunc(histLongWait, cancel)
		h.ctx, h.release, err = m.Lock(ctx)
		timer.Stop()
	default:
		h.ctx, h.release, err = m.Lock(context.WithoutCancel(ctx))
	}
	e := histEntry{Kind: histLock, Name: name, Worker: w.id, Call: call}
	if err != nil {
		cancel()
		e.Return = histNow()
		w.failed(e, again, lost, err)
		return nil
	}
	_, reentered := histReentered.LoadAndDelete(h.ctx)
	h.whose()
	var fenced bool
	e.Token, fenced = rlock.FencingToken(h.ctx, name)
	e.Return = histNow() // read after the token, which another re-entry may have raised since
	if fenced != slices.Contains(w.plan.Fenced, name) {
		w.wrong(fmt.Errorf("%s: fencing token: %v", name, fenced))
	}
	switch {
	case reentered && again != nil && again.owner == h.owner:
		e.Kind, h.base, h.hold = histReenter, again.base, again.hold
		if around, _ := rlock.FencingToken(again.ctx, name); around < e.Token {
			w.wrong(fmt.Errorf("%s: a level has token %d, its outer level %d", name, e.Token, around))
		}
	case again != nil && !again.left.Load():
		w.wrong(fmt.Errorf("%s: a Lock inside did not re-enter", name))
		fallthrough
	default:
		h.begin(w)
	}
	if h.keeps {
		h.base.keeps.Store(true)
	}
	e.Owner = h.hold
	h.base.enter()
	if w.plan.Sabotage != histDeaf {
		h.watch(w)
	}
	w.log.add(e)
	return h
}

// whose sets the owner. If the hold is already lost, only its unlock is sure to report that.
func (h *histHold) whose() {
	if h.owner = rlock.Owner(h.ctx); h.owner != "" {
		h.hold = h.owner
		return
	}
	err := h.release()
	var loss *rlock.LostError
	if errors.As(err, &loss) {
		h.owner = loss.Owner
	}
	h.hold = h.owner
	h.release = func() error { return err }
}

// begin makes h the first level of a hold, and names the hold.
func (h *histHold) begin(w *histWorker) {
	h.base = &histBase{}
	var reused error
	if h.hold, reused = w.log.next(histKey{h.name, h.owner}); reused != nil {
		w.wrong(reused)
	}
}

func (w *histWorker) mutex(name string, options ...rlock.Option) *rlock.Mutex {
	switch {
	case w.plan.is(histFair):
		return w.client.FairMutex(name, options...)
	case slices.Contains(w.plan.Fenced, name):
		return w.client.FencedMutex(name, options...)
	}
	return w.client.Mutex(name, options...)
}

func (w *histWorker) duration(most time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(most)))
}

// failed checks the error of a Lock, which must have no visible effect. For a re-entry, again is the outer level, and
// lost reports whether its hold was known to be lost.
func (w *histWorker) failed(e histEntry, again *histHold, lost bool, err error) {
	sticky := again != nil && again.says(err)
	// The grant of a cancelled Lock, or of a Lock whose outer hold was lost meanwhile, may be visible for a moment.
	if again != nil && (!sticky || !lost) {
		w.log.doubt(histKey{again.name, again.owner})
	}
	if sticky {
		e.Kind, e.Owner = histRefused, again.hold
		again.base.hear(e.Return, e.Return, w.log.trusted(histKey{again.name, again.owner}))
		w.log.add(e)
	} else if lost && !again.left.Load() {
		w.wrong(fmt.Errorf("a Lock in a lost hold did not return ErrLost: %w", err))
	}
	if sticky {
		w.did(sticks)
	} else {
		w.didFail(err)
	}
	if errors.Is(err, rlock.ErrNotHeld) || errors.Is(err, rlock.ErrClosed) {
		w.wrong(err)
	}
}

// didFail counts the failure of a Lock.
func (w *histWorker) didFail(err error) {
	var loss *rlock.LostError
	switch {
	case errors.As(err, &loss):
	case errors.Is(err, context.Canceled):
		w.did(cancelled)
	case errors.Is(err, rlock.ErrNotAcquired):
		w.did(refused)
	default:
		w.didNot(err)
	}
}

// section is the code under a lock: a stay, more locks, more goroutines.
func (w *histWorker) section(h *histHold, depth int) {
	ctx := h.ctx
	if w.plan.Sabotage == histDeaf {
		ctx = context.WithoutCancel(ctx)
	}
	w.did(sections)
	w.stay(ctx, h)
	switch {
	case w.isAsked(h): // makes room
	case ctx.Err() != nil:
		if h.base.isLost() && w.chance(50) { // tries nevertheless
			w.visit(context.WithoutCancel(h.ctx), h.name, h, 0)
		}
	case depth == 0:
	case w.chance(15):
		w.crowd(h, depth-1)
	case w.chance(40):
		name := h.name
		if w.chance(30) {
			name = w.plan.Names[w.rng.IntN(len(w.plan.Names))]
		}
		if w.visit(h.ctx, name, h, depth-1) != nil {
			w.did(nested)
		}
	}
}

// pause is the duration of a section.
func (w *histWorker) pause(ctx context.Context) {
	pause := w.duration(2 * w.plan.Step)
	if w.chance(3) { // long enough for renewals, and for fixed leases to expire
		pause = w.duration(2 * w.plan.Watchdog)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// stay tells the witness of a pause in the section. Goroutines of one hold are inside together. The parts of a read/write lock's section are
// stays of their own: what is said of one does not hold for the next, such as a reader that was the writer in between.
func (w *histWorker) stay(ctx context.Context, h *histHold) {
	id, mode := h.hold, familyWrites
	if w.plan.is(histRW) {
		id = fmt.Sprintf("%s.%d", id, w.log.stay())
		if !rwWrites(h.owner) {
			mode = familyReads
		}
	}
	in := func() {
		if now := histNow(); ctx.Err() == nil && now < w.log.trusted(histKey{h.name, h.owner}) {
			w.sayIn(id, mode, now, 0, 0, h.name)
		}
	}
	in()
	w.pause(ctx)
	in()
}

// crowd is a section of several goroutines. Some lock the section's own lock, and are inside together. The others
// all lock another name, and exclude each other there. Sometimes the section's own level is unlocked before
// theirs.
func (w *histWorker) crowd(h *histHold, depth int) {
	h.crowded.Store(true)
	other := w.plan.Names[(slices.Index(w.plan.Names, h.name)+w.rng.IntN(max(1, len(w.plan.Names)-1))+1)%len(w.plan.Names)]
	ctx := h.ctx
	if w.plan.Sabotage == histShared && h.of(other) == nil {
		shared, unlock, err := w.mutex(other).TryLock(ctx, w.duration(w.plan.Watchdog))
		if err != nil {
			return
		}
		defer func() { _ = unlock() }()
		ctx = shared // the history does not know this hold
	}
	var wg sync.WaitGroup
	for range 2 + w.rng.IntN(2) {
		name := other
		if w.chance(40) {
			name = h.name
		}
		one := &histWorker{histCrew: w.histCrew, id: w.id, rng: rand.New(rand.NewPCG(w.rng.Uint64(), w.rng.Uint64()))}
		wg.Go(func() {
			in := one.visit(ctx, name, h, depth)
			switch {
			case in == nil:
			case in.base == h.base:
				one.did(inside)
			default:
				one.did(beside)
			}
		})
	}
	if w.chance(20) {
		h.unlock(w)
	}
	wg.Wait()
}
