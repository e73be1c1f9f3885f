package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// histPlan says what the workers of a run do. It is sent to other processes as JSON.
type histPlan struct {
	Addr     string   // of the server, or of a proxy before it
	Dir      string   // where the witness's files are
	Names    []string // of the locks
	Fenced   []string // those of them that have fencing tokens
	Unguard  []string // those of them whose keys may be deleted: no witness
	Workers  int
	First    int // number of the first worker
	Seed     uint64
	Watchdog time.Duration
	Pause    time.Duration // a section takes this long on average
	HandOff  rlock.HandOff // the bounds of this client, see histBounds
	Sabotage string        // see histWorker
}

const (
	histNoLock   = "no lock" // now and then a section runs without the lock
	histDeaf     = "deaf"    // no section heeds its ctx
	histForged   = "forged"  // a hand-off of a hold that is gone is said to have succeeded
	histLongWait = 3 * time.Second
)

func (p histPlan) options() rlock.Options {
	return rlock.Options{WatchdogTimeout: p.Watchdog, HandOff: p.HandOff}
}

// histTally counts what happened, so that a test can tell that it happened at all.
type histTally struct {
	Sections, Nested, Refused, Cancelled, Lost, Failed int64
	HandOffs                                           histHandOffs
	Written                                            map[string]int64 // by the witness
	Straddled                                          map[string]int64 // of these, those that the loss of their lock overtook
}

func newHistTally() histTally {
	return histTally{Written: make(map[string]int64), Straddled: make(map[string]int64)}
}

// histCrew is the workers of one process.
type histCrew struct {
	plan   histPlan
	log    *histLog
	client *rlock.Client
	stop   chan struct{} // closed when the workers are to end
	wg     sync.WaitGroup

	mu    sync.Mutex // guards the following
	tally histTally
	err   error // one that no caller should see

	returned atomic.Int64 // workers that have ended
}

func newHistCrew(plan histPlan, log *histLog, client *rlock.Client) *histCrew {
	return &histCrew{
		plan: plan, log: log, client: client, stop: make(chan struct{}),
		tally: newHistTally(),
	}
}

// start lets the workers loose. They are ended by stop, each after its turn.
func (c *histCrew) start() {
	for i := range c.plan.Workers {
		id := c.plan.First + i
		w := &histWorker{histCrew: c, id: id, rng: rand.New(rand.NewPCG(c.plan.Seed, uint64(id)))}
		c.wg.Go(func() {
			defer c.returned.Add(1)
			for !c.stopped() {
				w.turn()
			}
		})
	}
}

func (c *histCrew) stopped() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

func (c *histCrew) report() histReport {
	r := c.log.report()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally.HandOffs = r.Tally.HandOffs
	r.Tally = c.tally
	if c.err == nil {
		c.err = r.Tally.HandOffs.check(c.plan.HandOff)
	}
	if c.err != nil {
		r.Error = c.err.Error()
	}
	return r
}

func (c *histCrew) count(f func(*histTally)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.tally)
}

func (c *histCrew) wrong(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// histWorker takes locks, one turn after the other, and writes down what it did and when.
type histWorker struct {
	*histCrew

	id  int
	rng *rand.Rand
}

func (w *histWorker) chance(percent int) bool { return w.rng.IntN(100) < percent }

// turn takes one of the locks in one of the ways that there are, nested or not.
func (w *histWorker) turn() {
	name := w.plan.Names[w.rng.IntN(len(w.plan.Names))]
	if w.plan.Sabotage == histNoLock && w.chance(5) {
		w.pretend(name)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if h := w.lock(ctx, cancel, name, nil); h != nil {
		w.section(h, 2)
		h.unlock(w)
	}
}

// pretend is a section without the lock, by one who believes to have it.
func (w *histWorker) pretend(name string) {
	owner := fmt.Sprintf("pretender:%d.%d", w.id, histNow())
	now := histNow()
	w.log.add(histEntry{Kind: histLock, Name: name, Owner: owner, Count: 1, Call: now, Return: now, Worker: w.id})
	w.write(context.Background(), name)
	now = histNow()
	w.log.add(histEntry{Kind: histUnlock, Name: name, Owner: owner, Call: now, Return: now, Worker: w.id})
}

// lock is a Lock or TryLock, or a re-entry if outer is of the same name. It returns nil on failure.
func (w *histWorker) lock(ctx context.Context, cancel context.CancelFunc, name string, outer *histHold) *histHold {
	m := w.mutex(name)
	if w.chance(40) {
		m = w.mutex(name, rlock.WithLease(w.plan.Watchdog/4+w.duration(w.plan.Watchdog)))
	}
	var held context.Context
	var unlock rlock.UnlockFunc
	var err error
	call := histNow()
	switch dice := w.rng.IntN(100); {
	case dice < 15:
		held, unlock, err = m.TryLock(ctx, 0)
	case dice < 35 || outer != nil && outer.of(name) == nil: // nested waits are short: the order of names is random
		held, unlock, err = m.TryLock(ctx, w.duration(w.plan.Watchdog/4))
	case dice < 60:
		timer := time.AfterFunc(w.duration(w.plan.Watchdog/4), cancel)
		held, unlock, err = m.Lock(ctx)
		timer.Stop()
	case dice < 80:
		timer := time.AfterFunc(histLongWait, cancel)
		held, unlock, err = m.Lock(ctx)
		timer.Stop()
	default:
		held, unlock, err = m.Lock(context.WithoutCancel(ctx))
	}
	ret := histNow()
	if err != nil {
		w.failed(name, outer, err)
		return nil
	}
	h := &histHold{name: name, owner: rlock.Owner(held), level: 1, outer: outer, ctx: held, release: unlock}
	if again := outer.of(name); again != nil {
		h.level, h.base = again.level+1, again.base
	} else {
		h.base = &histBase{}
		if w.plan.Sabotage != histDeaf {
			h.watch(w)
		}
	}
	token, fenced := rlock.FencingToken(held, name)
	if fenced != slices.Contains(w.plan.Fenced, name) {
		w.wrong(fmt.Errorf("%s: fencing token: %v", name, fenced))
	}
	w.log.add(histEntry{
		Kind: histLock, Name: name, Owner: h.owner, Count: h.level, Call: call, Return: ret, Worker: w.id, Token: token,
	})
	return h
}

func (w *histWorker) mutex(name string, options ...rlock.Option) *rlock.Mutex {
	if slices.Contains(w.plan.Fenced, name) {
		return w.client.FencedMutex(name, options...)
	}
	return w.client.Mutex(name, options...)
}

func (w *histWorker) duration(most time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(most)))
}

// failed looks at the error of a Lock, which has no effect that a user could see.
func (w *histWorker) failed(name string, outer *histHold, err error) {
	if outer != nil { // the grant of one that was cancelled may show for a moment
		w.log.doubt(histKey{name, outer.owner})
	}
	w.count(func(t *histTally) {
		switch {
		case errors.Is(err, rlock.ErrLost):
		case errors.Is(err, context.Canceled):
			t.Cancelled++
		case errors.Is(err, rlock.ErrNotAcquired):
			t.Refused++
		default:
			t.Failed++
		}
	})
	if errors.Is(err, rlock.ErrNotHeld) || errors.Is(err, rlock.ErrClosed) {
		w.wrong(err)
	}
}

// section is the inside of a lock: the witness, a pause, more locks.
func (w *histWorker) section(h *histHold, depth int) {
	ctx := h.ctx
	if w.plan.Sabotage == histDeaf {
		ctx = context.WithoutCancel(ctx)
	}
	w.count(func(t *histTally) { t.Sections++ })
	w.write(ctx, h.name)
	if depth == 0 || ctx.Err() != nil || !w.chance(40) {
		return
	}
	name := h.name
	if w.chance(30) {
		name = w.plan.Names[w.rng.IntN(len(w.plan.Names))]
	}
	inner, cancel := context.WithCancel(h.ctx)
	defer cancel()
	if in := w.lock(inner, cancel, name, h); in != nil {
		w.count(func(t *histTally) { t.Nested++ })
		w.section(in, depth-1)
		in.unlock(w)
	}
}

// write is the witness: it adds 1 to the counter of the name, by read, pause and write. Between the
// last look at ctx and the write is a gap that no lock can close (docs/guarantees.md, "Pauses"); a
// loss that falls into it is counted, so that it can't pass for a fault of the lock, or hide one.
func (w *histWorker) write(ctx context.Context, name string) {
	path := filepath.Join(w.plan.Dir, strconv.Itoa(w.index(name)))
	n, err := readHistCounter(path)
	if err != nil {
		w.wrong(err)
	}
	pause := w.duration(2 * w.plan.Pause)
	if w.chance(3) { // long enough for renewals, and for fixed leases to end
		pause = w.duration(2 * w.plan.Watchdog)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return
	}
	if err := os.WriteFile(path, []byte(strconv.FormatInt(n+1, 10)), 0o600); err != nil {
		w.wrong(err)
	}
	w.count(func(t *histTally) {
		t.Written[name]++
		if ctx.Err() != nil {
			t.Straddled[name]++
		}
	})
}

func (w *histWorker) index(name string) int {
	for i, n := range w.plan.Names {
		if n == name {
			return i
		}
	}
	return -1
}

func readHistCounter(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(text) == 0 {
		return 0, nil // WriteFile truncates first; who sees that is not alone in the section
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}
