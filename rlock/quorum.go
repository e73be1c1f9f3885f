package rlock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
)

// QuorumMutex is a lock that more than half of several independent servers hold, see [Quorum]. It has no state of its own: all
// handles on the same members are the same lock. Its methods are safe for concurrent use. They panic if the QuorumMutex was not
// made by Quorum, and if ctx is nil.
type QuorumMutex struct {
	members []*engine.Spec // in the order of their Clients' ids, so that the order of the arguments does not matter
	name    string         // of the first argument
	key     string         // the same for all handles on the same members
	trace   *Trace         // of the Client of the first of them
	invalid error          // what is wrong with the handle; returned by Lock
}

// Quorum returns a lock over three or more independent servers, an odd number: whoever has the members of more than half of
// them has the lock. So it outlives the death of the others, with all that they knew, where a single server, and a replica that
// takes over from it, does not. This is what Redis calls Redlock. It does no I/O.
//
// Each member is a plain [Client.Mutex] of a Client of its own, mostly with the same name. Other kinds, two members of one
// Client, and members with different leases are reported by the methods of the handle. Each of the servers has to be on its
// own: no replication between them, and no common cluster.
//
// Think twice: one server with replicas and [Options].Replicas is less to run, and a store that checks a fencing token
// ([Client.FencedMutex]) is safe from a holder that was paused, which no quorum is. A quorum has no fencing token, no order
// among processes, and costs two commands on every server for a section. When many processes want it all the time, they outvote
// each other, and try again after a random pause.
//
// # Asking
//
// A Lock asks all servers at once and returns with the majority, not with the slowest. It is trusted until (time the call was
// sent) + lease - drift on a majority of the servers. The drift is 1 % of the lease and 2 ms, for clocks that do not run at
// the same rate. A Lock that finds the lock held gives back what it got, sleeps until messages, or the ends of
// leases, say that a majority may be free, and asks again. It polls nothing. If no majority of the servers answers,
// it fails with [ErrUnreachable] after three seconds.
//
// # Keeping
//
// Each server has the hold as a field of its own, which the watchdog of that Client renews. One that lost it, or was out of
// reach, is given it again. The hold is lost when a majority was not renewed in time, or is found to have forgotten it;
// then the ctx of the section is cancelled as for a [Mutex], at the moment that the process's own clock decides.
//
// A Lock under the ctx of a section is one level more, without asking anybody. The levels share the lease of the first; one
// without a lease has the hold renewed. The ctx carries the hold of the quorum, not of its members:
// a Lock of a member under it waits for itself, and [Owner] does not see it.
//
// # Clients that are closed
//
// A member whose Client is closed counts as a server that is down. When a majority of them is closed, waiting calls return
// [ErrClosed] and the ctx of sections is cancelled with it, as by [Client.Close].
func Quorum(members ...Locker) *QuorumMutex {
	q := &QuorumMutex{}
	if err := q.add(members); err != nil {
		q.invalid = q.fail(err)
	}
	slices.SortFunc(q.members, func(a, b *engine.Spec) int { return cmp.Compare(a.Engine.ID, b.Engine.ID) })
	for _, l := range members {
		if m, ok := l.(*Mutex); ok && q.invalid == nil && m.spec == q.members[0] {
			q.trace = m.client.trace
		}
	}
	var key strings.Builder
	for _, m := range q.members {
		key.WriteString(m.Engine.ID + m.Key + "\n")
	}
	q.key = key.String()
	return q
}

// add checks the members.
func (q *QuorumMutex) add(members []Locker) error {
	of := make(map[*engine.Engine]bool)
	for i, l := range members {
		given, ok := l.(*Mutex)
		if !ok || given == nil || given.spec == nil {
			return fmt.Errorf("member %d of the quorum is a %T: give it a Mutex that a Client made", i+1, l)
		}
		m := given.spec
		if i == 0 {
			q.name = m.Name
		}
		switch {
		case m.Invalid != nil:
			return m.Invalid
		case m.Kind != kinds.Mutex:
			return fmt.Errorf("member %d of the quorum is no plain Mutex: tokens, readers and queues are of one server alone, "+
				"and say nothing of the others", i+1)
		case m.NoReentry || m.MaxHold > 0 || m.MinHold > 0 || m.Grace > 0:
			return fmt.Errorf("member %d of the quorum has an option that is for locks of one server: WithLease alone is for both", i+1)
		case of[m.Engine]:
			return fmt.Errorf("member %d of the quorum is of the same Client as another one: one server has one vote", i+1)
		case m.Lease != members[0].(*Mutex).spec.Lease: //nolint:errcheck // looked at before
			return fmt.Errorf("member %d of the quorum has another lease than the first", i+1)
		}
		of[m.Engine] = true
		q.members = append(q.members, m)
	}
	switch n := len(members); {
	case n < 3:
		return fmt.Errorf("a quorum of %d outlives no server: give it 3 members or more, an odd number", n)
	case n%2 == 0:
		return fmt.Errorf("a quorum of %d outlives no more servers than one of %d: use an odd number", n, n-1)
	}
	return nil
}

// Name returns the name of the first member.
func (q *QuorumMutex) Name() string {
	if q == nil {
		panic("rlock: a QuorumMutex that was not made by Quorum")
	}
	return q.name
}

// Lock waits until the lock is held or ctx is done, as [Mutex.Lock] does.
func (q *QuorumMutex) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	q.check(ctx)
	return q.lockTraced(engine.CallerNow(ctx))
}

// TryLock is Lock with a bound on the waiting, see [Mutex.TryLock]. If wait is 0 or less it asks once, and not at all if a
// goroutine of this process has the lock or waits for it. Then it may fail though nobody gets the lock: two that ask in the same
// moment may keep each other from the majority.
func (q *QuorumMutex) TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error) {
	q.check(ctx)
	least := time.Duration(0)
	for _, m := range q.members {
		least = max(least, m.Engine.MinAttempt())
	}
	return q.lockTraced(engine.CallerNow(ctx).UpTo(wait, least))
}

// lockTraced tells of a Lock and of its unlock.
func (q *QuorumMutex) lockTraced(who engine.Caller) (context.Context, UnlockFunc, error) {
	var trace *tracing
	if q.invalid == nil {
		trace = q.trace.follow(who.Ctx, q.name, "quorum", who.Began)
		who.Trace = trace.tracer()
	}
	l, err := q.lock(who)
	if err != nil {
		trace.ended(who.Ctx, err, nil)
		return who.Ctx, func() error { return q.fail(ErrNotHeld, errLockFailed) }, err
	}
	trace.ended(l, nil, func() { _ = l.unlock() })
	l.trace = trace
	return l, l.unlock, nil
}

// Do runs fn while it holds the lock, as [Mutex.Do] does.
func (q *QuorumMutex) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return inside(ctx, q.Lock, fn)
}

// TryDo is Do with TryLock in place of Lock: fn does not run if the lock could not be had within that wait.
func (q *QuorumMutex) TryDo(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	return inside(ctx, within(q, wait), fn)
}

// check panics for what can only be a mistake in the program.
func (q *QuorumMutex) check(ctx context.Context) {
	switch {
	case q == nil || q.members == nil && q.invalid == nil:
		panic("rlock: a QuorumMutex that was not made by Quorum")
	case ctx == nil:
		panic("rlock: the ctx is nil")
	}
}

// lock re-enters the hold that the caller's ctx carries, or competes.
func (q *QuorumMutex) lock(who engine.Caller) (*quorumLevel, error) {
	if q.invalid != nil {
		return nil, q.invalid
	}
	for outer := q.levelIn(who.Ctx); outer != nil; outer = q.levelIn(who.Ctx) {
		if l, err := outer.hold.reenter(who.Ctx, q); err != engine.ErrOver { //nolint:errorlint // never wrapped
			who.Took(engine.PathReentry)
			return l, err
		}
	}
	e := &election{Caller: who, quorum: q}
	if who.Ctx.Err() != nil {
		return nil, e.failure(nil)
	}
	return e.compete()
}

// majority is how many servers have to have the lock.
func (q *QuorumMutex) majority() int { return len(q.members)/2 + 1 }

// isClosed reports whether too few Clients keep their holds for a majority.
func (q *QuorumMutex) isClosed() bool { return q.tooMany((*engine.Engine).IsTold) }

// IsShut reports whether too few Clients may begin a hold.
func (q *QuorumMutex) isShut() bool { return q.tooMany((*engine.Engine).IsShut) }

func (q *QuorumMutex) tooMany(are func(*engine.Engine) bool) bool {
	n := 0
	for _, m := range q.members {
		if are(m.Engine) {
			n++
		}
	}
	return n > len(q.members)-q.majority()
}

func (q *QuorumMutex) fail(causes ...error) error { return &lockError{name: q.name, causes: causes} }

// tooFew is the error of a majority that could not be had, because of what a server, or the way to it, said.
func (q *QuorumMutex) tooFew(err error) error {
	if err == nil {
		err = calls.ErrNoAnswer
	}
	return unreachable(fmt.Errorf("fewer than %d of %d servers took part: %w", q.majority(), len(q.members), err))
}

// LevelIn returns the innermost open level of q that ctx carries, or nil.
func (q *QuorumMutex) levelIn(ctx context.Context) *quorumLevel {
	for l, ok := engine.Innermost[*quorumLevel](engine.SectionOf(ctx)); ok; l, ok = engine.Innermost[*quorumLevel](l.outer) {
		if l.quorum.key == q.key && l.IsOpen() {
			return l
		}
	}
	return nil
}

// quorumLevel is one Lock of a quorum's hold, open until its unlock is called. It is the ctx that the Lock returns.
type quorumLevel struct {
	context.Context // cancelled when the level is closed or the hold is lost

	quorum *QuorumMutex
	hold   *quorumHold
	outer  engine.Section // see section.Around
	inner  engine.InnerUnlocks
	trace  *tracing                // nil: nobody wants to know
	cancel context.CancelCauseFunc // nil once the level is closed; guarded by quorumHold.mu
}

// String keeps fmt from reading the fields, which change. It is the form of package context.
func (l *quorumLevel) String() string {
	return fmt.Sprint(l.Context) + ".WithQuorum(" + engine.Quote(l.quorum.name) + ")"
}

func (l *quorumLevel) Around() engine.Section        { return l.outer }
func (l *quorumLevel) Owns(field string) bool        { return l.hold.has(field) }
func (l *quorumLevel) Unlocks() *engine.InnerUnlocks { return &l.inner }

// Value makes the level the innermost section of its context.
func (l *quorumLevel) Value(key any) any {
	if _, ok := key.(engine.SectionKey); ok {
		return l
	}
	return l.Context.Value(key)
}

func (l *quorumLevel) IsOpen() bool {
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	return l.cancel != nil
}
