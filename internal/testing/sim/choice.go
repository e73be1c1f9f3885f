package sim

import (
	"context"
	"slices"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// longestLinger is the longest WithLinger of a worker.
const longestLinger = 5 * time.Second

// longestMinHold is the longest WithMinHold of a worker.
const longestMinHold = 300 * time.Millisecond

// want is a worker's next lock or locks.
type want struct {
	lock  rlock.Locker
	do    func(context.Context, func(context.Context) error) error // its Do
	parts []part
	last  int // index in worker.names of its last name

	persists bool // it waits for Redis

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
		w.persists = w.persists || other.persists
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
	plain := options == nil
	w.persists, options = k.persists(options)
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
		case k.chance(0.1) && plain:
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
			members = append(members, c.Mutex(o.name.Text, options...))
			options = nil // one of them is enough
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
