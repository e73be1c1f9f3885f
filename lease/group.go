package lease

import "time"

// group is what the renewer knows of the leases that may share a call. All
// fields are guarded by the mutex of the Renewer.
type group struct {
	key     any
	members int   // leases that point here; the group is forgotten with the last of them
	many    queue // due, to be sent in batches
	again   queue // the same, after a failure: before those, having less time left
	alone   queue // due, to be sent each in a call of its own
	resting queue // in Renewer.dues, nearly in the order of their dues
	calls   int   // in flight
	items   int   // in flight, over all calls
	failing bool  // the call that ended last got no answer
	ready   bool  // is in Renewer.ready

	renewed time.Duration // when a call last ended with verdicts
}

// queue is a list of leases, first in, first out, linked through the leases
// themselves, so that any can leave it at once and queueing doesn't allocate.
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
	// parallel bounds the leases of one group in flight, to as many full
	// batches.
	//
	// The bound is there for the server and its other users: with the default
	// batch, no more than 6,400 renewals, about ten milliseconds of work, are
	// ever queued ahead of somebody's command. It isn't lower because it also
	// bounds what can be kept over a slow link: at a round trip of 200 ms,
	// 6,400 in flight renew 32,000 a second, and 100,000 leases need 10,000.
	//
	// It counts leases, not calls, because after a failure they are sent each
	// alone, and then the same number of calls would carry a hundredth.
	//
	// It holds for a group, not for all: a group whose node has vanished would
	// otherwise fill it with calls that wait for their timeouts, and leases
	// on healthy nodes would be lost with it.
	parallel = 64

	// probes bounds the calls of a group in flight as long as its calls get no
	// answer. More would find out nothing new, but cost a goroutine each: on a
	// cluster of thousands of groups, most of them with a few leases, that
	// would be all the leases of the vanished node. Two, not one, because one
	// may be stuck for a reason of its own.
	probes = 2
)

// full reports whether no further call may be started.
func (g *group) full(batch int) bool {
	return g.failing && g.calls >= probes || g.items >= parallel*batch
}

// waiting reports whether a lease waits to be sent.
func (g *group) waiting() bool {
	return g.alone.head != nil || g.again.head != nil || g.many.head != nil
}

// queue is the one in which l waits. What it is chosen by does not change as long as l does.
func (g *group) queue(l *Lease) *queue {
	switch {
	case l.alone:
		return &g.alone
	case l.tries > 0:
		return &g.again
	}
	return &g.many
}

// take moves the leases of the next call from the queues to dst, which has room
// for a batch.
//
// Leases to be sent alone go first. They are nearer to their end; and while the
// group is failing they serve as the probes, which spares the batches behind
// them from failing and being taken apart too.
func (g *group) take(dst []*Lease) []*Lease {
	if l := g.alone.head; l != nil {
		g.alone.remove(l)
		return append(dst, l)
	}
	for _, q := range []*queue{&g.again, &g.many} {
		for l := q.head; l != nil && len(dst) < cap(dst); l = q.head {
			q.remove(l)
			dst = append(dst, l)
		}
	}
	return dst
}
