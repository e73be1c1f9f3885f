package ear

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/tenure"
)

type keptTenures struct {
	firstLooks atomic.Int32  // first looks under way, whose tenures may not be kept
	ear        atomic.Uint64 // number of the current period in which the ear listens without a gap; 0: it does not listen
	ears       atomic.Uint64 // number of such periods so far

	mu      sync.Mutex             // guards the following, and keptTenure; only that of Calls is taken under it
	of      map[string]*keptTenure // by the key of the lock
	asked   recentTags             // tenures that were asked for, and seemed to be neither held nor kept
	unkept  recentKeys             // keys of locks that are not kept for a while, because others want them
	timer   *time.Timer            // releases those that are due; it is not stopped when they are used earlier, and then finds nothing
	timerAt time.Time              // when it fires; zero: not set
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
	tenure *tenure.Tenure // constant
	wanted bool           // it is not kept any more
	used   time.Time      // when it was kept last
	until  time.Time      // when it is released
	taken  bool           // out of the list, by a call of its own, for end or continues
	look   look
}

func stateOf(t *tenure.Tenure) *keptTenure {
	return t.Cached(func() any { return &keptTenure{tenure: t} }).(*keptTenure) //nolint:errcheck // no other value is ever set
}

// add keeps a tenure for d. It returns the tenure that must be released instead, if any: an earlier one of the same lock, whose loss
// went unnoticed; or, of too many, the least recently used.
func (k *keptTenures) add(e *Ear, x *keptTenure, d time.Duration) (instead *keptTenure, ok bool) {
	now, key := time.Now(), x.tenure.Lock.Key
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.IsShut() || x.wanted || k.unkept.has(key, now) || k.asked.has(x.tenure.Tag) { // first: what is kept later, nobody would take out
		return nil, false
	}
	if k.of == nil {
		k.of = make(map[string]*keptTenure)
	}
	if instead = k.of[key]; instead == nil && len(k.of) >= MaxKept {
		for _, other := range k.of { // which costs less than the release that follows
			if instead == nil || other.used.Before(instead.used) {
				instead = other
			}
		}
	}
	if instead != nil {
		k.unlink(e, instead)
	}
	k.of[key], x.used, x.until = x, now, now.Add(d)
	e.Client.Kept.Add(1)
	k.setTimer(x.until)
	return instead, true
}

// unlink takes a tenure out of the list for the caller, which calls end or continues. So Close, which first takes all, waits for those that
// others have just taken. mu is held.
func (k *keptTenures) unlink(e *Ear, x *keptTenure) {
	delete(k.of, x.tenure.Lock.Key)
	e.Client.Kept.Add(-1)
	x.taken = e.Calls.Start()
}

// end ends a tenure that was taken out of the list.
func (e *Ear) end(x *keptTenure) (ended <-chan struct{}) { return engine.End(x.tenure, x.taken) }

// continues notes that a tenure that was taken out of the list goes on, or is lost.
func (e *Ear) continues(x *keptTenure) {
	if x.taken {
		e.Calls.Ended()
	}
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
func (k *keptTenures) remove(e *Ear, t *tenure.Tenure) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	x := k.of[t.Lock.Key]
	if x == nil || x.tenure != t {
		return false
	}
	k.unlink(e, x)
	return true
}

// takeAll takes the tenures that are due at now; all, if now is zero.
func (k *keptTenures) takeAll(e *Ear, now time.Time) (all []*keptTenure) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer.Stop()
	k.timerAt = time.Time{}
	for _, x := range k.of {
		if now.IsZero() || !now.Before(x.until) {
			k.unlink(e, x)
			all = append(all, x)
		} else {
			k.setTimer(x.until)
		}
	}
	return all
}

// setTimer has the timer fire by then. mu is held.
func (k *keptTenures) setTimer(at time.Time) {
	if k.timerAt.IsZero() || at.Before(k.timerAt) {
		k.timerAt = at
		k.timer.Reset(time.Until(at))
	}
}

// tagged returns the kept tenure with that tag; nil: it is not kept.
func (k *keptTenures) tagged(tag uint64) *keptTenure {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ofTag(tag)
}

// ofTag is tagged. mu is held.
func (k *keptTenures) ofTag(tag uint64) *keptTenure {
	for _, x := range k.of {
		if x.tenure.Tag == tag {
			return x
		}
	}
	return nil
}

// want has the tenure with that tag not kept any more. It returns its state; held is that of a tenure with open levels. nil: it is neither
// held nor kept, so it is on its way from one to the other, or there is no reply yet. Then its tag is remembered.
func (k *keptTenures) want(tag uint64, held *keptTenure) (x *keptTenure) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if x = held; x == nil {
		x = k.ofTag(tag)
	}
	if x == nil {
		k.asked.add(tag)
	} else {
		x.wanted = true
	}
	return x
}

// markContended has a lock not kept for a while: others want it, too.
func (k *keptTenures) markContended(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unkept.add(key, time.Now(), unkeptFor)
}
