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
	"github.com/go-rlock/rlock/internal/tenure"
)

// taken has the locks that a MultiMutex has taken so far.
type taken struct {
	of      *MultiMutex
	ctx     context.Context
	cancel  context.CancelCauseFunc // cancels ctx before anything is released
	unwatch func() bool             // stops cancelling ctx on Close, once the locks' own levels do that
	levels  []*tenure.Level         // of the members that are a Mutex
	unlocks []func() []error
}

func (a *MultiMutex) newTaken(ctx, closing context.Context) *taken {
	s := &taken{of: a}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	cancel := s.cancel
	s.unwatch = context.AfterFunc(closing, func() { cancel(context.Cause(closing)) })
	return s
}

// inItsOwnWay returns the refusal if the holder is this section itself, otherwise nil.
func (s *taken) inItsOwnWay(err error) *NotAcquiredError {
	var not *NotAcquiredError
	if errors.As(err, &not) && slices.ContainsFunc(s.levels, func(l *tenure.Level) bool { return l.Owns(not.Holder) }) {
		return not
	}
	return nil
}

// loss returns the lost lock, or the Close of a Client, that cancelled the section's ctx; nil if the caller's ctx is done.
func (s *taken) loss(who tenure.Caller) (loss *LostError) {
	if who.Ctx.Err() == nil {
		errors.As(context.Cause(s.ctx), &loss)
	}
	return loss
}

func (s *taken) add(m *member, who tenure.Caller) error {
	ctx, unlock, err := m.lock(s.ctx, who)
	if err == nil {
		s.ctx = ctx
		if l, ok := ctx.(*tenure.Level); ok && m.single != nil {
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

// lock locks the member for the caller, but under ctx.
func (m *member) lock(ctx context.Context, who tenure.Caller) (context.Context, UnlockFunc, error) {
	step, stop := who.Inside(ctx)
	defer stop()
	if m.single != nil {
		l, err := engine.Lock(m.single, step)
		if err != nil {
			return ctx, nil, err
		}
		return l, func() error { return engine.Unlock(l) }, nil
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
	switch given := step.Given(); { // a Locker of another package
	case who.Once:
		return m.TryLock(given, 0)
	case who.Wait.IsZero():
		return m.Lock(given)
	default:
		return m.TryLock(given, max(1, time.Until(who.Wait)))
	}
}

// takePart adds members that a single call can take.
func (s *taken) takePart(part []*member, who tenure.Caller) (refused *member, err error) {
	if len(part) < 2 {
		return s.takeEach(part, who)
	}
	all := make([]*tenure.Lock, len(part))
	for i, m := range part {
		all[i] = m.single
	}
	step, stop := who.Inside(s.ctx)
	defer stop()
	t := engine.TakeTogether(step, all)
	switch {
	case t.Apart:
		return s.takeEach(part, who)
	case t.Err == nil:
		s.ctx = t.Levels[len(t.Levels)-1]
		s.levels = append(s.levels, t.Levels...)
		s.unlocks = append(s.unlocks, func() []error { return engine.UnlockTogether(t.Levels) })
	case t.Refused >= 0:
		refused = part[t.Refused]
	}
	return refused, t.Err
}

// takeEach adds members with one attempt each, without waiting.
func (s *taken) takeEach(all []*member, who tenure.Caller) (refused *member, err error) {
	who.Once = true
	for _, m := range all {
		step := who
		step.Limit = calls.Earlier(time.Now().Add(m.attempt()), who.Limit)
		if err := s.add(m, step); err != nil {
			return s.refused(m, err), err
		}
	}
	return nil, nil
}

// attempt returns how long an attempt may take while other members are held: the time limit of its commands.
func (m *member) attempt() time.Duration {
	switch {
	case m.about == nil:
		return calls.Timeout
	case m.single == nil: // an Upgradeable has two locks
		return 2 * (calls.Timeout + m.about.Client.ReplicaTimeout())
	}
	return calls.Timeout + m.about.Client.ReplicaTimeout()
}

// longest returns the maximum time of one hold; 0 if the watchdog renews it without limit.
func (m *member) longest() time.Duration {
	of := m.lease // the members of a Quorum share it
	if of == nil {
		return 0
	}
	if of.Lease == 0 || of.MaxHold == 0 {
		return max(of.Lease, of.MaxHold)
	}
	return min(of.Lease, of.MaxHold)
}

// leading returns the first member for the same lock. A section that locked a later one first would then wait for itself.
func (m *member) leading() *member { return cmp.Or(m.first, m) }

// refused returns the member to wait for after err, or nil if waiting cannot help: the ctx is done, or it is another error than a
// refusal. If Redis stops answering or the ctx ends later, the wait itself will fail.
func (s *taken) refused(m *member, err error) *member {
	if errors.Is(err, ErrNotAcquired) && !errors.Is(err, ErrDeadlock) && (s.ctx.Err() == nil || !errors.Is(err, s.ctx.Err())) {
		return m.leading()
	}
	return nil
}

// leave rolls back. The caller may return before that is finished.
func (s *taken) leave(who tenure.Caller) {
	s.unwatch()
	if len(s.unlocks) == 0 {
		s.cancel(s.of.fail(tenure.ErrUnlocked))
		return
	}
	who.LeaveTo(s.rollBack, s.of.client.tells(), s.of.clients...)
}

// rollBack unlocks what was taken and not yet returned to the caller. WithMinHold does not keep these locks, and errors are dropped.
func (s *taken) rollBack() {
	for _, l := range s.levels {
		l.NeverReturned()
	}
	_ = s.unlock()
}

// unlock releases every lock taken so far. Calls that cannot be batched run concurrently, so that one silent server delays no other.
func (s *taken) unlock() error {
	s.cancel(s.of.fail(tenure.ErrUnlocked))
	all, panics := make([][]error, len(s.unlocks)), make([]any, len(s.unlocks))
	var wg sync.WaitGroup
	for i, unlock := range s.unlocks {
		one := func() {
			defer func() { panics[i] = recover() }() // a member's Trace may panic
			all[i] = unlock()
		}
		if i == len(all)-1 {
			one()
		} else {
			wg.Go(one) // ends with its unlock; awaited below
		}
	}
	wg.Wait()
	for _, v := range panics {
		if v != nil {
			panic(v) // on the caller's goroutine, after all unlocks
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
