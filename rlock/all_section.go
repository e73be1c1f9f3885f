package rlock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/engine"
)

// taken is what a Lock of several has so far.
type taken struct {
	of      *MultiMutex
	ctx     context.Context
	cancel  context.CancelCauseFunc // ends it before anything is released
	unwatch func() bool             // for the end of the Clients, which is told to what is held from then on
	levels  []*engine.Level         // of the members that are a Mutex
	unlocks []func() []error
}

func (a *MultiMutex) newTaken(ctx, closing context.Context) *taken {
	s := &taken{of: a}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	cancel := s.cancel
	s.unwatch = context.AfterFunc(closing, func() { cancel(context.Cause(closing)) })
	return s
}

// inItsOwnWay is the refusal of which the section itself is the holder; nil if it is somebody else.
func (s *taken) inItsOwnWay(err error) *NotAcquiredError {
	var not *NotAcquiredError
	if errors.As(err, &not) && slices.ContainsFunc(s.levels, func(l *engine.Level) bool { return l.Owns(not.Holder) }) {
		return not
	}
	return nil
}

// loss is that of one that it has, or the end of a Client, which has ended its ctx; nil if the caller's ctx is done.
func (s *taken) loss(who engine.Caller) (loss *LostError) {
	if who.Ctx.Err() == nil {
		errors.As(context.Cause(s.ctx), &loss)
	}
	return loss
}

// add locks m under the ctx of the section.
func (s *taken) add(m *member, who engine.Caller) error {
	ctx, unlock, err := m.lock(s.ctx, who)
	if err == nil {
		s.ctx = ctx
		if l, ok := ctx.(*engine.Level); ok && m.spec != nil {
			s.levels = append(s.levels, l)
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
func (m *member) lock(ctx context.Context, who engine.Caller) (context.Context, UnlockFunc, error) {
	step, stop := who.Inside(ctx)
	defer stop()
	if m.spec != nil {
		l, err := m.spec.Lock(step)
		if err != nil {
			return ctx, nil, err
		}
		return l, l.Unlock, nil
	}
	if !who.Once {
		who.Waits("")
	}
	step.Outer, step.Began, step.Trace = ctx, time.Now(), nil
	switch l := m.Locker.(type) {
	case *Upgradeable:
		return l.lockTraced(step)
	case *QuorumMutex:
		return l.lockTraced(step)
	}
	switch given := step.Given(); { // somebody else's
	case who.Once:
		return m.TryLock(given, 0)
	case who.Wait.IsZero():
		return m.Lock(given)
	default:
		return m.TryLock(given, max(1, time.Until(who.Wait)))
	}
}

// takePart adds locks that one call can take.
func (s *taken) takePart(part []*member, who engine.Caller) (refused *member, err error) {
	if len(part) < 2 {
		return s.takeEach(part, who)
	}
	all := make([]*engine.Spec, len(part))
	for i, m := range part {
		all[i] = m.spec
	}
	step, stop := who.Inside(s.ctx)
	defer stop()
	levels, which, err := engine.TakeTogether(step, all)
	switch {
	case err == engine.ErrAlone: //nolint:errorlint // never wrapped
		return s.takeEach(part, who)
	case err == nil:
		s.ctx = levels[len(levels)-1]
		s.levels = append(s.levels, levels...)
		s.unlocks = append(s.unlocks, func() []error { return engine.UnlockTogether(levels) })
	case which >= 0:
		refused = part[which]
	}
	return refused, err
}

// takeEach adds locks by an attempt for each.
func (s *taken) takeEach(all []*member, who engine.Caller) (refused *member, err error) {
	who.Once = true
	for _, m := range all {
		step := who
		step.Limit = time.Now().Add(m.attempt())
		if !who.Limit.IsZero() {
			step.Limit = calls.Earlier(step.Limit, who.Limit)
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
		return 2 * (calls.Timeout + m.about.Engine.ReplicaTimeout())
	}
	return calls.Timeout + m.about.Engine.ReplicaTimeout()
}

// longest is for how long one hold of it lasts at most; 0 if the watchdog renews that without a bound.
func (m *member) longest() time.Duration {
	of := m.lease // of a Quorum the members have one
	if of == nil {
		return 0
	}
	if of.Lease == 0 || of.MaxHold == 0 {
		return max(of.Lease, of.MaxHold)
	}
	return min(of.Lease, of.MaxHold)
}

// leading is the first member of the same lock. To wait for another one, and then lock that one, would be to wait for oneself.
func (m *member) leading() *member { return cmp.Or(m.first, m) }

// refused is the member to be waited for, if the error about m says that this can be, and not that the ctx was done. If Redis did not
// answer, or the ctx is done meanwhile, that wait will say so.
func (s *taken) refused(m *member, err error) *member {
	if errors.Is(err, ErrNotAcquired) && !errors.Is(err, ErrDeadlock) && (s.ctx.Err() == nil || !errors.Is(err, s.ctx.Err())) {
		return m.leading()
	}
	return nil
}

// leave gives back what nobody was told of, for a caller who may leave meanwhile.
func (s *taken) leave(who engine.Caller) {
	s.unwatch()
	if len(s.unlocks) == 0 {
		s.cancel(s.of.fail(engine.ErrUnlocked))
		return
	}
	who.LeaveTo(s.rollBack, s.of.clients...)
}

// rollBack unlocks what nobody was told of. It does not stay taken, see WithMinHold, and what becomes of it is no concern of the caller.
func (s *taken) rollBack() {
	for _, l := range s.levels {
		l.Untaken()
	}
	_ = s.unlock()
}

// unlock releases every lock taken so far. Calls that cannot be batched run concurrently, so that one silent server delays no other.
func (s *taken) unlock() error {
	s.cancel(s.of.fail(engine.ErrUnlocked))
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
