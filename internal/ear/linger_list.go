package ear

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/tenure"
)

// keptTenures is the list of kept tenures of a Client, oldest first.
type keptTenures struct {
	firstLooks atomic.Int32  // first looks under way, whose tenures may not be kept
	ear        atomic.Uint64 // number of the current period in which the ear listens without a gap; 0: it does not listen
	ears       atomic.Uint64 // number of such periods so far

	mu          sync.Mutex             // guards the following, and keptTenure; no other lock is taken under it
	of          map[string]*keptTenure // by the key of the lock
	tags        map[uint64]*keptTenure // the same by the tag of the tenure
	asked       recentTags             // tenures that were asked for, and seemed to be neither held nor kept
	first, last *keptTenure            // in the order of their last use
	timer       *time.Timer
	timerAt     time.Time  // when it fires; zero: not set
	unkept      recentKeys // keys of locks that are not kept for a while, because others want them
}

// Kept returns how many are known to be wanted by nobody else.
func (e *Ear) Kept() int {
	k := &e.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(len(k.of)-int(k.firstLooks.Load()), 0)
}

// keptTenure is the state of a tenure that is kept between its holds, or was asked for. Its fields are guarded by keptTenures.mu.
type keptTenure struct {
	tenure     *tenure.Tenure // constant
	wanted     bool           // it is not kept any more
	until      time.Time      // when it is released
	prev, next *keptTenure    // of those that are kept
	look       look
}

// stateOf returns the state of a tenure, made if needed.
func stateOf(t *tenure.Tenure) *keptTenure {
	return t.Cached(func() any { return &keptTenure{tenure: t} }).(*keptTenure) //nolint:errcheck // no other value is ever set
}

// add keeps a tenure for d. It returns the tenure that must be released instead, if any: an earlier one of the same lock, whose loss
// went unnoticed; or the oldest, if the list is full.
func (k *keptTenures) add(e *Ear, x *keptTenure, d time.Duration) (oldest *keptTenure, ok bool) {
	now, key := time.Now(), x.tenure.Lock.Key
	k.mu.Lock()
	defer k.mu.Unlock()
	if x.wanted || k.unkept.has(key, now) || k.asked.has(x.tenure.Tag) {
		return nil, false
	}
	if k.of == nil {
		k.of, k.tags = make(map[string]*keptTenure), make(map[uint64]*keptTenure)
	}
	if oldest = k.of[key]; oldest == nil && len(k.of) >= MaxKept {
		oldest = k.first
	}
	if oldest != nil {
		k.unlink(e, oldest)
	}
	k.of[key], k.tags[x.tenure.Tag] = x, x
	x.until = now.Add(d)
	if x.prev = k.last; k.last != nil {
		k.last.next = x
	} else {
		k.first = x
	}
	k.last = x
	e.Caches(1)
	k.setTimer(x.until)
	return oldest, true
}

// unlink takes a tenure out of the list for the caller. mu is held.
func (k *keptTenures) unlink(e *Ear, x *keptTenure) {
	delete(k.of, x.tenure.Lock.Key)
	delete(k.tags, x.tenure.Tag)
	if x.prev != nil {
		x.prev.next = x.next
	} else {
		k.first = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	} else {
		k.last = x.prev
	}
	x.prev, x.next = nil, nil
	e.Caches(-1)
}

// take takes the kept tenure of a lock out of the list; nil if there is none.
func (k *keptTenures) take(e *Ear, key string) *keptTenure {
	k.mu.Lock()
	defer k.mu.Unlock()
	x := k.of[key]
	if x != nil {
		k.unlink(e, x)
	}
	return x
}

// remove takes a tenure out of the list. It reports false if it was not kept.
func (k *keptTenures) remove(e *Ear, x *keptTenure) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if x == nil || k.of[x.tenure.Lock.Key] != x {
		return false
	}
	k.unlink(e, x)
	return true
}

// takeAll takes the tenures that are due at now; all, if now is zero.
func (k *keptTenures) takeAll(e *Ear, now time.Time) (all []*keptTenure) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var earliest time.Time
	for x := k.first; x != nil; {
		next := x.next
		switch {
		case now.IsZero() || !now.Before(x.until):
			k.unlink(e, x)
			all = append(all, x)
		case earliest.IsZero() || x.until.Before(earliest):
			earliest = x.until
		}
		x = next
	}
	k.timerAt = time.Time{}
	k.setTimer(earliest)
	return all
}

// setTimer sets the timer for tenures due then. It is not stopped when they are used earlier, and then finds nothing: no Lock should have
// to set it. mu is held.
func (k *keptTenures) setTimer(at time.Time) {
	switch {
	case !at.IsZero() && (k.timerAt.IsZero() || at.Before(k.timerAt)):
		k.timerAt = at
		k.timer.Reset(time.Until(at))
	case k.timerAt.IsZero():
		k.timer.Stop()
	}
}

// tagged returns the kept tenure with that tag; nil: it is not kept.
func (k *keptTenures) tagged(tag uint64) *keptTenure {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tags[tag]
}

// want has the tenure with that tag not kept any more. It returns its state; held is that of a tenure with open levels. nil: it is neither
// held nor kept, so it is on its way from one to the other, or there is no reply yet. Then its tag is remembered.
func (k *keptTenures) want(tag uint64, held *keptTenure) (x *keptTenure) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if x = k.tags[tag]; x == nil {
		x = held
	}
	if x == nil {
		k.asked.add(tag)
	} else {
		x.wanted = true
	}
	return x
}

// markContended stops a lock from being kept for a while.
func (k *keptTenures) markContended(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unkept.add(key, time.Now(), unkeptFor)
}
