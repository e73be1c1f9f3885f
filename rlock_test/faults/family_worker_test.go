package faults

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// familyPlan is the plan for the workers of a process, passed as JSON.
type familyPlan struct {
	Peer     string
	Servers  []familyServer
	Kinds    []string // of the locks, see familyTurns
	Each     int      // goroutines per kind
	Seed     uint64
	Watchdog time.Duration
	Step     time.Duration // average length of a step; a section has a few
	Rest     time.Duration // average time between two turns
	Outages  bool          // Redis may be unreachable: calls may report that, and holds may be lost
	Sabotage string        // see histPlan; workers do histNoLock, their Clients the others
}

// familyServer is a server and the proxy through which a Client connects to it.
type familyServer struct{ Addr, Via string }

const (
	familyMaxHold = 300 * time.Millisecond
	familyMinHold = 10 * time.Millisecond
	familyGrace   = 200 * time.Millisecond
)

// familyTurns has a worker's turn for each kind of lock.
var familyTurns = map[string]func(*familyWorker){
	"plain":  func(w *familyWorker) { w.visit(w.clients[0].Mutex(w.kind)) },
	"fenced": func(w *familyWorker) { w.visit(w.clients[0].FencedMutex(w.kind)) },
	"fair":   func(w *familyWorker) { w.visit(w.clients[0].FairMutex(w.kind)) },
	"without re-entry": func(w *familyWorker) {
		w.visit(w.clients[0].Mutex(w.kind, rlock.WithoutReentry()))
	},
	"min hold": func(w *familyWorker) { w.visit(w.clients[0].Mutex(w.kind, rlock.WithMinHold(familyMinHold))) },
	// With a grace: a process whose ctx is cancelled a little late must still be alone inside.
	"max hold": func(w *familyWorker) {
		w.visit(w.clients[0].Mutex(w.kind, rlock.WithMaxHold(familyMaxHold), rlock.WithGrace(familyGrace)))
	},
	"grace":       func(w *familyWorker) { w.visit(w.clients[0].Mutex(w.kind, rlock.WithGrace(familyGrace))) },
	"read/write":  (*familyWorker).readOrWrite,
	"all":         func(w *familyWorker) { w.visitSome(w.all(2)) },
	"all of four": func(w *familyWorker) { w.visitSome(w.all(4)) },
	"quorum":      func(w *familyWorker) { w.visit(w.quorum()) },
	"semaphore":   (*familyWorker).useSemaphore,
	"latch":       (*familyWorker).useLatch,
	"high latch":  (*familyWorker).useHighLatch,
	"permits":     (*familyWorker).usePermits,
}

// all returns n locks on two Clients, to be taken together.
func (w *familyWorker) all(n int) (all []rlock.Locker) {
	for i := range n {
		all = append(all, w.clients[i*2/n].Mutex(fmt.Sprintf("%s:%d", w.kind, i)))
	}
	return all
}

func (w *familyWorker) quorum() rlock.Locker {
	var all []rlock.Locker
	for _, c := range w.clients {
		all = append(all, c.Mutex(w.kind))
	}
	return rlock.Quorum(all...)
}

// visitSome takes two or more of the locks together in random order, or one of them alone.
func (w *familyWorker) visitSome(all []rlock.Locker) {
	w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if w.chance(30) {
		w.visit(all[0])
		return
	}
	some := all[:2+w.rng.IntN(len(all)-1)]
	names := make([]string, len(some))
	for i, l := range some {
		names[i] = l.Name()
	}
	w.visit(rlock.All(some...), names...)
}

// familyProcess is a process of workers. Its parent sends commands by lines on stdin; it reports events on stdout.
type familyProcess struct {
	plan    familyPlan
	clients []*rlock.Client
	rdbs    []rueidis.Client // of the Clients
	turns   sync.RWMutex     // read-locked by a worker during its turn
	holding atomic.Bool      // the turns must end soon
	over    atomic.Bool
	workers sync.WaitGroup

	mu sync.Mutex // guards standard output
}

// say writes one line at once, so that the parent gets all lines written before a kill.
func (p *familyProcess) say(words ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = os.Stdout.WriteString(strings.Join(words, "\t") + "\n")
}

// familyRole is the main function of a familyProcess. Its commands:
//
//	go     starts the turns, without an answer
//	hold   waits for the current turns, stops further ones, and answers "idle"
//	quiet  waits until the library's background work ends, and answers "quiet <goroutines>": how many still run
//	each   takes each lock, which must be free, and answers "idle"
//	end    ends the idle workers and the clients, and answers "left <goroutines>"
func familyRole(args []string) int {
	p := &familyProcess{}
	if err := json.Unmarshal([]byte(args[0]), &p.plan); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := p.connect(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	p.turns.Lock()
	for i, kind := range p.plan.Kinds {
		for j := range p.plan.Each {
			n := uint64(i*p.plan.Each + j)
			w := &familyWorker{familyProcess: p, kind: kind, number: n, rng: rand.New(rand.NewPCG(p.plan.Seed, n))}
			p.workers.Go(w.run) // ended by the command end
		}
	}
	p.say("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		go p.do(in.Text()) // ends with the command, or with the process when the parent dies
	}
	return 0
}

// connect makes a Client for each server.
func (p *familyProcess) connect() error {
	for _, s := range p.plan.Servers {
		rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr}, DialCtxFn: s.dial, ClientName: p.plan.Peer})
		if err != nil {
			return err
		}
		switch p.plan.Sabotage {
		case histReadAll:
			rdb = histRedis{rdb, newHistLog(), p.plan.Sabotage}
		case countTwice, countNever, countBelief, leasedShort, leasedSlot, leasedAgain:
			rdb = countRedis{rdb, newHistLog(), p.plan.Sabotage}
		}
		c, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: p.plan.Watchdog})
		if err != nil {
			return err
		}
		p.clients, p.rdbs = append(p.clients, c), append(p.rdbs, rdb)
	}
	return nil
}

// do executes a command of the parent, which waits for the answer.
func (p *familyProcess) do(command string) {
	switch command {
	case "go":
		p.holding.Store(false)
		p.turns.Unlock()
	case "hold":
		p.holding.Store(true)
		p.turns.Lock()
		p.say("idle")
	case "quiet":
		p.say("quiet", strconv.Itoa(histLeftOf(0, histCalling...)))
	case "each":
		p.each()
		p.say("idle")
	case "end":
		p.over.Store(true)
		p.turns.Unlock()
		p.workers.Wait()
		left := histLeft(p.goroutines())
		for _, c := range p.clients {
			c.Close()
		}
		p.say("left", strconv.Itoa(left+histLeft(0)))
	}
}

func (s familyServer) dial(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	if addr == s.Addr {
		addr = s.Via
	}
	return d.DialContext(ctx, "tcp", addr)
}

// goroutines returns the number of goroutines that the clients always have, see histPlan.goroutines.
func (p *familyProcess) goroutines() int {
	n := 2 * len(p.clients)
	for _, kind := range p.plan.Kinds {
		if kind == "fair" {
			n++
		}
	}
	return n
}

// each takes each lock in turn.
func (p *familyProcess) each() {
	for _, kind := range p.plan.Kinds {
		w := &familyWorker{familyProcess: p, kind: kind, number: familyLast, atOnce: true, rng: rand.New(rand.NewPCG(p.plan.Seed, familyLast))}
		familyTurns[kind](w)
	}
}

// familyWorker takes locks of one kind.
type familyWorker struct {
	*familyProcess

	kind   string
	number uint64
	rng    *rand.Rand
	stays  int
	atOnce bool // the lock is free: Lock must get it at once
	set    bool // the semaphore is set, see useSemaphore
}

// familyLast is the number of the worker that takes each lock at the end.
const familyLast = 1 << 32

func (w *familyWorker) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *familyWorker) duration(average time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(2*int64(average) + 1))
}

func (w *familyWorker) run() {
	for {
		w.turns.RLock()
		if w.over.Load() {
			w.turns.RUnlock()
			return
		}
		familyTurns[w.kind](w)
		w.turns.RUnlock()
		sleep(w.duration(w.plan.Rest))
	}
}

// wrong reports an error that no caller should get.
func (w *familyWorker) wrong(what string, err error) {
	w.say("wrong", fmt.Sprintf("%s: %s: %v", w.kind, what, err))
}

// familyHold is a worker's hold of one or several locks.
type familyHold struct {
	*familyWorker

	names  []string
	ctx    context.Context
	cancel context.CancelFunc // of the ctx passed to Lock
	unlock rlock.UnlockFunc
	told   atomic.Int64 // when ctx was cancelled
	id     string       // of the stay, see familyStay
	mode   string
	taken  int64 // earliest time at which the lock can be free
	last   int64 // last time seen inside
}

// lock takes l in a random way. It returns nil if that failed for a documented reason.
func (w *familyWorker) lock(parent context.Context, l rlock.Locker, mode string, names ...string) *familyHold {
	if len(names) == 0 {
		names = []string{l.Name()}
	}
	if w.plan.Sabotage == histNoLock && w.chance(5) {
		l = noLock{l}
	}
	ctx, cancel := context.WithCancel(parent)
	h := &familyHold{familyWorker: w, names: names}
	var err error
	began, bounded := histNow(), true
	_, waits := l.(upgrade) // TryLock of an upgrade behaves differently
	switch dice := w.rng.IntN(10); {
	case !waits && (w.atOnce || dice < 2):
		h.ctx, h.unlock, err = l.TryLock(ctx, 0)
	case !waits && dice < 4:
		h.ctx, h.unlock, err = l.TryLock(ctx, w.duration(25*time.Millisecond))
	case dice < 6:
		timer := time.AfterFunc(w.duration(25*time.Millisecond), cancel)
		h.ctx, h.unlock, err = l.Lock(ctx)
		timer.Stop()
	default:
		bounded = false
		h.ctx, h.unlock, err = l.Lock(ctx)
	}
	if err != nil {
		cancel()
		switch {
		case errors.Is(err, rlock.ErrNotAcquired) && bounded && !w.atOnce:
		case w.mayFail(err):
			if errors.Is(err, rlock.ErrUnreachable) {
				w.say("unreachable")
			}
		default:
			w.wrong("Lock", err)
		}
		return nil
	}
	h.cancel = cancel
	context.AfterFunc(h.ctx, func() { h.told.Store(histNow()) })
	if w.kind == "min hold" {
		h.taken = began + int64(familyMinHold-time.Millisecond) // whole milliseconds
	}
	h.enter(mode)
	return h
}

// mayFail reports whether err is allowed: Redis was unreachable, or, on a slow machine, the longest hold was over
// before Redis answered.
func (w *familyWorker) mayFail(err error) bool {
	var loss *rlock.LostError
	return w.plan.Outages && (errors.Is(err, rlock.ErrUnreachable) || errors.Is(err, rlock.ErrLost)) ||
		w.kind == "max hold" && errors.As(err, &loss) && loss.Reason != rlock.LostGone
}

// noLock enters the section without the lock.
type noLock struct{ rlock.Locker }

func (noLock) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return ctx, func() error { return nil }, nil
}

func (l noLock) TryLock(ctx context.Context, _ time.Duration) (context.Context, rlock.UnlockFunc, error) {
	return l.Lock(ctx)
}

// enter begins a stay, now.
func (h *familyHold) enter(mode string) {
	h.stays++
	h.id, h.mode = fmt.Sprintf("%s.%d.%d", h.plan.Peer, h.number, h.stays), mode
	h.see()
}

// become continues the hold in another mode, from the last time seen inside: nobody may get in between.
func (h *familyHold) become(ctx context.Context, mode string) {
	h.stays++
	h.ctx = ctx
	h.id, h.mode = fmt.Sprintf("%s.%d.%d", h.plan.Peer, h.number, h.stays), mode
	h.sayIn()
}

// see records that the hold is inside, unless its ctx is done.
func (h *familyHold) see() bool {
	now := histNow()
	if h.ctx.Err() != nil {
		return false
	}
	h.last = now
	h.sayIn()
	return true
}

func (h *familyHold) sayIn() {
	token, _ := rlock.FencingToken(h.ctx, h.names[0])
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	h.say(append([]string{"in", h.id, h.mode, number(h.last), number(h.taken), number(token)}, h.names...)...)
}

// stay is the code of a section. Some last long enough for renewals, and for the longest hold to end.
func (h *familyHold) stay() bool {
	steps := 1 + h.rng.IntN(3)
	for h.kind == "max hold" && h.chance(5) || h.chance(1) {
		steps += int(h.duration(h.plan.Watchdog/4) / h.plan.Step)
	}
	for i := range steps {
		if i > 3 && h.holding.Load() {
			break
		}
		timer := time.NewTimer(h.duration(h.plan.Step))
		select {
		case <-timer.C:
		case <-h.ctx.Done():
			timer.Stop()
		}
		if !h.see() {
			return false
		}
	}
	return true
}

// leave unlocks, and reports a loss and its time.
func (h *familyHold) leave() {
	cause, told := context.Cause(h.ctx), h.told.Load()
	if told == 0 {
		told = histNow()
	}
	err := h.unlock()
	h.cancel()
	if err != nil && !h.mayFail(err) {
		h.wrong("unlock", err)
	}
	if again := h.unlock(); !errors.Is(again, rlock.ErrNotHeld) {
		h.wrong("second unlock", again)
	}
	for _, why := range []error{cause, err} {
		var loss *rlock.LostError
		if !errors.As(why, &loss) {
			continue
		}
		if !h.mayFail(why) {
			h.wrong("lost", why)
		}
		since := histNow() - int64(time.Since(loss.Since))
		if told-since > int64(histLate) {
			h.wrong("ctx cancelled too late", why)
		}
		h.say("lost", h.id, strconv.FormatInt(since, 10))
	}
}

// visit is a Lock, a section, often with a re-entry, and an unlock.
func (w *familyWorker) visit(l rlock.Locker, names ...string) {
	h := w.lock(context.Background(), l, familyWrites, names...)
	if h == nil {
		return
	}
	defer h.leave()
	if !h.stay() || !w.chance(30) || w.plan.Sabotage == histNoLock {
		return
	}
	_, unlock, err := l.Lock(h.ctx)
	switch {
	case w.kind == "without re-entry":
		if !errors.Is(err, rlock.ErrReentry) {
			w.wrong("a Lock in its own section", err)
		}
	case err == nil:
		h.see()
		if err := unlock(); err != nil && !w.mayFail(err) {
			w.wrong("unlock of a re-entry", err)
		}
		h.stay()
	case !w.mayFail(err):
		w.wrong("re-entry", err)
	}
}

// readOrWrite takes a read/write lock in a random way.
func (w *familyWorker) readOrWrite() {
	rw := w.clients[0].FencedRWMutex(w.kind)
	switch dice := w.rng.IntN(10); {
	case dice < 5:
		h := w.lock(context.Background(), rw.Read(), familyReads)
		if h == nil {
			return
		}
		if h.stay() && w.plan.Sabotage == "" {
			if _, _, err := rw.Write().Lock(h.ctx); !errors.Is(err, rlock.ErrUpgrade) {
				w.wrong("a writer under a reader", err)
			}
		}
		h.leave()
	case dice < 7:
		w.visit(rw.Write())
	case dice < 8:
		w.downgrade(rw)
	default:
		w.upgrade(rw.Upgradeable())
	}
}

func (w *familyWorker) downgrade(rw *rlock.RWMutex) {
	h := w.lock(context.Background(), rw.Write(), familyWrites)
	if h == nil {
		return
	}
	h.stay()
	ctx, unlock, err := rw.Downgrade(h.ctx)
	if err != nil {
		if h.ctx.Err() == nil { // otherwise the ctx passed to Lock ended as Lock returned
			w.wrong("downgrade", err)
		}
		h.leave()
		return
	}
	if err := h.unlock(); err != nil { // a no-op after the downgrade
		w.wrong("unlock after a downgrade", err)
	}
	h.unlock = unlock
	h.become(ctx, familyReads)
	h.stay()
	h.leave()
}

func (w *familyWorker) upgrade(u *rlock.Upgradeable) {
	h := w.lock(context.Background(), u, familyMayWrite)
	if h == nil {
		return
	}
	defer h.leave()
	if !h.stay() {
		return
	}
	writer := w.lock(h.ctx, upgrade{u}, familyWrites)
	if writer == nil {
		h.stay()
		return
	}
	h.last = max(h.last, writer.last)
	h.sayIn() // the reader was inside until then, since the writer's ctx derives from its section
	writer.stay()
	h.last = max(h.last, writer.last)
	writer.leave()
	h.become(h.ctx, familyMayWrite)
	h.stay()
}
