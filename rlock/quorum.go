package rlock

import (
	"context"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/quorum"
	"github.com/go-rlock/rlock/internal/tenure"
)

// QuorumMutex is a lock that more than half of several servers hold, see [Quorum]. All handles on the same members are the same lock. Its
// methods are safe for concurrent use.
type QuorumMutex struct {
	name    string         // of the first argument
	of      *quorum.Quorum // nil if the handle is invalid
	client  *Client        // of its first member; nil if the handle is invalid
	invalid error          // what is wrong with the handle; returned by Lock
}

// Quorum returns a lock over an odd number of independent servers, three or more: a holder of the members on more than half of them has the
// lock. So it survives the death of the others and the loss of all their data: Redlock. docs/locks.md has its limits.
//
// Each member is a plain [Client.Mutex] of a Client of its own. The servers share no replication and no cluster. The methods report other kinds,
// two members of one Client, and members with a different [WithLease] or [WithWatchdog]; Lock reports two of one server if that costs the majority.
// [Options].UnlockTimeout, Logger and Trace are those of the first one's Client.
//
// A hold is trusted until (time the call was sent) + lease - drift on a majority of the servers; the drift is 1 % of the lease and 2 ms. Without
// a majority that answers, Lock fails with [ErrUnreachable] after three seconds. There is no fencing token and no order among processes.
//
// A Lock under the section's ctx adds a level, and asks no server; levels share the lease of the first. A Lock of a member waits for itself
// there. When a majority of the Clients is closed, calls return [ErrClosed], and sections are cancelled.
func Quorum(members ...Locker) *QuorumMutex {
	q := &QuorumMutex{}
	specs, err := q.check(members)
	if err != nil {
		q.invalid = q.fail(err)
		return q
	}
	q.of = quorum.New(q.name, specs)
	q.client = members[0].(*Mutex).client //nolint:errcheck // looked at before
	return q
}

// check returns the members as a quorum, and an error if they do not fit together.
func (q *QuorumMutex) check(members []Locker) (specs []*tenure.Lock, err error) {
	of := make(map[*tenure.Client]bool)
	for i, l := range members {
		given, ok := l.(*Mutex)
		if !ok || given == nil || given.lock == nil {
			return nil, fmt.Errorf("member %d of the quorum is a %T: give it a Mutex that a Client made", i+1, l)
		}
		m := given.lock
		first := m
		if i > 0 {
			first = specs[0]
		} else {
			q.name = m.Name
		}
		switch {
		case m.Invalid != nil:
			return nil, m.Invalid
		case m.Kind != kinds.Mutex:
			return nil, fmt.Errorf("member %d of the quorum is no plain Mutex: tokens, readers and queues are of one server alone, "+
				"and say nothing of the others", i+1)
		case m.NoReentry || m.MaxHold > 0 || m.MinHold > 0 || m.Grace > 0 || m.Linger > 0:
			return nil, fmt.Errorf("member %d of the quorum has an option that is for locks of one server: WithLease, WithWatchdog, "+
				"WithMaxWait and WithAsked are for both", i+1)
		case of[m.Client]:
			return nil, fmt.Errorf("member %d of the quorum is of the same Client as another one: one server has one vote", i+1)
		case m.Wants != first.Wants:
			return nil, fmt.Errorf("member %d of the quorum differs from the first in WithAsked: give it to all members", i+1)
		case m.AskedAfter != first.AskedAfter:
			return nil, fmt.Errorf("member %d of the quorum differs from the first in WithAskedAfter: give the same to all members", i+1)
		case m.Lease != first.Lease:
			return nil, fmt.Errorf("member %d of the quorum has another lease than the first", i+1)
		case m.Watchdog != first.Watchdog:
			return nil, fmt.Errorf("member %d of the quorum differs from the first in WithWatchdog: give the same to all members", i+1)
		}
		of[m.Client] = true
		specs = append(specs, m)
	}
	switch n := len(members); {
	case n < 3:
		return nil, fmt.Errorf("a quorum of %d outlives no server: give it 3 members or more, an odd number", n)
	case n%2 == 0:
		return nil, fmt.Errorf("a quorum of %d outlives no more servers than one of %d: use an odd number", n, n-1)
	}
	return specs, nil
}

// Name returns the name of the first member.
func (q *QuorumMutex) Name() string {
	if q == nil {
		panic("rlock: a QuorumMutex that was not made by Quorum")
	}
	return q.name
}

// Lock is [Mutex.Lock].
func (q *QuorumMutex) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	q.made(ctx)
	who := tenure.CallerNow(ctx)
	if q.invalid == nil {
		who = who.Patient(q.of.Whole.MaxWait, q.attempt()).Persistent(q.of.Whole.Persists)
	}
	return q.lockTraced(who)
}

// TryLock is [Mutex.TryLock]; the servers have a second until a majority has answered. If wait is 0 or less it may fail although nobody gets the
// lock: two callers that ask at the same time may keep each other from the majority.
func (q *QuorumMutex) TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error) {
	q.made(ctx)
	who := tenure.CallerNow(ctx).UpTo(wait, q.attempt())
	if q.invalid == nil {
		who = who.Persistent(q.of.Whole.Persists)
	}
	return q.lockTraced(who)
}

func (q *QuorumMutex) attempt() (least time.Duration) {
	if q.invalid == nil {
		for _, m := range q.of.Members {
			least = max(least, m.Client.MinAttempt())
		}
	}
	return least
}

func (q *QuorumMutex) lockTraced(who tenure.Caller) (context.Context, UnlockFunc, error) {
	if q.invalid != nil {
		return who.Ctx, func() error { return q.fail(ErrNotHeld, errLockFailed) }, q.invalid
	}
	return lockTraced(q.client.trace, q.of.Whole, who, without(q.of.Lock))
}

// Do is [Mutex.Do].
func (q *QuorumMutex) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return inside(ctx, q.Lock, fn)
}

// TryDo is [Mutex.TryDo].
func (q *QuorumMutex) TryDo(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	return inside(ctx, within(q, wait), fn)
}

func (q *QuorumMutex) made(ctx context.Context) {
	if q == nil || !q.isMade() {
		panic("rlock: a QuorumMutex that was not made by Quorum")
	}
	needs(ctx)
}

func (q *QuorumMutex) isMade() bool { return q.of != nil || q.invalid != nil }

func (q *QuorumMutex) fail(causes ...error) error { return newLockError(q.name, causes...) }
