package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// runs are the workloads by name.
var runs = map[string]func(*job) (report, error){
	"pair":         passing(plain, ownNames),
	"names":        passing(plain, ownNames),
	"contended":    passing(plain, oneName),
	"local":        passing(plain, oneName),
	"herd":         passing(plain, oneName),
	"asymmetric":   passing(plain, oneName),
	"handoff":      handingOff(plain),
	"waiters":      runWaiters,
	"holds":        runHolds,
	"fair":         passing(fair, oneName),
	"fair-herd":    passing(fair, oneName),
	"fair-handoff": handingOff(fair),
	"readers":      passing(readers, oneName),
	"mixed":        passing(mixed, oneName),
	"all-100":      passing(hundred, ownNames),
	"nested":       passing(nested, ownNames),
	"affinity":     passing(inTurn, ownNames),
	"service":      passing(serving, oneName),
	"ping-pong":    runTurns,

	"semaphore":      passing(semaphore, oneName),
	"semaphore-herd": passing(semaphore, oneName),
	"permits":        passing(expiring, oneName),
	"permits-herd":   passing(expiring, oneName),
	"crash":          runCrash,
	"crash-holder":   runHolder,

	"latch":      runLatch,
	"latch-herd": runLatch,
}

// kind is a kind of lock and its way to pass sections.
type kind func(c *client, name string) way

// way is a goroutine's way to pass: by write, exclusively, or by read, together with other readers.
type way struct {
	write, read lockFunc
	reads       float64    // the share of passes by read
	room        int64      // the number of readers allowed inside together
	orders      []lockFunc // one of them is for each pass, with the witness's slot of that number; nil: the same for all
}

// The size of a service.
const (
	servers = 200
	orders  = 1000
)

// requestTime is the deadline of a request.
const requestTime = 30 * time.Second

// serving locks one of many orders for each request, which has a ctx of its own.
func serving(c *client, name string) way {
	w := way{orders: make([]lockFunc, orders)}
	for i := range w.orders {
		lock := c.mutex(fmt.Sprintf("%s:%d", name, i))
		w.orders[i] = func(ctx context.Context) (func() error, error) {
			ctx, cancel := context.WithTimeout(ctx, requestTime)
			unlock, err := lock(ctx)
			if err != nil {
				cancel()
				return nil, err
			}
			return func() error {
				defer cancel()
				return unlock()
			}, nil
		}
	}
	w.write = w.orders[0]
	return w
}

func plain(c *client, name string) way   { return way{write: c.mutex(name)} }
func fair(c *client, name string) way    { return way{write: c.fair(name)} }
func readers(c *client, name string) way { return way{read: c.read(name), reads: 1, room: together} }
func mixed(c *client, name string) way {
	return way{write: c.write(name), read: c.read(name), reads: 0.95, room: together}
}

// permits is the number of a semaphore's permits.
const permits = 10

func semaphore(c *client, name string) way {
	return way{read: c.semaphore(name, permits), reads: 1, room: permits}
}

// nested is one lock taken by three nested layers. A floor has no layers: one lock suffices.
func nested(c *client, name string) way {
	if c.layers == nil {
		return plain(c, name)
	}
	return way{write: c.layers(name, 3)}
}

// hundred takes that many locks together. The braces put them in one slot of a cluster.
func hundred(c *client, name string) way {
	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprintf("{%s}:%d", name, i)
	}
	return way{write: c.all(names)}
}

// expiring is a semaphore with expiring permits.
func expiring(c *client, name string) way {
	return way{read: c.permits(name, permits), reads: 1, room: permits}
}

// next returns the next pass's lock, and the number allowed inside together.
func (w *way) next() (lock lockFunc, room int64) {
	if w.reads > 0 && rand.Float64() < w.reads {
		return w.read, w.room
	}
	return w.write, alone
}

const (
	// warmups is the number of pairs before the window, over all goroutines.
	warmups = 400
	// warmupTime limits the warm-up on a slow network.
	warmupTime = 500 * time.Millisecond
)

// Every longSection-th section yields to other goroutines while inside. Otherwise a section takes nanoseconds, and on a machine with few
// cores two would rarely overlap, however broken the lock is.
const longSection = 16

// naming says which lock a goroutine uses.
type naming bool

const (
	ownNames naming = true  // one of its own; the latency is the pair's
	oneName  naming = false // shared by all goroutines of all processes; the latency is the lock call's: the wait
)

// passing locks and unlocks.
func passing(k kind, n naming) func(*job) (report, error) {
	return func(j *job) (report, error) { return j.sections(k, n) }
}

// passer is a goroutine that passes through sections.
type passer struct {
	way

	id        uint64 // for the witness
	slots     []*slot
	section   time.Duration // minimum duration
	wholePair bool          // the measured latency

	ops        atomic.Int64 // in the window
	sections   atomic.Int64 // all
	violations atomic.Int64
	err        atomic.Pointer[error]
	done       atomic.Bool
}

// passes goes through the section until the window closes, and then finishes the call in progress, which cannot be taken back.
func (p *passer) passes(ctx context.Context, end time.Time, hist *histogram) error {
	for {
		lock, room := p.next()
		slot := p.slots[0]
		if n := len(p.orders); n > 0 {
			i := rand.IntN(n)
			lock, slot = p.orders[i], p.slots[i]
		}
		before := time.Now()
		unlock, err := lock(ctx)
		if err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		locked := time.Now()
		v, ok := slot.enter(p.id, room)
		if p.sections.Load()%longSection == 0 {
			runtime.Gosched()
		}
		if p.section > 0 {
			<-time.After(p.section)
		}
		if !v.leave() || !ok {
			p.violations.Add(1)
		}
		p.sections.Add(1)
		if err := unlock(); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		after := time.Now()
		if p.wholePair {
			hist.record(after.Sub(before))
		} else {
			hist.record(locked.Sub(before))
		}
		if after.After(end) {
			return nil
		}
		p.ops.Add(1)
	}
}

// stall is the longest time without a pass before the waiters are given up. It is longer than any pause between two tries, and shorter
// than a lease.
const stall = 5 * time.Second

// sections makes each goroutine pass until the window closes.
func (j *job) sections(k kind, own naming) (report, error) {
	lease := defaultLease
	if j.holds > 0 {
		lease = holdsLease // they are renewed meanwhile
	}
	clients, err := j.openAll(lease)
	if err != nil {
		return report{}, err
	}
	if err := j.warmUp(k, clients...); err != nil {
		return report{}, err
	}
	held := j.newHolds(clients[0], j.holds)
	if err := held.take(); err != nil {
		return report{}, err
	}
	var (
		hist  histogram
		all   = make([]passer, j.clients*j.goroutines)
		ended = make(chan struct{}, len(all))
		start = make(chan struct{})
		end   time.Time // written before start is closed
	)
	for g := range all {
		p, name, at := &all[g], j.name, 0
		if own {
			name, at = j.lockName(g), g
		}
		p.way, p.id, p.slots = k(clients[g%len(clients)], name), j.id(g), []*slot{j.witness.slot(at)}
		for i := 1; i < len(p.orders); i++ {
			p.slots = append(p.slots, j.witness.slot(i))
		}
		p.section, p.wholePair = j.section, bool(own)
		go func() { // ends with the process, if the library never returns
			<-start
			if err := p.passes(j.ctx, end, &hist); err != nil {
				p.err.Store(&err)
			}
			p.done.Store(true)
			ended <- struct{}{}
		}()
	}
	if err := j.begin(); err != nil {
		return report{}, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, heard := cpuTime(), delivered.Load()
	end = time.Now().Add(j.duration)
	close(start)
	awaitAll(ended, len(all), j.duration+stall)
	cpu, heard = cpuTime()-cpu, delivered.Load()-heard
	runtime.ReadMemStats(&after)
	rep := report{ElapsedNs: j.duration.Nanoseconds(), Latency: hist.latency(), PerGoroutine: make([]int64, len(all))}
	errs := []error{j.end(), held.giveBack()}
	for g := range all {
		p := &all[g]
		if err := p.err.Load(); err != nil {
			errs = append(errs, *err)
		}
		if !p.done.Load() {
			rep.Stuck++
		}
		rep.PerGoroutine[g] = p.ops.Load()
		rep.Ops += p.ops.Load()
		rep.Sections += p.sections.Load()
		rep.Violations += p.violations.Load()
	}
	if rep.Stuck == 0 { // stuck waiters may block the lock
		for _, c := range clients {
			c.close()
		}
	}
	n := float64(max(rep.Sections, 1))
	rep.AllocsPerOp = float64(after.Mallocs-before.Mallocs) / n
	rep.BytesPerOp = float64(after.TotalAlloc-before.TotalAlloc) / n
	rep.Extra = map[string]float64{
		"op_cpu_ns": float64(cpu) / n, "stack_bytes": float64(after.StackInuse) / float64(len(all)), "delivered": float64(heard),
	}
	return rep, errors.Join(errs...)
}

// awaitAll waits for n goroutines to end, or until none has ended for a while; first bounds the wait for the first.
func awaitAll(ended <-chan struct{}, n int, first time.Duration) {
	timer := time.NewTimer(first)
	defer timer.Stop()
	for range n {
		select {
		case <-ended:
			timer.Reset(stall)
		case <-timer.C:
			return
		}
	}
}

// warmUp opens lazy connections, fills pools, and loads scripts. It uses one name per goroutine, so that polling libraries do not wait
// here.
func (j *job) warmUp(k kind, clients ...*client) error {
	n := max(len(clients), min(j.goroutines, 64))
	errs := make([]error, n)
	var wg sync.WaitGroup
	start := time.Now()
	for g := range n {
		w := k(clients[g%len(clients)], "warm:"+j.lockName(g))
		wg.Go(func() {
			for i := range max(warmups/n, 2) {
				if i >= 2 && time.Since(start) > warmupTime {
					return
				}
				lock, _ := w.next()
				unlock, err := lock(j.ctx)
				if err == nil {
					err = unlock()
				}
				if err != nil {
					errs[g] = fmt.Errorf("warm-up: %w", err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
