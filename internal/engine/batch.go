package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
)

// A batch is locks of one Client, and on a cluster of one slot, that are taken by one call, all or none, and released by one. Each
// has a waiter, a tenure and a level of its own, as if it were alone, and is under the same rules; only the calls are shared.
//
// Its attempt is that of TryLock(0) on each: it needs the turn in every queue of the process (I7), so it asks nobody if other
// goroutines wait for one of the locks. Nobody else makes calls for holds that are not live yet (I1).

// batch is an attempt at many locks.
type batch struct {
	Caller
	engine *Engine
	locks  []*locking
	failed atomic.Pointer[error] // what went wrong the last time, if it did
}

// MaxBatch bounds the locks of one call, and so for how long Redis does nothing else: a few milliseconds.
const MaxBatch = 1000

// ErrAlone says that Redis refused a call for many locks. Asked for each of them alone, it will say which one that was about.
var ErrAlone = errors.New("to be taken one by one")

// IsBatchable reports whether one call can take or release the lock with others.
func (m *Spec) IsBatchable() bool { return m.Kind.PassesOn && m.Engine.Options.Replicas == 0 }

// TakeTogether takes all locks, or none. refused is the index of one that another owner holds, or others here wait for, and
// the error is about that one; it is -1 if it failed otherwise.
func TakeTogether(who Caller, all []*Spec) (levels []*Level, refused int, err error) {
	first := all[0]
	c := first.Engine
	if !c.Calls.Start() {
		return nil, -1, first.closed()
	}
	defer c.Calls.Ended()
	if c.IsShut() {
		return nil, -1, first.closed()
	}
	if who.Ctx.Err() != nil {
		return nil, -1, first.gaveUp(who, nil, lua.AcquireReply{})
	}
	if c.Cluster.IsUnknown() {
		if known, err := c.Cluster.Learn(who.Ctx, who.Limit, first); !known {
			return nil, -1, first.gaveUp(who, err, lua.AcquireReply{})
		}
	}
	b := &batch{Caller: who, engine: c, locks: make([]*locking, 0, len(all))}
	for i, m := range all {
		l := &locking{AcquireRequest: AcquireRequest{Caller: who, Spec: m, Tenure: newTenure(m), Count: 1}}
		if !c.Hub.JoinFirst(&l.waiter, m.waiters()) {
			b.withdraw()
			return nil, i, m.gaveUp(who, nil, lua.AcquireReply{})
		}
		b.locks = append(b.locks, l)
	}
	a, left, err := Leavable(who.Ctx, first, who.Limit, b.send, b.rollBack)
	switch {
	case left:
		if failed := b.failed.Load(); failed != nil {
			err = *failed
		}
		return nil, -1, first.gaveUp(who, err, lua.AcquireReply{})
	case err != nil:
		b.withdraw()
		if isRefusal(err) {
			return nil, -1, ErrAlone
		}
		return nil, -1, first.gaveUp(who, err, lua.AcquireReply{})
	case !a.Acquired:
		b.withdraw()
		return nil, a.Refused, all[a.Refused].gaveUp(who, nil, a.Refusal)
	}
	levels, err = b.enter(a)
	return levels, -1, err
}

// isRefusal reports whether Redis said of a call for many locks that it will not carry it out, maybe because of one of them. While
// a slot moves, it says so of keys of which only some have moved.
func isRefusal(err error) bool {
	var said *rueidis.RedisError
	return errors.As(err, &said) && (!calls.MayPass(err) || said.IsTryAgain())
}

// allAnswer is what Redis replied to a batch.
type allAnswer struct {
	lua.AcquireAllReply
	sent time.Time // as in answer
}

// send asks Redis, again if something went wrong that may pass. It stops early when the caller has left.
func (b *batch) send(left <-chan struct{}) (allAnswer, error) {
	c := b.engine
	args := make([]lua.AcquireArgs, len(b.locks))
	for i, l := range b.locks {
		args[i] = l.Spec.acquireArgs(l.Tenure, l.Count)
	}
	again := calls.Retry{Until: b.Limit, Least: calls.MinTries}
	for {
		sent := time.Now()
		ctx := c.Calls.Context(b.Ctx, sent, 0)
		reply, err := lua.AcquireAll(ctx, c.rdb, args)
		if err != nil && calls.MayHaveRun(err) || ctx.IsRepeated() {
			for _, l := range b.locks {
				l.Tenure.lateAcquire(l.Spec.expiry(l.Spec.TTL()))
			}
		}
		if err == nil {
			return allAnswer{reply, sent}, nil
		}
		failed := err
		b.failed.Store(&failed)
		if isRefusal(err) || !again.Wait(err, left, c.Calls.Done()) {
			return allAnswer{}, err
		}
	}
}

// withdraw takes all waiters out of their queues, and sweeps what may be left in Redis.
func (b *batch) withdraw() {
	rest := make([]*sweep.Orphan, len(b.locks))
	for i, l := range b.locks {
		l.waiter.Leave()
		rest[i] = l.Tenure.orphan()
	}
	b.engine.sweep(rest...)
}

// rollBack ends an attempt whose caller has left, after the answer.
func (b *batch) rollBack(a allAnswer, err error) {
	if err == nil && a.Acquired {
		b.releaseGrants()
	}
	b.withdraw()
}

// releaseGrants releases grants that never became live, and notes failures for the sweeper.
func (b *batch) releaseGrants() {
	args := make([]lua.ReleaseArgs, len(b.locks))
	for i, l := range b.locks {
		args[i] = l.Tenure.ReleaseArgs()
	}
	ctx, cancel := b.engine.Calls.Last()
	defer cancel()
	results, err := lua.ReleaseEach(ctx, b.engine.rdb, args)
	for i, l := range b.locks {
		if err == nil {
			l.Tenure.givenBack(results[i].Err)
		} else {
			l.Tenure.givenBack(err)
		}
	}
}

// enter turns a grant into live holds, whose levels are in one another and end together, or gives it back.
func (b *batch) enter(a allAnswer) (levels []*Level, err error) {
	ctx, cancel := context.WithCancelCause(b.Ctx)
	defer func() {
		if err != nil {
			cancel(nil)
		}
	}()
	inner := ctx
	for i, l := range b.locks {
		m, granted := l.Spec, AcquireResult{AcquireReply: lua.AcquireReply{Status: lua.Acquired, Token: a.Tokens[i]}, Sent: a.sent}
		if until := granted.until(m); !time.Now().Before(until) {
			err = l.Tenure.tooLate(m, until)
			break
		}
		s, failed := l.Tenure.admitAs(inner, b.Outer, cancel, m, granted, false)
		if failed != nil {
			err = m.gaveUp(b.Caller, failed, lua.AcquireReply{})
			break
		}
		l.waiter.Done(m.expiry(m.TTL()))
		levels, inner = append(levels, s), nested{ctx, s}
	}
	if err == nil {
		return levels, nil
	}
	b.locks = b.locks[len(levels):]
	_, _, _ = Leavable(b.Ctx, b.locks[0].Spec, b.Limit, func(<-chan struct{}) (struct{}, error) {
		b.releaseGrants()
		b.withdraw()
		return struct{}{}, nil
	}, func(_ struct{}, err error) {
		if err != nil { // not even begun, since Redis is silent
			for _, l := range b.locks {
				l.Tenure.givenBack(err)
			}
			b.withdraw()
		}
	})
	for _, l := range levels {
		l.hold.tenure.taken = nil // nobody was told of it
	}
	b.Caller.LeaveTo(func() { _ = UnlockTogether(levels) }, b.engine)
	return nil, err
}

// nested is the ctx of a section, with one more of its levels around the next one. All of them end together.
type nested struct {
	context.Context

	around *Level
}

func (n nested) Value(key any) any {
	if _, ok := key.(SectionKey); ok {
		return n.around
	}
	return n.Context.Value(key)
}

// UnlockTogether ends levels that TakeTogether opened. The ctx of their section ends first.
func UnlockTogether(levels []*Level) (errs []error) {
	if len(levels) == 0 {
		return nil
	}
	var last []*Level // of their holds
	for _, l := range levels {
		if _, isLast := l.close(); isLast {
			last = append(last, l)
		} else if err := l.outlived(); err != nil {
			errs = append(errs, err)
		}
	}
	if len(last) == 0 {
		return errs
	}
	first, began := levels[0], time.Now()
	defer func() { Spend(first.Context, began, len(errs) > 0) }()
	by := new(unlocker)
	return append(errs, unlockFor(by, first.unlockTime(began), last, func() []error { return releaseLevels(last, by) })...)
}

// releaseLevels ends the holds of levels that are closed.
func releaseLevels(levels []*Level, by *unlocker) (errs []error) {
	c := levels[0].spec.Engine
	for _, l := range levels {
		l.hold.tenure.awaitCallSlot() // whoever has the right to make calls for it waits for no other hold
	}
	all := make([]unlocking, len(levels))
	ending := make([]*ending, 0, len(levels)) // their holds end
	for i, l := range levels {
		all[i] = l.toUnlock(by)
		if u := &all[i]; u.ends() {
			ending = append(ending, endingOf(u))
		}
	}
	if len(ending) > 0 {
		releaseTogether(ending)
	}
	rest := make([]*sweep.Orphan, len(all))
	for i := range all {
		var err error
		if rest[i], err = all[i].end(); err != nil {
			errs = append(errs, err)
		}
	}
	for _, l := range levels {
		l.hold.tenure.releaseCallSlot()
	}
	c.sweep(rest...)
	return errs
}

// ending is the end of a hold of a batch.
type ending struct {
	*unlocking

	stay bool // its next owner here, if there is one, comes before those of other processes
}

func endingOf(u *unlocking) *ending {
	e := &ending{unlocking: u}
	e.releasing = u.tenure.toRelease()
	e.next, e.stay = u.tenure.claim(time.Now(), &e.args)
	return e
}

// releaseTogether releases holds by one call, again if something went wrong that may pass and their leases last. As with a release
// of one, only the first call names the next owners. What Redis refuses it is asked for alone.
func releaseTogether(all []*ending) {
	c := all[0].tenure.Spec.Engine
	var last *ending // the one whose lease ends last
	var until time.Time
	args := make([]lua.ReleaseArgs, len(all))
	for i, e := range all {
		args[i] = e.args
		if e.next != nil {
			args[i] = e.next.takesOver(e.args, e.stay)
		}
		if t := c.Leases.Until(&e.tenure.Lease); last == nil || t.After(until) {
			last, until = e, t
		}
	}
	again := calls.Retry{Until: until}
	for handsOff := true; ; handsOff = false {
		closed := c.Calls.IsClosed() // then Close may wait for this
		sent := time.Now()
		results, repeated, err := last.tenure.sendTogether(args, last.by, closed)
		for i, e := range all {
			switch {
			case err == nil:
				e.answered(handsOff && e.next != nil, sent, results[i], repeated)
			case isRefusal(err):
				e.alone()
			default:
				e.Late, e.Err = e.Late || calls.MayHaveRun(err), err
			}
			args[i] = e.args
		}
		if err == nil || isRefusal(err) {
			break
		}
		if closed || !last.by.again(last.tenure, &again, err) {
			break
		}
	}
	for _, e := range all {
		if e.next != nil {
			e.next.notHandedOff(e.ReleaseResult)
		}
	}
}

// sendTogether makes the call.
func (t *Tenure) sendTogether(args []lua.ReleaseArgs, by *unlocker, closed bool) (
	results []lua.ReleaseResult, repeated bool, err error,
) {
	c := t.Spec.Engine
	if closed {
		ctx, cancel := c.Calls.Last()
		defer cancel()
		results, err = lua.ReleaseEach(ctx, c.rdb, args)
		return results, false, err
	}
	ctx := t.releaseCall(time.Now(), by)
	results, err = lua.ReleaseEach(ctx, c.rdb, args)
	c.Calls.Answered(t.Spec.Slot, err)
	return results, ctx.IsRepeated(), err
}

// answered takes in what Redis said of this hold.
func (e *ending) answered(handsOff bool, sent time.Time, r lua.ReleaseResult, repeated bool) {
	switch {
	case r.Err != nil:
		e.Late = e.Late || calls.MayHaveRun(r.Err)
		e.alone()
	case handsOff:
		e.ReleaseResult = e.tenure.handedOff(e.next, e.stay, sent, r.ReleaseReply, nil, repeated)
		if e.Err != nil {
			e.alone()
			return
		}
		e.next = nil
	default:
		e.tenure.Spec.wakeIfAlone(r.ReleaseReply)
		e.Late = e.Late || repeated
		e.ReleaseResult = ReleaseResult{sent: sent, Held: r.Status != lua.NotHeld || e.Late, Late: e.Late}
	}
}

// alone releases the hold by calls of its own.
func (e *ending) alone() {
	if e.next == nil {
		e.call(e.by)
	}
	e.finish(e.by)
}
