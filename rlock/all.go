package rlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/ear"
	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

// A Lock of several locks takes all of them or none:
//
//	state     event                                     next
//	asking    all are free                              entered
//	          one is held by another                    waiting for it, with nothing held
//	          refused, unanswered for too long, ctx     out
//	waiting   it has that one                           completing
//	          ctx, time over, Close                     out
//	completing the others are free                      entered
//	          one is held by another                    waiting for that one, with nothing held; climbing each eighth time
//	climbing  it has the first ones, and got the rest   entered
//	          its time is over, or it lost one          waiting for the next one, with nothing held
//
// A Lock gives its locks back on behalf of a caller that may leave meanwhile (caller.LeaveTo). All Clients of its members count it, and
// the Close of any of them ends it.
//
// Each member has its own hold and level, taken and released like a single lock's. One call takes the members of one Client, and on a
// cluster of one slot (engine.TakeTogether).

// MultiMutex takes several locks together, see [All]. It excludes every holder of one of its members. Its methods are safe for concurrent use.
type MultiMutex struct {
	name    string
	names   []string  // of the members
	members []*member // each lock once, in the fixed order
	parts   [][]*member
	again   []*member        // further handles of locks that are members already, to be re-entered
	maxWait time.Duration    // the shortest of WithMaxWait; 0: none has it
	persist bool             // one has WithWaitForRedis
	early   bool             // a Client was not connected, so parts are known when it is
	clients []*tenure.Client // of the members, each once; not those of a Quorum, which continues without one of them
	client  *Client          // of the first lock given that has one, for its Trace and Logger; nil: none has
	invalid error
}

type member struct {
	Locker

	name   string
	about  *tenure.Lock // the lock that it is; of an Upgradeable that of the reader; nil if it is of another type
	single *tenure.Lock // about, if that is all it takes
	lease  *tenure.Lock // about, or the first member of a Quorum: how long a hold lasts; nil if that is not known
	order  int          // among the members of one lock: each lets the next ones in
	first  *member      // the member of the same lock that is taken before it, and lets it in; nil if it is that
}

// All combines several locks into one: Lock takes all of them, or waits and holds none. It does no I/O. The locks may be of any kind and of
// several Clients, and be used alone at the same time. Callers that name the same locks in opposite orders do not block each other.
//
// A handle given twice counts once; another handle of the same lock re-enters it. If there are no locks, one is nil or invalid, or a read/write
// lock and one of another kind share a name, the methods report an error.
func All(lockers ...Locker) *MultiMutex {
	a := &MultiMutex{}
	all, err := flatten(lockers)
	if len(all) == 0 {
		err = cmp.Or(err, errors.New("no locks were given"))
	}
	// By key first: the ids of Clients are random, so their order differs between processes.
	slices.SortStableFunc(all, func(x, y *member) int {
		return cmp.Or(strings.Compare(x.key(), y.key()), strings.Compare(x.clientID(), y.clientID()), cmp.Compare(x.order, y.order))
	})
	type lock struct {
		engine *tenure.Client
		key    string
	}
	for _, m := range all {
		if m.lease != nil {
			a.maxWait = tenure.ShortestWait(a.maxWait, m.lease.MaxWait)
			a.persist = a.persist || m.lease.Persists
		}
	}
	for _, l := range slices.Backward(lockers) {
		if c, _ := clientOf(l); c != nil {
			a.client = c
		}
	}
	given, first := make(map[Locker]bool), make(map[lock]*member)
	for _, m := range all {
		if reflect.ValueOf(m.Locker).Comparable() { // a type of somebody else's need not be
			if given[m.Locker] {
				continue
			}
			given[m.Locker] = true
		}
		if m.about == nil {
			a.members = append(a.members, m)
			continue
		}
		l := lock{m.about.Client, m.about.Key}
		switch known := first[l]; {
		case known == nil:
			a.members, first[l] = append(a.members, m), m
			if !slices.Contains(a.clients, m.about.Client) {
				a.clients = append(a.clients, m.about.Client)
			}
		case (known.about.Kind.Side == lua.Whole) != (m.about.Kind.Side == lua.Whole):
			err = cmp.Or(err, fmt.Errorf("%q is given as a read/write lock and as one of another kind: "+
				"these exclude each other, so use one of them", m.name))
		default:
			m.first = known
			a.again = append(a.again, m)
		}
	}
	for _, m := range a.members {
		a.names = append(a.names, m.name)
	}
	a.early = slices.ContainsFunc(a.clients, func(c *tenure.Client) bool { return c.Cluster.IsUnknown() })
	a.parts = a.split()
	a.name = a.describe()
	if err != nil {
		a.invalid = a.fail(err)
	}
	return a
}

// flatten lists the locks, with the members of a MultiMutex in its place. The error is about the first that cannot be locked.
func flatten(lockers []Locker) (all []*member, err error) {
	for i, l := range lockers {
		m := &member{Locker: l, name: "nil"}
		if _, made := clientOf(l); !made {
			all, err = append(all, m), cmp.Or(err, fmt.Errorf("lock %d of %d is nil or empty", i+1, len(lockers)))
			continue
		}
		switch l := l.(type) {
		case *MultiMutex:
			for _, m := range slices.Concat(l.members, l.again) {
				m := *m
				m.first = nil // that depends on those that are given with it
				all = append(all, &m)
			}
			err = cmp.Or(err, l.invalid)
			continue
		case *Mutex:
			m.about, m.single, m.lease = l.lock, l.lock, l.lock
			if l.lock.Kind.Side == lua.Reader {
				m.order = 2
			}
		case *Upgradeable:
			m.about, m.lease, m.order = l.rw.read.lock, l.rw.read.lock, 1
		case *permits:
			err = cmp.Or(err, fmt.Errorf("permits of the semaphore %q cannot be one of several locks: nobody owns them in Redis, "+
				"so those that a process holds for a moment, and dies, are gone (take them in a section of the others)", l.Name()))
		case *permitLocker:
			err = cmp.Or(err, fmt.Errorf("permits of the semaphore %q cannot be one of several locks: they are no locks, and have no place in "+
				"the order of these (take them in a section of the others)", l.Name()))
		case *QuorumMutex:
			if err = cmp.Or(err, l.invalid); l.invalid == nil {
				m.lease = l.of.Whole
			}
		}
		if m.about != nil {
			if invalid := cmp.Or(m.about.Invalid, m.about.Fits()); invalid != nil {
				err = cmp.Or(err, m.about.Fail(invalid))
			}
		}
		m.name = l.Name()
		all = append(all, m)
	}
	return all, err
}

// clientOf returns the Client whose Trace and Logger a Locker has; nil if that is unknown, as of other packages' types. made is false for a nil
// Locker, and for the zero value of a type of this package.
func clientOf(l Locker) (c *Client, made bool) {
	if v := reflect.ValueOf(l); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, false
	}
	switch l := l.(type) {
	case *Mutex:
		return l.client, l.lock != nil
	case *MultiMutex:
		return l.client, l.name != ""
	case *Upgradeable:
		if l.rw == nil {
			return nil, false
		}
		return l.rw.read.client, true
	case *QuorumMutex:
		return l.client, l.isMade()
	case *permits:
		return l.of.client, true
	case *permitLocker:
		return l.of.client, true
	}
	return nil, true
}

// tells returns what calls the Logger and the Trace of the Client, if there is one.
func (c *Client) tells() tenure.Teller {
	if c == nil {
		return noClient
	}
	return c.engine.Options.Tell
}

// traces returns its Trace; nil: there is none.
func (c *Client) traces() *Trace {
	if c == nil {
		return nil
	}
	return c.trace
}

// key is the same in every process: the lock's key in Redis, if that is known.
func (m *member) key() string {
	if m.about == nil {
		return m.name
	}
	return m.about.Key
}

func (m *member) clientID() string {
	if m.about == nil {
		return ""
	}
	return m.about.Client.ID
}

// split groups the members into parts that one call can take, in the order of the first member of each.
func (a *MultiMutex) split() (parts [][]*member) {
	type batchKey struct {
		engine *tenure.Client
		slot   uint16
	}
	open := make(map[batchKey]int) // those that still have room
	for _, m := range a.members {
		if m.single == nil || !engine.IsBatchable(m.single) {
			parts = append(parts, []*member{m})
			continue
		}
		at := batchKey{m.single.Client, m.single.Slot()}
		i, ok := open[at]
		if !ok || len(parts[i]) == engine.MaxBatch {
			i = len(parts)
			open[at], parts = i, append(parts, nil)
		}
		parts[i] = append(parts[i], m)
	}
	return parts
}

// partsNow returns the parts, and connects the Clients first if they were not connected when All was called.
func (a *MultiMutex) partsNow(who tenure.Caller) ([][]*member, error) {
	if !a.early {
		return a.parts, nil
	}
	for _, m := range a.members {
		if m.about == nil {
			continue
		}
		var err error
		if m.about.Client.Cluster.IsUnknown() {
			err = engine.Connect(m.about, who)
		}
		if fits := m.about.Fits(); fits != nil {
			return nil, a.fail(m.about.Fail(fits))
		}
		if err != nil {
			return nil, err
		}
	}
	return a.split(), nil
}

// describe returns the name: the members' names, or the first few of many.
func (a *MultiMutex) describe() string {
	const most = 4
	names := a.names
	if len(names) > most+1 {
		names = append(slices.Clip(names[:most]), fmt.Sprintf("and %d more", len(names)-most))
	}
	return "All(" + strings.Join(names, ", ") + ")"
}

// Name returns the names of the locks in parentheses, at most four, for logs.
func (a *MultiMutex) Name() string {
	a.check()
	return a.name
}

func (a *MultiMutex) check() {
	if a == nil || a.name == "" {
		panic("rlock: a MultiMutex that was not made by All")
	}
}

// Lock is [Mutex.Lock], but waits until all locks are held, and holds none meanwhile. But every eighth attempt takes them in turn, and keeps
// what it has for up to 5 s while it waits for the next (docs/locks.md), so that callers that want only one of them cannot keep it waiting for
// ever.
//
// The section's ctx carries a hold of each lock, and is cancelled as soon as one is lost, with that lock's [LostError] as its cause. The unlock
// releases all; its error joins those of the locks. The error of a failed Lock names the one that was in the way.
func (a *MultiMutex) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	return a.lock(tenure.CallerNow(ctx).Patient(a.maxWait, a.attempt()).Persistent(a.persist))
}

// TryLock is Lock with a bound on the whole wait. If wait is 0 or less it makes one attempt.
func (a *MultiMutex) TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error) {
	return a.lock(tenure.CallerNow(ctx).UpTo(wait, a.attempt()).Persistent(a.persist))
}

// attempt is the minimum time for the first attempt.
func (a *MultiMutex) attempt() time.Duration {
	least := tenure.Attempt
	for _, c := range a.clients {
		least = max(least, c.Attempt)
	}
	return least
}

// Do is [Mutex.Do], with all locks.
func (a *MultiMutex) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return inside(ctx, a.Lock, fn)
}

// TryDo is [Mutex.TryDo], with all locks.
func (a *MultiMutex) TryDo(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	return inside(ctx, within(a, wait), fn)
}

func (a *MultiMutex) fail(causes ...error) error { return &lockError{name: a.name, causes: causes} }

func (a *MultiMutex) lock(who tenure.Caller) (context.Context, UnlockFunc, error) {
	a.check()
	needs(who.Ctx)
	trace := a.client.traces().follow(&who, a.name, "all", a.names...)
	who.Trace = trace.tracer()
	s, err := a.compete(who)
	trace.forget() // what became of single members
	if err != nil {
		trace.ended(who.Ctx, err, nil, nil)
		return who.Ctx, func() error { return a.fail(ErrNotHeld, errLockFailed) }, err
	}
	ear.AskedTogether(s.ctx, who.Ctx)
	trace.ended(s.ctx, nil, nil, s.rollBack)
	var unlocked atomic.Bool
	return s.ctx, func() error {
		if unlocked.Swap(true) {
			return a.fail(ErrNotHeld, tenure.ErrUnlockedBefore)
		}
		return trace.released(s.unlock)
	}, nil
}
