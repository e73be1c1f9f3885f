package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/rlock"
)

// Worlds of circles: their workers take locks in any order, so that they wait for each other, and the Clients have
// Options.Deadlock with DeadlockFail. The oracle knows what each worker holds and waits for. A Lock that fails with a
// deadlock must be in one: all waits in its error existed at one moment. And a circle of workers may not last longer
// than it takes to find it.

// circles is that oracle.
type circles struct {
	world *world

	mu    sync.Mutex // guards the fields below
	of    map[*worker]*standing
	past  []standing // that have ended lately
	found int
	said  bool // an undetected one was reported

	graphs []*deadlock.Graph // of the processes
}

// standing is a worker's position: the locks that it holds, and the one that it waits for.
type standing struct {
	client   string
	holds    []step
	waits    *step // nil: it does not wait
	from, to time.Time
}

// step is a lock as a worker takes it.
type step struct {
	name   string
	shared bool
}

func (c *circles) at(k *worker) *standing {
	if c.of[k] == nil {
		c.of[k] = &standing{client: k.process.locks[0].ID()}
	}
	return c.of[k]
}

// waits notes that a worker is about to wait; got notes the outcome.
func (c *circles) waits(k *worker, s step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.at(k)
	at.waits, at.from = &s, time.Now()
}

func (c *circles) got(k *worker, err error) {
	var e *rlock.DeadlockError
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.at(k)
	was := *at
	was.holds, was.to = slices.Clone(at.holds), time.Now()
	c.past = slices.DeleteFunc(append(c.past, was), func(s standing) bool { return time.Since(s.to) > time.Minute })
	if errors.As(err, &e) {
		c.found++
		c.check(k, e)
	}
	if err == nil {
		at.holds = append(at.holds, *at.waits)
	}
	at.waits = nil
}

// apart returns a client for another process, whose clock is ahead by that much.
func (c *circles) apart(redis rueidis.Client, ahead time.Duration) rueidis.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := deadlock.New()
	g.Ahead = ahead
	c.graphs = append(c.graphs, g)
	return deadlock.Apart{Client: redis, Graph: g}
}

// rest looks for leftovers after all calls have ended.
func (c *circles) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.graphs {
		for _, w := range g.Waits() {
			c.world.violation(w.Lock, "a wait of %s is in the graph after the end (G5)", w.Client)
		}
	}
}

// left notes that a worker is about to unlock all its locks.
func (c *circles) left(k *worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at(k).holds = nil
}

// check checks that all waits of a deadlock existed at one moment. mu is held.
func (c *circles) check(k *worker, e *rlock.DeadlockError) {
	var all [][]standing // that each of its waits may be
	for i, w := range e.Cycle {
		if w.WaitsFor != e.Cycle[(i+1)%len(e.Cycle)].Holds {
			c.world.violation(w.WaitsFor, "no deadlock: p%d got %v", k.process.number, e)
		}
		if w.WaitingSince.After(e.Cycle[0].WaitingSince) {
			c.world.violation(w.WaitsFor, "p%d gets a deadlock, although its wait is not the last one: %v", k.process.number, e)
		}
		var some []standing
		for _, at := range c.of {
			if at.waits != nil && at.isIn(w) {
				now := *at
				now.to = time.Now()
				some = append(some, now)
			}
		}
		for _, at := range c.past {
			if at.isIn(w) {
				some = append(some, at)
			}
		}
		all = append(all, some)
	}
	for _, some := range all {
		for _, at := range some { // if there is such a moment, one of them begins then
			if !slices.ContainsFunc(all, func(others []standing) bool {
				return !slices.ContainsFunc(others, func(o standing) bool { return !o.from.After(at.from) && !o.to.Before(at.from) })
			}) {
				return
			}
		}
	}
	c.world.violation(e.Name, "no deadlock: the waits reported to p%d did not exist at one moment: %v", k.process.number, e)
}

func (s *standing) isIn(w rlock.DeadlockWait) bool {
	return s.client == w.Client && s.waits.name == w.WaitsFor && slices.ContainsFunc(s.holds, func(h step) bool { return h.name == w.Holds })
}

// within returns how long a circle may last: the time after which its last wait looks, a quarter more if a probe
// comes too early, and the latencies of two laps. After a failure, pauses double, and the next look may be as far
// away as the failure lasted. The same if clocks differ: the apparent last wait may have begun before the circle
// closed, by the difference.
func (w *world) within() time.Duration {
	after := w.plan.Processes[0].Options.Deadlock.After
	bound := 2*after + 4*time.Duration(len(w.all)+4)*w.far + w.reach()
	bound += 2 * w.plan.skew()
	if !w.plan.isCalm() {
		bound += 2*w.settle() + 60*time.Second
	}
	return bound
}

// look looks for circles that last too long.
func (c *circles) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := make(map[*worker]*standing)
	for k, at := range c.of {
		if at.waits != nil && time.Since(at.from) > c.world.within() && !k.process.isDead() {
			old[k] = at
		}
	}
	// A worker that does not wait for an old standing is in no circle of them, and neither is anybody who waits for
	// it.
	for removed := true; removed; {
		removed = false
		for k, at := range old {
			blocked := false
			for other, o := range old {
				blocked = blocked || other != k && slices.ContainsFunc(o.holds, func(h step) bool {
					return h.name == at.waits.name && (!h.shared || !at.waits.shared)
				})
			}
			if !blocked {
				delete(old, k)
				removed = true
			}
		}
	}
	if len(old) == 0 || c.said {
		return
	}
	var texts []string
	for k, at := range old {
		texts = append(texts, fmt.Sprintf("p%d holds %v and waits for %v since %v", k.process.number, at.holds, *at.waits, c.world.since(at.from)))
	}
	slices.Sort(texts)
	c.world.violation("", "an undetected deadlock: %s", strings.Join(texts, "; "))
	c.said = true
}

// inCircles works in nested sections, whose locks have no order.
func (k *worker) inCircles() {
	for k.sleep(k.process.ctx, k.about(k.world().plan.Think)) {
		if !k.chain(k.process.ctx, k.r.Perm(len(k.names))[:1+k.r.IntN(min(4, len(k.names)))]) {
			return
		}
	}
}

// chain takes locks one inside the other. It returns false if the process is over.
func (k *worker) chain(ctx context.Context, names []int) bool {
	c := k.world().circles
	type held struct {
		ctx      context.Context
		want     want
		sections []*section
		unlock   rlock.UnlockFunc
		end      func()
	}
	var all []held
	goesOn := true
	for _, at := range names {
		if len(all) > 0 && k.chance(0.5) { // some wait for its locks before it begins to wait itself
			k.sleep(ctx, k.about(4*k.process.plan.Options.Deadlock.After))
		}
		w := k.single(at)
		if w.upper != nil {
			w.upper, w.lock, w.shared = nil, w.rw.Read(), true
		}
		began, end := time.Now(), k.begin(w)
		c.waits(k, step{w.lock.Name(), w.shared})
		waited := k.wait(w)
		var inner context.Context
		var unlock rlock.UnlockFunc
		var err error
		wait := time.Duration(-1)
		if plan := k.world().plan; k.chance(plan.Leave) { // about when somebody looks
			wait = k.about(2 * plan.Processes[0].Options.Deadlock.After)
			inner, unlock, err = w.lock.TryLock(ctx, wait)
		} else {
			inner, unlock, err = w.lock.Lock(ctx)
		}
		waited()
		c.got(k, err)
		if err != nil {
			end()
			if !errors.Is(err, rlock.ErrDeadlock) {
				k.check(w.parts[0].oracle, "Lock", err, wait >= 0 || ctx.Err() != nil || isClosed(k.world().over))
			}
			goesOn = k.process.ctx.Err() == nil && !errors.Is(err, rlock.ErrClosed)
			break
		}
		ctx = inner //nolint:fatcontext // each is a section in the one before
		all = append(all, held{inner, w, k.enter(inner, w, began), unlock, end})
	}
	k.hold(ctx)
	c.left(k)
	for _, h := range slices.Backward(all) {
		k.unlock(h.ctx, h.want, h.sections, h.unlock)
		h.end()
	}
	return goesOn && k.process.ctx.Err() == nil
}
