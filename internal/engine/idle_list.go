package engine

import (
	"sync"
	"sync/atomic"
	"time"
)

// idleTenures is the list of idle tenures of a Client, oldest first.
type idleTenures struct {
	count atomic.Int32  // number of idle tenures, readable without mu
	early atomic.Int32  // first looks under way, whose tenures may not be kept
	ear   atomic.Uint64 // number of the current period in which the ear listens without a gap; 0: it does not listen
	ears  atomic.Uint64 // number of such periods so far

	mu          sync.Mutex       // guards the following, and what says so in idle; no other lock is taken under it
	of          map[string]*idle // by the key of the lock
	tags        map[uint64]*idle // the same by the tag of the tenure
	asked       recentTags       // tenures that were asked for, and seemed to be neither held nor idle
	first, last *idle            // in the order of their last use
	timer       *time.Timer
	timerAt     time.Time  // when it fires; zero: not set
	unkept      recentKeys // keys of locks that are not kept for a while, because they were asked for
}

// kept is how many are idle and known to be wanted by nobody else.
func (i *idleTenures) kept() int { return max(int(i.count.Load()-i.early.Load()), 0) }

// idle is the state of a tenure that can be idle, kept between its holds.
type idle struct {
	tenure *Tenure

	// Guarded by idleTenures.mu.
	until      time.Time // when it is released
	prev, next *idle     // of those that are idle
	look       look
}

// add makes a tenure idle for d. It returns the tenure that must be released instead, if any: an earlier one of the same lock, whose loss
// went unnoticed; or the oldest, if the list is full.
func (i *idleTenures) add(x *idle, d time.Duration) (oldest *idle, ok bool) {
	now, key := time.Now(), x.tenure.Spec.Key
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.unkept.has(key, now) || i.asked.has(x.tenure.Tag) {
		return nil, false
	}
	if i.of == nil {
		i.of, i.tags = make(map[string]*idle), make(map[uint64]*idle)
	}
	if oldest = i.of[key]; oldest == nil && len(i.of) >= MaxIdle {
		oldest = i.first
	}
	if oldest != nil {
		i.unlink(oldest)
	}
	i.of[key], i.tags[x.tenure.Tag] = x, x
	x.until = now.Add(d)
	if x.prev = i.last; i.last != nil {
		i.last.next = x
	} else {
		i.first = x
	}
	i.last = x
	i.count.Store(int32(len(i.of)))
	i.setTimer(x.until)
	return oldest, true
}

// unlink takes a tenure out of the list for the caller. mu is held.
func (i *idleTenures) unlink(x *idle) {
	delete(i.of, x.tenure.Spec.Key)
	delete(i.tags, x.tenure.Tag)
	if x.prev != nil {
		x.prev.next = x.next
	} else {
		i.first = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	} else {
		i.last = x.prev
	}
	x.prev, x.next = nil, nil
	i.count.Store(int32(len(i.of)))
}

// take takes the idle tenure of a lock out of the list; nil if there is none.
func (i *idleTenures) take(key string) *idle {
	if i.count.Load() == 0 {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	x := i.of[key]
	if x != nil {
		i.unlink(x)
	}
	return x
}

// remove takes a tenure out of the list. It reports false if it was not idle.
func (i *idleTenures) remove(x *idle) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if x == nil || i.of[x.tenure.Spec.Key] != x {
		return false
	}
	i.unlink(x)
	return true
}

// takeAll takes the tenures that are due at now; all, if now is zero.
func (i *idleTenures) takeAll(now time.Time) (all []*idle) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var earliest time.Time
	for x := i.first; x != nil; {
		next := x.next
		switch {
		case now.IsZero() || !now.Before(x.until):
			i.unlink(x)
			all = append(all, x)
		case earliest.IsZero() || x.until.Before(earliest):
			earliest = x.until
		}
		x = next
	}
	i.timerAt = time.Time{}
	i.setTimer(earliest)
	return all
}

// setTimer sets the timer for tenures due then. It is not stopped when they are used earlier, and then finds nothing: no Lock should have
// to set it. mu is held.
func (i *idleTenures) setTimer(at time.Time) {
	switch {
	case !at.IsZero() && (i.timerAt.IsZero() || at.Before(i.timerAt)):
		i.timerAt = at
		i.timer.Reset(time.Until(at))
	case i.timerAt.IsZero():
		i.timer.Stop()
	}
}

// remember returns the idle tenure with that tag. Otherwise the tenure is between a hold and the list: its tag is kept, so that it is not
// added.
func (i *idleTenures) remember(tag uint64) *idle {
	i.mu.Lock()
	defer i.mu.Unlock()
	x := i.tags[tag]
	if x == nil {
		i.asked.add(tag)
	}
	return x
}

// refrain stops a lock from being kept for a while.
func (i *idleTenures) refrain(key string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.unkept.add(key, time.Now(), unkeptFor)
}
