package rlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
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
// What it has is given back for a caller who may leave meanwhile (caller.leaveTo). A Lock is counted by all Clients of its members, and
// the Close of any of them ends it.
//
// Each member has a hold and a level of its own, taken and released in the ways of a single lock. Members of one Client, and on a
// cluster of one slot, are taken by one call (batch.go).

// MultiMutex is several locks that are taken together, made by [All]. It has no state of its own: it excludes whoever holds one of
// its members, by whatever handle. Its methods are safe for concurrent use.
type MultiMutex struct {
	name    string
	names   []string  // of the members
	members []*member // each lock once, in the fixed order
	parts   [][]*member
	again   []*member // further handles of locks that are members already, to be re-entered
	clients []*engine // of the members, each once; not those of a Quorum, which goes on without one of them
	invalid error
}

// member is one of the locks.
type member struct {
	Locker

	name  string
	about *spec   // the lock that it is; of an Upgradeable that of the reader; nil if it is of another type
	spec  *spec   // about, if that is all it takes
	trace *spec   // about, or the first member of a Quorum: of the Client whose Trace is told; nil: of none that is known
	order int     // among the members of one lock: each lets the next ones in
	first *member // the member of the same lock that is taken before it, and lets it in; nil if it is that
}

// All makes one lock of several: Lock takes all of them, or waits and holds none. It does no I/O. The locks may be of any kind and
// of several Clients, and be used alone at the same time. One that is a MultiMutex stands for its own members.
//
// The order of the arguments does not matter: callers that name the same locks in opposite orders do not block each other.
// Plain and fenced locks of one Client, and on a cluster of one slot, cost one command together, up to a thousand of them; every
// other lock, and every one of a Client with [Options].Replicas, costs one of its own.
//
// A handle that is given twice counts once. Another handle of the same lock re-enters it, as does a lock that the ctx of the caller
// holds already; each of these costs a command. A read/write lock and a lock of another kind under one name exclude each other, so
// they cannot be given together.
//
// If no locks are given, or one is nil or invalid, the methods of the MultiMutex say so.
func All(lockers ...Locker) *MultiMutex {
	a := new(MultiMutex)
	all, err := flatten(lockers)
	if len(all) == 0 {
		err = cmp.Or(err, errors.New("no locks were given"))
	}
	// By key first: the ids of Clients are random, so other processes have them in another order.
	slices.SortStableFunc(all, func(x, y *member) int {
		return cmp.Or(strings.Compare(x.key(), y.key()), strings.Compare(x.clientID(), y.clientID()), cmp.Compare(x.order, y.order))
	})
	type lock struct {
		engine *engine
		key    string
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
		l := lock{m.about.engine, m.about.key}
		switch known := first[l]; {
		case known == nil:
			a.members, first[l] = append(a.members, m), m
			if !slices.Contains(a.clients, m.about.engine) {
				a.clients = append(a.clients, m.about.engine)
			}
		case (known.about.kind.Side == lua.Whole) != (m.about.kind.Side == lua.Whole):
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
	a.split()
	a.name = a.describe()
	if err != nil {
		a.invalid = a.fail(err)
	}
	return a
}

// flatten lists the locks, and those of a MultiMutex in its place. The error is about the first that cannot be locked.
func flatten(lockers []Locker) (all []*member, err error) {
	for i, l := range lockers {
		m := &member{Locker: l, name: "nil"}
		if !isMade(l) {
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
			m.about, m.spec, m.trace = l.spec, l.spec, l.spec
			if l.kind.Side == lua.Reader {
				m.order = 2
			}
		case *Upgradeable:
			m.about, m.order, m.trace = l.rw.read.spec, 1, l.rw.read.spec
		case *QuorumMutex:
			if err = cmp.Or(err, l.invalid); l.invalid == nil {
				m.trace = l.members[0]
			}
		}
		if m.about != nil {
			if invalid := cmp.Or(m.about.invalid, m.about.fits()); invalid != nil {
				err = cmp.Or(err, m.about.fail(invalid))
			}
		}
		m.name = l.Name()
		all = append(all, m)
	}
	return all, err
}

// isMade reports whether l is neither nil nor, if it is of a type of this package, its zero value.
func isMade(l Locker) bool {
	if v := reflect.ValueOf(l); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return false
	}
	switch l := l.(type) {
	case *Mutex:
		return l.spec != nil
	case *MultiMutex:
		return l.name != ""
	case *Upgradeable:
		return l.rw != nil
	case *QuorumMutex:
		return l.members != nil || l.invalid != nil
	}
	return true
}

// key is the same in every process: the lock's in Redis, if that is known.
func (m *member) key() string {
	if m.about == nil {
		return m.name
	}
	return m.about.key
}

func (m *member) clientID() string {
	if m.about == nil {
		return ""
	}
	return m.about.engine.id
}

// split makes parts of the members that one call can take, in the order of the first in each.
func (a *MultiMutex) split() {
	type batchKey struct {
		engine *engine
		slot   uint16
	}
	parts := make(map[batchKey]int) // that still have room
	for _, m := range a.members {
		if m.spec == nil || !m.spec.kind.PassesOn || m.spec.engine.options.Replicas > 0 {
			a.parts = append(a.parts, []*member{m})
			continue
		}
		at := batchKey{m.spec.engine, m.spec.slot}
		i, ok := parts[at]
		if !ok || len(a.parts[i]) == maxBatch {
			i = len(a.parts)
			parts[at], a.parts = i, append(a.parts, nil)
		}
		a.parts[i] = append(a.parts[i], m)
	}
}

// describe is the name: the members' names, or the first few of many.
func (a *MultiMutex) describe() string {
	const most = 4
	names := a.names
	if len(names) > most+1 {
		names = append(slices.Clip(names[:most]), fmt.Sprintf("and %d more", len(names)-most))
	}
	return "All(" + strings.Join(names, ", ") + ")"
}

// Name returns the names of the locks in parentheses, for logs: the first four if there are many.
func (a *MultiMutex) Name() string {
	a.check()
	return a.name
}

func (a *MultiMutex) check() {
	if a == nil || a.name == "" {
		panic("rlock: a MultiMutex that was not made by All")
	}
}

// Lock waits until all locks are held, or ctx is done. While it waits it holds none of them: if one is taken, it waits for that one
// as [Mutex.Lock] does, takes the others at once when it has it, and gives it back if it cannot.
//
// So it needs a moment in which all are free, and those who want one of them alone could keep it waiting. Each eighth try
// takes them one after the other, in an order that is the same everywhere, and keeps what it has while it waits for the
// next: for 50 ms in all the first time, then for twice as long each time, up to 5 s, and up to half of the shortest [WithLease] or
// [WithMaxHold] among them. Then it gives all back.
//
// The ctx of the section carries a hold of each lock, and is cancelled as soon as one is lost, with the [LostError] of that one
// as its cause. The unlock releases all of them; its error joins those of all that were lost or could not be released. Everything else
// is as for [Mutex.Lock]. Errors name the lock that was in the way, and a Lock that failed leaves none of them behind.
func (a *MultiMutex) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	return a.lock(callerNow(ctx))
}

// TryLock is Lock with a bound on the waiting in all, see [Mutex.TryLock]. If wait is 0 or less it makes one attempt.
func (a *MultiMutex) TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error) {
	return a.lock(callerNow(ctx).upTo(wait, time.Second))
}

// Do runs fn while it holds all locks, see [Mutex.Do].
func (a *MultiMutex) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return inside(ctx, a.Lock, fn)
}

// TryDo is Do with TryLock in place of Lock.
func (a *MultiMutex) TryDo(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	return inside(ctx, within(a, wait), fn)
}

func (a *MultiMutex) fail(causes ...error) error { return &lockError{name: a.name, causes: causes} }

func (a *MultiMutex) lock(who caller) (context.Context, UnlockFunc, error) {
	a.check()
	if who.ctx == nil {
		panic("rlock: the ctx is nil")
	}
	if i := slices.IndexFunc(a.members, func(m *member) bool { return m.trace != nil }); i >= 0 {
		who.trace = a.members[i].trace.engine.options.Trace.follow(who.ctx, a.name, "all", who.began)
		who.trace.of(a.names)
	}
	s, err := a.compete(who)
	who.trace.took(0) // what became of single members
	if err != nil {
		who.trace.ended(who.ctx, err, nil)
		return who.ctx, func() error { return a.fail(ErrNotHeld, errLockFailed) }, err
	}
	who.trace.ended(s.ctx, nil, s.rollBack)
	var unlocked atomic.Bool
	return s.ctx, func() error {
		if unlocked.Swap(true) {
			return a.fail(ErrNotHeld, errUnlockedBefore)
		}
		return who.trace.released(s.unlock)
	}, nil
}

const (
	gatherEvery  = 4                     // rounds, the second one first, it asks for all again
	climbEvery   = 8                     // rounds; in the others nothing is held while it waits
	firstClimb   = 50 * time.Millisecond // for which it may wait with what it has; doubles
	longestClimb = 5 * time.Second
)

// compete takes all members.
//
// Two that have one of two locks each, and are refused for the other, could change places for ever. A climb ends that: it is in
// one order for all. Long before, those that want the same locks gather in one line: to ask for all again leads to that of the
// first that is taken. Not each time, or they would pass that lock on among them while somebody who has the other one waits for it.
func (a *MultiMutex) compete(who caller) (*partly, error) {
	if a.invalid != nil {
		return nil, a.invalid
	}
	closing, done, err := a.begin()
	if err != nil {
		return nil, err
	}
	defer done()
	s, hold := a.newSection(who.ctx, closing), firstClimb
	returns := false
	defer func() {
		if !returns { // a member panics, or its Trace
			s.leave(who)
		}
	}()
	refused, err := a.take(s, who, nil)
	for round := 1; err != nil; round++ {
		switch loss := s.loss(who); {
		case loss == nil:
		case loss.Reason == LostClosed:
			refused, err = nil, a.fail(ErrClosed)
		case refused == nil: // for which the next one could not be asked any more
			err = loss
		}
		if not := s.inItsOwnWay(err); not != nil {
			refused, err = nil, a.fail(fmt.Errorf("%q waits for itself: it is given by two Clients of one Redis (give it once)", not.Name))
		}
		s.leave(who)
		switch {
		case refused == nil || !who.canWait():
			returns = true
			return nil, err
		case who.ctx.Err() != nil: // since it was refused
			returns = true
			e := notAcquired(who.ctx, refused.name, who.began)
			e.sameHolder(err)
			return nil, e
		}
		s = a.newSection(who.ctx, closing)
		switch {
		case round%climbEvery == 0:
			refused, err = a.climb(s, who, hold)
			hold = min(2*hold, longestClimb)
		case round%gatherEvery == 2:
			refused, err = a.take(s, who, nil)
		default:
			has := refused
			if refused, err = nil, s.add(has, who); err == nil {
				refused, err = a.take(s, who, has)
			}
		}
	}
	returns = true
	s.unwatch()
	return s, nil
}

// begin counts a Lock with the Clients, whose Close waits for it. The ctx ends when one of them is closed, also if the Lock has to do with
// another one just then. done ends both.
func (a *MultiMutex) begin() (closing context.Context, done func(), err error) {
	for i, c := range a.clients {
		if !c.calls.Start() {
			for _, c := range a.clients[:i] {
				c.calls.Ended()
			}
			return nil, nil, a.fail(ErrClosed)
		}
	}
	counted := func() {
		for _, c := range a.clients {
			c.calls.Ended()
		}
	}
	if len(a.clients) == 1 && !slices.ContainsFunc(a.members, func(m *member) bool { return m.about == nil }) {
		return context.Background(), counted, nil // each of its calls ends with the Client
	}
	closing, end := context.WithCancelCause(context.Background())
	over := make(chan struct{})
	for _, c := range a.clients {
		c.calls.Go(func() { // ends with the Lock, or when the Client is closed, which waits for it
			select {
			case <-c.calls.Done():
				end(&LostError{Name: a.name, Reason: LostClosed, Since: time.Now(), text: "client closed"})
			case <-over:
			}
		})
	}
	return closing, func() {
		close(over)
		end(nil)
		counted()
	}, nil
}

// canWait reports whether there is time for another try.
func (c caller) canWait() bool {
	return !c.once && !calls.IsClosed(c.trace.over()) && (c.wait.IsZero() || time.Now().Before(c.wait))
}

// take adds all members but one that the section has. It does not wait. refused is a member that another owner holds; then, as after
// any error, the section may have some of the others.
func (a *MultiMutex) take(s *partly, who caller, has *member) (refused *member, err error) {
	var again []*member
	for _, part := range a.parts {
		var rest []*member
		for _, m := range part {
			switch {
			case m == has:
			case m.about != nil && m.about.levelIn(who.ctx) != nil:
				again = append(again, m)
			default:
				rest = append(rest, m)
			}
		}
		if refused, err = s.takePart(rest, who); err != nil {
			return refused, err
		}
	}
	return s.takeEach(append(again, a.again...), who)
}

// climb adds all members, one after the other, and waits for each. With the first one it has to be done before that time is over, and
// before half of the time has passed for which one that it has is held at most: the rest is for the section.
func (a *MultiMutex) climb(s *partly, who caller, within time.Duration) (refused *member, err error) {
	step := who
	for _, m := range slices.Concat(a.members, a.again) {
		if err := s.add(m, step); err != nil {
			if s.loss(who) != nil { // while it waited: that is nothing to a caller who has none of them
				return m.leading(), notAcquired(who.ctx, m.name, who.began)
			}
			return s.refused(m, err), err
		}
		end := time.Now().Add(within)
		if most := m.longest(); most > 0 {
			end = earlier(end, time.Now().Add(most/2))
		}
		if step.wait.IsZero() || end.Before(step.wait) {
			step.wait = end
		}
		step.limit = step.wait.Add(m.attempt())
	}
	return nil, nil
}

// partly is what a Lock of several has so far.
type partly struct {
	of      *MultiMutex
	ctx     context.Context
	cancel  context.CancelCauseFunc // ends it before anything is released
	unwatch func() bool             // for the end of the Clients, which is told to what is held from then on
	levels  []*level                // of the members that are a Mutex
	unlocks []func() []error
}

func (a *MultiMutex) newSection(ctx, closing context.Context) *partly {
	s := &partly{of: a}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	cancel := s.cancel
	s.unwatch = context.AfterFunc(closing, func() { cancel(context.Cause(closing)) })
	return s
}

// inItsOwnWay is the refusal of which the section itself is the holder; nil if it is somebody else.
func (s *partly) inItsOwnWay(err error) *NotAcquiredError {
	var not *NotAcquiredError
	if errors.As(err, &not) && slices.ContainsFunc(s.levels, func(l *level) bool { return l.hold.tenure.field() == not.Holder }) {
		return not
	}
	return nil
}

// loss is that of one that it has, or the end of a Client, which has ended its ctx; nil if the caller's ctx is done.
func (s *partly) loss(who caller) (loss *LostError) {
	if who.ctx.Err() == nil {
		errors.As(context.Cause(s.ctx), &loss)
	}
	return loss
}

// add locks m under the ctx of the section.
func (s *partly) add(m *member, who caller) error {
	ctx, unlock, err := m.lock(s.ctx, who)
	if err == nil {
		s.ctx = ctx
		if m.spec != nil {
			s.levels = append(s.levels, levelOf(ctx))
		}
		s.unlocks = append(s.unlocks, func() []error {
			if err := unlock(); err != nil {
				return []error{err}
			}
			return nil
		})
	}
	return err
}

// lock is that of the member for a caller with another ctx.
func (m *member) lock(ctx context.Context, who caller) (context.Context, UnlockFunc, error) {
	if m.spec != nil {
		who.ctx = ctx
		l, err := m.spec.lock(who)
		return m.spec.result(ctx, l, err)
	}
	if !who.once {
		who.trace.waits("")
	}
	step := callerNow(ctx)
	step.wait, step.limit, step.once = who.wait, who.limit, who.once
	switch l := m.Locker.(type) {
	case *Upgradeable:
		return l.lockTraced(step)
	case *QuorumMutex:
		return l.lockTraced(step)
	}
	switch { // somebody else's
	case who.once:
		return m.TryLock(ctx, 0)
	case who.wait.IsZero():
		return m.Lock(ctx)
	}
	return m.TryLock(ctx, max(1, time.Until(who.wait)))
}

// takePart adds locks that one call can take.
func (s *partly) takePart(part []*member, who caller) (refused *member, err error) {
	if len(part) < 2 {
		return s.takeEach(part, who)
	}
	all := make([]*spec, len(part))
	for i, m := range part {
		all[i] = m.spec
	}
	who.ctx = s.ctx
	levels, which, err := takeTogether(who, all)
	switch {
	case err == errAlone: //nolint:errorlint // never wrapped
		return s.takeEach(part, who)
	case err == nil:
		s.ctx = levels[len(levels)-1]
		s.levels = append(s.levels, levels...)
		s.unlocks = append(s.unlocks, func() []error { return unlockTogether(levels) })
	case which >= 0:
		refused = part[which]
	}
	return refused, err
}

// takeEach adds locks by an attempt for each.
func (s *partly) takeEach(all []*member, who caller) (refused *member, err error) {
	who.once = true
	for _, m := range all {
		step := who
		step.limit = time.Now().Add(m.attempt())
		if !who.limit.IsZero() {
			step.limit = earlier(step.limit, who.limit)
		}
		if err := s.add(m, step); err != nil {
			return s.refused(m, err), err
		}
	}
	return nil, nil
}

// attempt is for how long one attempt to get it may take, while others are held: as long as its commands may.
func (m *member) attempt() time.Duration {
	switch {
	case m.about == nil:
		return calls.Timeout
	case m.spec == nil: // an Upgradeable, which is two locks
		return 2 * (calls.Timeout + m.replicaTimeout())
	}
	return calls.Timeout + m.replicaTimeout()
}

func (m *member) replicaTimeout() time.Duration {
	if o := m.about.engine.options; o.Replicas > 0 {
		return o.ReplicaTimeout
	}
	return 0
}

// longest is for how long one hold of it lasts at most; 0 if the watchdog renews that without a bound.
func (m *member) longest() time.Duration {
	of := m.about
	if of == nil {
		if of = m.trace; of == nil { // of a Quorum the members have one lease
			return 0
		}
	}
	if of.lease == 0 || of.maxHold == 0 {
		return max(of.lease, of.maxHold)
	}
	return min(of.lease, of.maxHold)
}

// leading is the first member of the same lock. To wait for another one, and then lock that one, would be to wait for oneself.
func (m *member) leading() *member { return cmp.Or(m.first, m) }

// refused is the member to be waited for, if the error about m says that this can be, and not that the ctx was done. If Redis did not
// answer, or the ctx is done meanwhile, that wait will say so.
func (s *partly) refused(m *member, err error) *member {
	if errors.Is(err, ErrNotAcquired) && (s.ctx.Err() == nil || !errors.Is(err, s.ctx.Err())) {
		return m.leading()
	}
	return nil
}

// leave gives back what nobody was told of, for a caller who may leave meanwhile.
func (s *partly) leave(who caller) {
	s.unwatch()
	if len(s.unlocks) == 0 {
		s.cancel(s.of.fail(errUnlocked))
		return
	}
	who.leaveTo(s.rollBack, s.of.clients...)
}

// rollBack unlocks what nobody was told of. It does not stay taken, see WithMinHold, and what becomes of it is no concern of the caller.
func (s *partly) rollBack() {
	for _, l := range s.levels {
		l.untaken()
	}
	_ = s.unlock()
}

// unlock releases every lock taken so far. Calls that cannot be batched run concurrently, so that one silent server delays no other.
func (s *partly) unlock() error {
	s.cancel(s.of.fail(errUnlocked))
	all, panics := make([][]error, len(s.unlocks)), make([]any, len(s.unlocks))
	var wg sync.WaitGroup
	for i, unlock := range s.unlocks {
		one := func() {
			defer func() { panics[i] = recover() }() // of the Trace of a member
			all[i] = unlock()
		}
		if i == len(all)-1 {
			one()
		} else {
			wg.Go(one) // ends with the unlock, which is awaited here
		}
	}
	wg.Wait()
	for _, v := range panics {
		if v != nil {
			panic(v) // on the goroutine of the caller, and when all are unlocked
		}
	}
	switch errs := slices.Concat(all...); len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	default:
		return &manyError{errs}
	}
}
