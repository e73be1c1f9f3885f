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
	Kind     string   // of the locks: "", histRW or histFair
	Names    []string // of the locks
	Fenced   []string // those of them that have fencing tokens
	Unguard  []string // those of them whose keys may be deleted: no witness
	Workers  int
	First    int // number of the first worker
	Seed     uint64
	Watchdog time.Duration
	Pause    time.Duration // a section takes this long on average
	HandOff  rlock.HandOff // the bounds of this client, see histBounds
	Along    int           // percent of the holds that are exported
	Spoken   bool          // holds want to be asked and locks are kept, at random
	Sabotage string        // see histWorker
}

const (
	histNoLock     = "no lock"     // now and then a section runs without the lock
	histDeaf       = "deaf"        // no section heeds its ctx
	histForged     = "forged"      // a hand-off of a hold that is gone is said to have succeeded
	histShared     = "shared"      // the goroutines of a section get other locks as one owner
	histOldGrant   = "old grant"   // a grant of another process is used when it is over, and nobody is asked
	histOtherGrant = "other grant" // a grant is used whose owner is another one
	histReadAll    = "read all"    // readers that were refused now and then go in
	histNoUnlock   = "no unlock"   // now and then a hold is said to be over without asking
	histLongWait   = 3 * time.Second

	histRW   = "read/write"
	histFair = "fair"
)

func (p histPlan) options() rlock.Options {
	return rlock.Options{WatchdogTimeout: p.Watchdog, HandOff: p.HandOff, Trace: &rlock.Trace{
		Acquired: func(ctx context.Context, info rlock.AcquiredInfo) {
			if info.Path == rlock.PathReentry && p.Kind != histRW {
				histReentered.Store(ctx, true)
			}
			if info.Path == rlock.PathKept {
				histHadAgain.Store(ctx, true)
			}
		},
	}}
}

// histReentered has the sections that began by a re-entry, until their workers have seen it: the owner alone does not tell, since a Lock that
// competed may have been passed that of a section which had ended just before.
var histReentered sync.Map

// histHadAgain has the sections that began with a lock that was kept, until their workers have seen it.
var histHadAgain sync.Map

// histTally counts what happened, so that a test can tell that it happened at all.
type histTally struct {
	Sections, Nested, Refused, Cancelled, Lost, Failed int64
	Inside, Beside, Escaped, Sticky                    int64 // see crowd, escape and failed
	HandOffs                                           histHandOffs
	Exported, Moved                                    int64            // sections that were, and of these, those that another worker has adopted
	Asked, Kept                                        int64            // see spoken
	Granted                                            int64            // holds that began with a grant of another process, without a command
	Torn                                               int64            // reads of the witness that saw a change
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
	c.tally.HandOffs, c.tally.Granted = r.Tally.HandOffs, r.Tally.Granted
	c.tally.Kept = int64(c.client.Stats().Kept)
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
	if w.plan.Spoken && w.chance(80) { // one that others seldom want
		name = w.plan.Names[w.plan.First/w.plan.Workers%len(w.plan.Names)]
	}
	if w.plan.Along > 0 && w.adoptOne() {
		return
	}
	if w.plan.Kind == histRW {
		w.rwTurn(name)
		return
	}
	if w.plan.Sabotage == histNoLock && w.chance(5) {
		w.pretend(name)
		return
	}
	w.visit(context.Background(), name, nil, 2)
}

// visit locks name, if it gets it, for a section that may have others inside, so many deep.
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

// escape goes on with the ctx of a section that is over: that competes like any other.
func (w *histWorker) escape(h *histHold) {
	if w.visit(context.WithoutCancel(h.ctx), h.name, nil, 0) != nil {
		w.count(func(t *histTally) { t.Escaped++ })
	}
}

// pretend is a section without the lock, by one who believes to have it.
func (w *histWorker) pretend(name string) {
	owner := fmt.Sprintf("pretender:%d.%d", w.id, histNow())
	now := histNow()
	w.log.add(histEntry{Kind: histLock, Name: name, Owner: owner, Call: now, Return: now, Worker: w.id})
	w.add(context.Background(), name)
	now = histNow()
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
		// Whoever has a lock and may have to wait for another does not wait for long: the order of names is random.
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
	_, kept := histHadAgain.LoadAndDelete(h.ctx)
	h.whose()
	if kept {
		w.log.beginRun(histKey{name, h.owner})
	}
	var fenced bool
	e.Token, fenced = rlock.FencingToken(h.ctx, name)
	e.Return = histNow() // behind the token, which another re-entry may have raised since
	if w.plan.Kind == histFair {
		e.Asked, e.Placed, e.Kept = w.log.placeOf(histKey{name, h.owner}, e.Return)
	}
	if fenced != slices.Contains(w.plan.Fenced, name) {
		w.wrong(fmt.Errorf("%s: fencing token: %v", name, fenced))
	}
	switch {
	case reentered && again != nil && again.owner == h.owner:
		e.Kind, h.base, h.hold = histReenter, again.base, again.hold
		if around, _ := rlock.FencingToken(again.ctx, name); around < e.Token {
			w.wrong(fmt.Errorf("%s: a level has token %d, the one around it %d", name, e.Token, around))
		}
	case again != nil && !again.left.Load():
		w.wrong(fmt.Errorf("%s: a Lock inside did not re-enter", name))
		fallthrough
	default:
		h.begin(w)
		w.log.began(histKey{name, h.owner})
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

// whose finds the owner out. If the hold is lost by now, only its unlock is sure to say.
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

// begin makes it the first level of a hold, which gets its name.
func (h *histHold) begin(w *histWorker) {
	h.base = &histBase{}
	var reused error
	if h.hold, reused = w.log.next(histKey{h.name, h.owner}); reused != nil {
		w.wrong(reused)
	}
}

func (w *histWorker) mutex(name string, options ...rlock.Option) *rlock.Mutex {
	switch {
	case w.plan.Kind == histFair:
		return w.client.FairMutex(name, options...)
	case slices.Contains(w.plan.Fenced, name):
		return w.client.FencedMutex(name, options...)
	}
	return w.client.Mutex(name, options...)
}

func (w *histWorker) duration(most time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(most)))
}

// failed looks at the error of a Lock, which has no effect that a user could see. If it was to re-enter a hold, again is
// the level, and lost whether it was known to be lost.
func (w *histWorker) failed(e histEntry, again *histHold, lost bool, err error) {
	var loss *rlock.LostError
	sticky := again != nil && again.says(err)
	// The grant of one that was cancelled, or whose hold was lost meanwhile, may show for a moment.
	if again != nil && (!sticky || !lost) {
		w.log.doubt(histKey{again.name, again.owner})
	}
	if sticky {
		e.Kind, e.Owner = histRefused, again.hold
		again.base.hear(e.Return, e.Return, w.log.trusted(histKey{again.name, again.owner}))
		w.log.add(e)
	} else if lost && !again.left.Load() {
		w.wrong(fmt.Errorf("a Lock in a lost hold did not say so: %w", err))
	}
	w.count(func(t *histTally) {
		switch {
		case sticky:
			t.Sticky++
		case errors.As(err, &loss):
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

// section is the inside of a lock: the witness, a pause, more locks, more goroutines.
func (w *histWorker) section(h *histHold, depth int) {
	ctx := h.ctx
	if w.plan.Sabotage == histDeaf {
		ctx = context.WithoutCancel(ctx)
	}
	w.count(func(t *histTally) { t.Sections++ })
	w.write(ctx, h)
	switch {
	case w.isAsked(h): // makes room
	case ctx.Err() != nil:
		if h.base.isLost() && w.chance(50) { // tries it all the same
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
			w.count(func(t *histTally) { t.Nested++ })
		}
	}
}

// crowd is a section of several goroutines. Some want the lock that the section has: they are inside together. The others
// all want another one, in which they exclude each other. Now and then the section's own level is unlocked
// before theirs are.
func (w *histWorker) crowd(h *histHold, depth int) {
	h.crowded.Store(true)
	other := w.plan.Names[(w.index(h.name)+w.rng.IntN(max(1, len(w.plan.Names)-1))+1)%len(w.plan.Names)]
	ctx := h.ctx
	if w.plan.Sabotage == histShared && h.of(other) == nil {
		shared, unlock, err := w.mutex(other).TryLock(ctx, w.duration(w.plan.Watchdog))
		if err != nil {
			return
		}
		defer func() { _ = unlock() }()
		ctx = shared // which nobody knows to be inside
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
			one.count(func(t *histTally) {
				switch {
				case in == nil:
				case in.base == h.base:
					t.Inside++
				default:
					t.Beside++
				}
			})
		})
	}
	if w.chance(20) {
		h.unlock(w)
	}
	wg.Wait()
}

// write is the witness: it adds 1 to the counter of the name, by read, pause and write, one after the other of those
// in the same hold. Between the last look at ctx and the write is a gap that no lock can close (docs/guarantees.md, "Pauses"); a
// loss that falls into it is counted, so that it can't pass for a fault of the lock, or hide one.
func (w *histWorker) write(ctx context.Context, h *histHold) {
	h.base.writing.Lock()
	defer h.base.writing.Unlock()
	w.add(ctx, h.name)
}

func (w *histWorker) add(ctx context.Context, name string) {
	path := filepath.Join(w.plan.Dir, strconv.Itoa(w.index(name)))
	n, err := readHistCounter(path)
	if err != nil {
		w.wrong(err)
	}
	w.pause(ctx)
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

// pause is what a section takes.
func (w *histWorker) pause(ctx context.Context) {
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
