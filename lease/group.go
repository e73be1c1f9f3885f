package lease

import "time"

// groupKey is common to all leases of one call.
type groupKey struct {
	of  any           // see Keeper.Group
	ttl time.Duration // of the renewals
}

// group holds the leases that may share a call. Its fields are guarded by the Renewer's mutex. A lease to be renewed
// is in one of its queues, or in a call.
type group struct {
	groupKey

	members int // leases that point here; the last to leave removes the group

	resting queue // in Renewer.dues: waiting for the next renewal or retry, roughly by due time
	failed  queue // to be sent again: before the due ones, since they have less time left (TestRetryGoesFirst)
	due     queue // to be sent

	calls   int           // in flight
	items   int           // in flight, over all calls
	failure *failure      // of the latest call to end, if it got no answer
	renewed time.Duration // when a call last ended with verdicts
}

// queue is a first-in, first-out list of leases, linked through the leases themselves: any of them can leave at once,
// and queueing does not allocate.
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
	// parallel bounds a group's leases in flight, in full batches.
	//
	// It protects the server and its other users: with the default batch at most 6,400 renewals, about ten
	// milliseconds of work, are queued ahead of another command. It is not lower because it also limits renewals over
	// a slow link: at a round trip of 200 ms, 6,400 in flight renew 32,000 a second, and 100,000 leases need 10,000.
	// It counts leases, not calls, because refused leases are sent one by one. And it holds per group: otherwise
	// calls to one dead node would use it up, and leases on healthy nodes would be lost.
	parallel = 64

	// probes bounds a group's calls in flight while it gives no answer. More would find out nothing new, and cost a
	// goroutine each. It is two, not one, because one call may be stuck for a reason of its own.
	probes = 2
)

func (g *group) maySend(batch int) bool {
	return g.waits() && g.items < parallel*batch && (g.failure == nil || g.calls < probes)
}

func (g *group) waits() bool { return g.failed.head != nil || g.due.head != nil }

// queue returns the queue in which l waits for a call. The choice does not change while l waits.
func (g *group) queue(l *Lease) *queue {
	if l.failure != nil {
		return &g.failed
	}
	return &g.due
}
