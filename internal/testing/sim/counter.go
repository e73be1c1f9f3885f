package sim

import (
	"context"
	"math/bits"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/testing/memredis"
)

// recordKept is how long the record of calls for a counter, and the keys beside it, may stay.
const recordKept = 2*time.Minute + 5*time.Second

// lookAgain is the time after which a waiter for a counter asks without a message.
const lookAgain = time.Minute

// counter is the oracle of a semaphore or a latch: a number in the first server, which nobody owns.
type counter interface {
	said(n news) // after each script about it
	forgotten()  // the server may have lost it
	look()       // at each tick
	rest()       // at the end, when all calls have ended and their leftovers are cleared
}

// news is the server's state of a counter after a script, or a fault.
type news struct {
	client string // whose script it was; empty: the script does not name the client, or it was a fault
	value  int64
	is     bool // there is a number
	do     memredis.Do
}

func newCounter(o *oracle) counter {
	switch o.name.Kind { //nolint:exhaustive // locks are no counters
	case Semaphore:
		return &permits{inLine: newInLine(o), n: o.name.Count}
	case Permits:
		return newExpiring(o)
	}
	return &latch{tally: newTally(o), most: o.name.Count, open: o.world.began, waits: make(map[*latchWait]struct{})}
}

// saw handles scripts, in their order. The keys of a counter are next to each other, except those that no oracle
// reads.
func (w *world) saw(keys []string, client string, do memredis.Do) {
	var before *oracle
	for _, key := range keys {
		o := w.of[key]
		if o == nil || o.counter == nil || o == before {
			continue
		}
		before = o
		n := news{do: do}
		if key == o.name.Text {
			n.client = client
		}
		var text string
		if text, n.is = do("get", o.name.Text).(string); n.is {
			var err error
			if n.value, err = strconv.ParseInt(text, 10, 64); err != nil {
				w.violation(key, "the server has %q, which is not a number", text)
				continue
			}
		}
		o.counter.said(n)
	}
}

// tally is common to both kinds of counters.
type tally struct {
	o     *oracle
	every time.Duration // after which a waiter asks
	once  int           // how much more often, since something may happen by itself

	mu      sync.Mutex // guards the fields below, and those of the kind. A server may hold its lock while taking it
	lost    bool       // the server may have lost the number: sums are unknown
	event   time.Time  // when a call for it last began or ended
	waiters int        // calls that have waited since then, or longer
	idle    int        // scripts about it long after that
	told    bool       // that there are too many has been reported
	blocks  bool       // a waiter keeps others from free permits
}

func newTally(o *oracle) tally { return tally{o: o, event: o.world.began, every: lookAgain} }

func (t *tally) violation(format string, args ...any) {
	t.o.world.violation(t.o.name.Text, format, args...)
}

// happens notes that a call begins or ends; mu is held.
func (t *tally) happens(waiters int) {
	t.event, t.waiters, t.idle = time.Now(), waiters, 0
}

// asked notes a script about the counter; mu is held. While nothing else happens, each waiting process asks now and
// then, and nobody else does.
func (t *tally) asked(n news) {
	w := t.o.world
	d := time.Since(t.event)
	if n.client == "" || d < 2*grantLease+w.reach() || w.quiet() < w.settle()+recordKept {
		return
	}
	t.idle++
	most := t.waiters * (1 + t.once + int(d/t.every))
	if t.blocks { // it shows twice in a grant lease that it lives; one of the others looks once, two in two leases, and so on
		most += (2 + bits.Len(uint(t.waiters))) * int(d/min(grantLease, w.plan.Watchdog)+1)
	}
	if t.idle > most && !t.told {
		t.told = true
		t.violation("%d scripts ran while %d calls waited and nobody did anything for %v", t.idle, t.waiters, d)
	}
}

// sleeps returns a bound on how long an undisturbed waiter may sleep though it could go on; 0 if it is disturbed.
func (t *tally) sleeps(p *process, d time.Duration) time.Duration {
	w := t.o.world
	switch {
	case p.isDead() || p.ended.Load():
		return 0
	case w.quiet() > d+w.settle():
		return w.reach() + 500*time.Millisecond
	case p.quiet() < d+unnoticed:
		return 0
	}
	keep := min(grantLease, w.plan.Watchdog)
	return 2*keep + w.reach() + time.Second + time.Duration(w.disturbed(d+unnoticed))*keep
}

// isVague reports whether a process's leftovers are unknown: it ended before it could clear them, or could not in the
// time available.
func (t *tally) isVague(p *process) bool {
	w := t.o.world
	if p.isDead() || p.ended.Load() && !w.plan.onlyEnds() {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.outage > 50*time.Second
}

// onlyEnds reports whether the only events are the closing of Clients.
func (p *Plan) onlyEnds() bool {
	return p.Lossy == 0 && !slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.What != Closed && f.What != ShutDown })
}

// patience draws the ctx and the wait of a call that waits for a counter. The call ends with the world's work at the
// latest.
func (k *worker) patience(outer context.Context) (ctx context.Context, end func(), wait time.Duration, latest time.Time) {
	asks, wait, latest := k.leaves(outer)
	ctx, cancel := context.WithCancel(asks)
	stop := context.AfterFunc(k.world().idles, cancel)
	return ctx, func() { stop(); cancel() }, wait, latest
}

// bounded draws the ctx of a call that does not wait: now and then its caller leaves.
func (k *worker) bounded() (context.Context, context.CancelFunc) {
	if k.chance(k.world().plan.Leave) {
		return context.WithTimeout(context.Background(), k.about(4*k.process.plan.Latency))
	}
	return context.Background(), func() {}
}

// counts notes a section, for Result.
func (o *oracle) counts(asked time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entered++
	o.longest = max(o.longest, time.Since(asked))
}
