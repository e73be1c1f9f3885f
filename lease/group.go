package lease

import "time"

// groupKey is what the leases of one call have in common.
type groupKey struct {
	of  any           // see Keeper.Group
	ttl time.Duration // of the renewals
}

// group is what the renewer knows of the leases that may share a call. Its fields are guarded by the mutex of the
// Renewer. A lease that is to be renewed is in one of its queues, or in a call.
type group struct {
	groupKey

	members int // leases that point here; the group is forgotten with the last of them

	resting queue // in Renewer.dues: the next renewal or the next try, nearly in the order of these
	failed  queue // to be sent again: before those that are due, having less time left (TestRetryGoesFirst)
	due     queue // to be sent

	calls   int           // in flight
	items   int           // in flight, over all calls
	failure *failure      // of the call that ended last, if it got no answer
	renewed time.Duration // when a call last ended with verdicts
}

// queue is a list of leases, first in, first out, linked through the leases themselves, so that any can leave it at
// once and queueing does not allocate.
type queue struct{ head, tail *Lease }

func (q *queue) push(l *Lease) {
	l.prev = q.tail
	if q.tail == nil {
		q.head = l
	} else {
		q.tail.next = l
	}
	q.tail = l
}

func (q *queue) remove(l *Lease) {
	if l.prev == nil {
		q.head = l.next
	} else {
		l.prev.next = l.next
	}
	if l.next == nil {
		q.tail = l.prev
	} else {
		l.next.prev = l.prev
	}
	l.next, l.prev = nil, nil
}

const (
	// parallel bounds the leases of a group in flight, to as many full batches.
	//
	// It is there for the server and its other users: with the default batch no more than 6,400 renewals, about ten
	// milliseconds of work, are ever queued ahead of somebody's command. It is not lower because it also bounds what
	// can be kept over a slow link: at a round trip of 200 ms, 6,400 in flight renew 32,000 a second, and 100,000
	// leases need 10,000. It counts leases, not calls, because those that were refused are sent one by one. And it
	// holds for a group, not for all, or the calls to one dead node would fill it and leases on healthy nodes be lost.
	parallel = 64

	// probes bounds the calls of a group in flight as long as it gives no answer. More would find out nothing new, and
	// cost a goroutine each. Two, not one, because one may be stuck for a reason of its own.
	probes = 2
)

// maySend reports whether leases wait for a call that the bounds allow.
func (g *group) maySend(batch int) bool {
	return g.waits() && g.items < parallel*batch && (g.failure == nil || g.calls < probes)
}

// waits reports whether leases wait for a call.
func (g *group) waits() bool { return g.failed.head != nil || g.due.head != nil }

// queue is the one that l waits in for a call. What it is chosen by does not change as long as l waits.
func (g *group) queue(l *Lease) *queue {
	if l.failure != nil {
		return &g.failed
	}
	return &g.due
}
