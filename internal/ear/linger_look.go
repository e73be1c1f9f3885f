package ear

import (
	"time"

	"github.com/go-rlock/rlock/internal/tenure"
)

// A look asks Redis whether other processes wait for a kept tenure's lock. It runs in the background when the tenure is kept for the first
// time, and when the ear is live again. If it finds earlier waiters, which may not have asked, the tenure is released. While a process
// keeps using the lock, it looks again every third of the watchdog time, for waiters that cannot ask: Redisson.

// look holds the results of looks, and the look under way. keptTenures.mu guards it.
type look struct {
	ear      uint64    // the ear's live period (keptTenures.ear) in which a look found no waiters; 0: none yet
	at       time.Time // when that look began
	underWay bool
}

// lookIfDue begins a look, unless one is under way or none is needed.
func (e *Ear) lookIfDue(x *keptTenure) {
	ear := e.kept.ear.Load()
	e.kept.mu.Lock()
	k := &x.look
	anew := k.ear != ear // earlier messages may have been missed
	recent := !anew && time.Since(k.at) < e.Options.WatchdogTimeout/3
	started := !recent && !k.underWay && e.Calls.Start()
	if started {
		k.underWay = true
	}
	e.kept.mu.Unlock()
	if started {
		if anew {
			e.kept.firstLooks.Add(1)
		}
		go func() { // ends with its calls, and Close waits for it
			defer e.Calls.Ended()
			e.lookFor(x, ear, anew)
			if anew {
				e.kept.firstLooks.Add(-1)
			}
		}()
	}
}

// lookFor makes the calls of a look. If there are waiters, or that is unknown, the tenure is not kept.
func (e *Ear) lookFor(x *keptTenure, ear uint64, anew bool) {
	began := time.Now()
	alone := e.isAlone(x.tenure, anew)
	e.kept.mu.Lock()
	k := &x.look
	if alone {
		k.ear, k.at = ear, began
	}
	k.underWay = false
	e.kept.mu.Unlock()
	if !alone {
		e.releaseWanted(e.kept.want(x.tenure.Tag, x))
	}
}

// isAlone reports whether a kept tenure's lock has no waiters. In a new live period of the ear it also wakes waiters that it may not see;
// when they ask, the tenure is released.
func (e *Ear) isAlone(t *tenure.Tenure, anew bool) bool {
	m := t.Lock
	if anew && !e.wakeUnseen(m) {
		return false
	}
	found, err := e.sight([]*askable{{lock: m, tag: t.Tag}})
	return err == nil && !found[0].queued && !found[0].outside
}
