package rlock

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
	caller
	engine *engine
	locks  []*locking
	failed atomic.Pointer[error] // what went wrong the last time, if it did
}

// maxBatch bounds the locks of one call, and so for how long Redis does nothing else: a few milliseconds.
const maxBatch = 1000

// errAlone says that Redis refused a call for many locks. Asked for each of them alone, it will say which one that was about.
var errAlone = errors.New("to be taken one by one")

// isBatchable reports whether one call can take or release the lock with others.
func (m *spec) isBatchable() bool { return m.kind.PassesOn && m.engine.options.Replicas == 0 }

// takeTogether takes all locks, or none. refused is the index of one that another owner holds, or others here wait for, and
// the error is about that one; it is -1 if it failed otherwise.
func takeTogether(who caller, all []*spec) (levels []*level, refused int, err error) {
	first := all[0]
	c := first.engine
	if !c.calls.Start() {
		return nil, -1, first.closed()
	}
	defer c.calls.Ended()
	if c.isShut() {
		return nil, -1, first.closed()
	}
	if who.ctx.Err() != nil {
		return nil, -1, first.gaveUp(who, nil, lua.AcquireReply{})
	}
	if c.cluster.isUnknown() {
		if known, err := c.cluster.learn(who.ctx, who.limit, first); !known {
			return nil, -1, first.gaveUp(who, err, lua.AcquireReply{})
		}
	}
	b := &batch{caller: who, engine: c, locks: make([]*locking, 0, len(all))}
	for i, m := range all {
		l := &locking{acquireRequest: acquireRequest{caller: who, spec: m, tenure: newTenure(m), count: 1}}
		if !c.hub.JoinFirst(&l.waiter, m.waiters()) {
			b.withdraw()
			return nil, i, m.gaveUp(who, nil, lua.AcquireReply{})
		}
		b.locks = append(b.locks, l)
	}
	a, left, err := leavable(who.ctx, first, who.limit, b.send, b.rollBack)
	switch {
	case left:
		if failed := b.failed.Load(); failed != nil {
			err = *failed
		}
		return nil, -1, first.gaveUp(who, err, lua.AcquireReply{})
	case err != nil:
		b.withdraw()
		if isRefusal(err) {
			return nil, -1, errAlone
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
		args[i] = l.spec.acquireArgs(l.tenure, l.count)
	}
	again := calls.Retry{Until: b.limit, Least: calls.MinTries}
	for {
		sent := time.Now()
		ctx := c.calls.Context(b.ctx, sent, 0)
		reply, err := lua.AcquireAll(ctx, c.rdb, args)
		if err != nil && calls.MayHaveRun(err) || ctx.IsRepeated() {
			for _, l := range b.locks {
				l.tenure.lateAcquire(l.spec.expiry(l.spec.ttl()))
			}
		}
		if err == nil {
			return allAnswer{reply, sent}, nil
		}
		failed := err
		b.failed.Store(&failed)
		if isRefusal(err) || !again.Wait(err, left, c.calls.Done()) {
			return allAnswer{}, err
		}
	}
}

// withdraw takes all waiters out of their queues, and sweeps what may be left in Redis.
func (b *batch) withdraw() {
	rest := make([]*sweep.Orphan, len(b.locks))
	for i, l := range b.locks {
		l.waiter.Leave()
		rest[i] = l.tenure.orphan()
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
		args[i] = l.tenure.releaseArgs()
	}
	ctx, cancel := b.engine.calls.Last()
	defer cancel()
	results, err := lua.ReleaseEach(ctx, b.engine.rdb, args)
	for i, l := range b.locks {
		if err == nil {
			l.tenure.givenBack(results[i].Err)
		} else {
			l.tenure.givenBack(err)
		}
	}
}

// enter turns a grant into live holds, whose levels are in one another and end together, or gives it back.
func (b *batch) enter(a allAnswer) (levels []*level, err error) {
	ctx, cancel := context.WithCancelCause(b.ctx)
	defer func() {
		if err != nil {
			cancel(nil)
		}
	}()
	inner := ctx
	for i, l := range b.locks {
		m, granted := l.spec, acquireResult{AcquireReply: lua.AcquireReply{Status: lua.Acquired, Token: a.Tokens[i]}, sent: a.sent}
		if until := granted.until(m); !time.Now().Before(until) {
			err = l.tenure.tooLate(m, until)
			break
		}
		s, failed := l.tenure.admitAs(inner, b.outer, cancel, m, granted, false)
		if failed != nil {
			err = m.gaveUp(b.caller, failed, lua.AcquireReply{})
			break
		}
		l.waiter.Done(m.expiry(m.ttl()))
		levels, inner = append(levels, s), nested{ctx, s}
	}
	if err == nil {
		return levels, nil
	}
	b.locks = b.locks[len(levels):]
	_, _, _ = leavable(b.ctx, b.locks[0].spec, b.limit, func(<-chan struct{}) (struct{}, error) {
		b.releaseGrants()
		b.withdraw()
		return struct{}{}, nil
	}, func(_ struct{}, err error) {
		if err != nil { // not even begun, since Redis is silent
			for _, l := range b.locks {
				l.tenure.givenBack(err)
			}
			b.withdraw()
		}
	})
	for _, l := range levels {
		l.hold.tenure.taken = nil // nobody was told of it
	}
	b.caller.leaveTo(func() { _ = unlockTogether(levels) }, b.engine)
	return nil, err
}

// nested is the ctx of a section, with one more of its levels around the next one. All of them end together.
type nested struct {
	context.Context

	around *level
}

func (n nested) Value(key any) any {
	if _, ok := key.(sectionKey); ok {
		return n.around
	}
	return n.Context.Value(key)
}

// unlockTogether ends levels that takeTogether opened. The ctx of their section ends first.
func unlockTogether(levels []*level) (errs []error) {
	if len(levels) == 0 {
		return nil
	}
	var last []*level // of their holds
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
	defer func() { spend(first.Context, began, len(errs) > 0) }()
	by := newUnlocker()
	return append(errs, unlockFor(by, first.unlockTime(began), last, func() []error { return releaseLevels(last, by) })...)
}

// releaseLevels ends the holds of levels that are closed.
func releaseLevels(levels []*level, by *unlocker) (errs []error) {
	c := levels[0].spec.engine
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
	c := all[0].tenure.spec.engine
	var last *ending // the one whose lease ends last
	var until time.Time
	args := make([]lua.ReleaseArgs, len(all))
	for i, e := range all {
		args[i] = e.args
		if e.next != nil {
			args[i] = e.next.takesOver(e.args, e.stay)
		}
		if t := c.leases.Until(&e.tenure.lease); last == nil || t.After(until) {
			last, until = e, t
		}
	}
	again := calls.Retry{Until: until}
	for handsOff := true; ; handsOff = false {
		closed := c.calls.IsClosed() // then Close may wait for this
		sent := time.Now()
		results, repeated, err := last.tenure.sendTogether(args, last.by, closed)
		for i, e := range all {
			switch {
			case err == nil:
				e.answered(handsOff && e.next != nil, sent, results[i], repeated)
			case isRefusal(err):
				e.alone()
			default:
				e.late, e.err = e.late || calls.MayHaveRun(err), err
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
			e.next.notHandedOff(e.releaseResult)
		}
	}
}

// sendTogether makes the call.
func (t *tenure) sendTogether(args []lua.ReleaseArgs, by *unlocker, closed bool) (
	results []lua.ReleaseResult, repeated bool, err error,
) {
	c := t.spec.engine
	if closed {
		ctx, cancel := c.calls.Last()
		defer cancel()
		results, err = lua.ReleaseEach(ctx, c.rdb, args)
		return results, false, err
	}
	ctx := t.releaseCall(time.Now(), by)
	results, err = lua.ReleaseEach(ctx, c.rdb, args)
	c.calls.Answered(t.spec.slot, err)
	return results, ctx.IsRepeated(), err
}

// answered takes in what Redis said of this hold.
func (e *ending) answered(handsOff bool, sent time.Time, r lua.ReleaseResult, repeated bool) {
	switch {
	case r.Err != nil:
		e.late = e.late || calls.MayHaveRun(r.Err)
		e.alone()
	case handsOff:
		e.releaseResult = e.tenure.handedOff(e.next, e.stay, sent, r.ReleaseReply, nil, repeated)
		if e.err != nil {
			e.alone()
			return
		}
		e.next = nil
	default:
		e.tenure.spec.wakeIfAlone(r.ReleaseReply)
		e.late = e.late || repeated
		e.releaseResult = releaseResult{sent: sent, held: r.Status != lua.NotHeld || e.late, late: e.late}
	}
}

// alone releases the hold by calls of its own.
func (e *ending) alone() {
	if e.next == nil {
		e.call(e.by)
	}
	e.finish(e.by)
}
