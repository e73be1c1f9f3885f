package tenure

import (
	"cmp"
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
)

// The first in a fair lock's queue, which was given the lock or told that it is free, may have died or been stopped; or a hold was lost, and
// nobody is told when Redis frees the lock. Waiters of this library look at the lock. Those of most versions of Redisson, which have asked
// before, sleep without an end. So whoever released the lock with one of them in the queue looks when the first has had its time, and again
// until one that comes is the first; and whoever lost the lock, when it is free.
//
// After an outage all holds may be lost at once, so one call looks at many locks, and while Redis does not answer, or refuses writes, there is
// one call at a time.

// looks are a Client's looks to come.
type looks struct {
	mu sync.Mutex // guards the following; no other lock is taken under it
	of map[lookGroup]*looker
}

// lookGroup is what the locks have in common at which one call can look.
type lookGroup struct {
	slot    uint16
	sharded bool // that is how to publish
}

// looker looks at the locks of a group, on a goroutine that ends with the last look.
type looker struct {
	client *Client
	group  lookGroup
	of     map[string]*look // by the lock's key
	next   lookHeap         // the same
	sooner chan struct{}    // capacity 1: another one comes first
}

// look is when to look at a lock next.
type look struct {
	at   time.Time
	lock *Lock
	lost string // the owner of a hold that was lost; otherwise ""
	pos  int    // in the heap
}

// looksIn wakes the first in the queue if the lock is free then. One look is enough for what follows closely.
func (m *Lock) looksIn(d time.Duration, lost string) {
	if m.Kind.Queueing != kinds.PerWaiter {
		return
	}
	if first := m.Client.looks.add(m, time.Now().Add(d+2*time.Millisecond), lost); first != nil { // Redis counts in whole ones
		m.Client.Calls.Background(first.run) // ends when Redis has answered the last look, or with Close
	}
}

// add records a look, and returns its looker if that is new.
func (all *looks) add(m *Lock, at time.Time, lost string) (first *looker) {
	c := m.Client
	group := lookGroup{m.Slot(), c.KnownChannel(m).Sharded}
	all.mu.Lock()
	defer all.mu.Unlock()
	l := all.of[group]
	if l == nil {
		if all.of == nil {
			all.of = make(map[lookGroup]*looker)
		}
		first = &looker{client: c, group: group, of: make(map[string]*look), sooner: make(chan struct{}, 1)}
		l, all.of[group] = first, first
	}
	next := l.of[m.Key]
	switch {
	case next == nil:
		next = &look{at: at, lock: m, lost: lost}
		l.of[m.Key] = next
		heap.Push(&l.next, next)
	case at.After(next.at):
		next.at = at
		heap.Fix(&l.next, next.pos)
	}
	next.lost = cmp.Or(lost, next.lost)
	if next.pos == 0 {
		select {
		case l.sooner <- struct{}{}:
		default:
		}
	}
	return first
}

// take returns looks that are due, at most as many as one call makes; otherwise how long it is until one is: 0 if there are none, and the
// looker ends.
func (l *looker) take() (due []*look, wait time.Duration) {
	all := &l.client.looks
	all.mu.Lock()
	defer all.mu.Unlock()
	for len(l.next) > 0 && len(due) < sweep.Batch {
		if wait = time.Until(l.next[0].at); wait > 0 {
			return due, wait
		}
		next := heap.Pop(&l.next).(*look) //nolint:errcheck // there are no others
		delete(l.of, next.lock.Key)
		due = append(due, next)
	}
	if len(due) == 0 {
		delete(all.of, l.group)
	}
	return due, 0
}

func (l *looker) run() {
	done, pause := l.client.Calls.Done(), calls.MinPause
	for !calls.IsClosed(done) {
		due, wait := l.take()
		sooner := l.sooner
		switch {
		case len(due) > 0 && !l.look(due, pause):
			pause = calls.MinPause
			continue
		case len(due) > 0:
			wait, sooner = pause, nil // each further call may dial again
			pause = min(2*pause, 4*calls.MaxPause)
		case wait == 0:
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-sooner:
		case <-done:
		}
		timer.Stop()
	}
}

// look makes the call for looks. It reports whether Redis is silent, not ready, or refuses writes; then they come again after a pause.
func (l *looker) look(due []*look, pause time.Duration) (failed bool) {
	c, places := l.client, make([]lua.Place, len(due))
	for i, d := range due {
		m := d.lock
		places[i] = lua.Place{Name: m.Key, Owner: d.lost, List: m.Queue, Times: m.Kind.Timeouts(m.Key), Channel: m.Channel}
	}
	m := due[0].lock
	again, err := lua.Wake(c.Calls.Context(context.Background()), c.RDB, m.Fair(), lua.Publish(c.KnownChannel(m)), places)
	c.Calls.Answered(l.group.slot, err)
	switch {
	case err == nil:
		for i, d := range due {
			if again[i] > 0 {
				d.lock.looksIn(again[i], d.lost)
			}
		}
	case calls.IsTransient(err), calls.RefusesWrites(err):
		for _, d := range due {
			d.lock.looksIn(pause, d.lost)
		}
		return true
	case len(due) > 1: // it may be refused because of one of them
		for i := range due {
			failed = l.look(due[i:i+1], pause) || failed
		}
	}
	return failed
}

// lookHeap has the next look first.
type lookHeap []*look

func (h *lookHeap) Len() int           { return len(*h) }
func (h *lookHeap) Less(i, j int) bool { return (*h)[i].at.Before((*h)[j].at) }

func (h *lookHeap) Swap(i, j int) {
	all := *h
	all[i], all[j] = all[j], all[i]
	all[i].pos, all[j].pos = i, j
}

// Push adds a look at the end, for package heap.
func (h *lookHeap) Push(x any) {
	next := x.(*look) //nolint:errcheck // there are no others
	next.pos = len(*h)
	*h = append(*h, next)
}

// Pop removes the last look, for package heap.
func (h *lookHeap) Pop() any {
	n := len(*h) - 1
	last := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return last
}
