package engine

import "time"

// A look asks Redis whether other processes wait for an idle tenure's lock. It runs in the background when the tenure is idle for the first
// time, and when the ear is live again. If it finds earlier waiters, which may not have asked, the tenure is released. While a process
// keeps using the lock, it looks again every third of the watchdog time, for waiters that cannot ask: Redisson.

// look holds the results of looks, and the look under way. idleTenures.mu guards it.
type look struct {
	ear      uint64    // the ear's live period (idleTenures.ear) in which a look found no waiters; 0: none yet
	at       time.Time // when that look began
	underWay bool
}

// lookIfDue begins a look, unless one is under way or none is needed.
func (c *Engine) lookIfDue(x *idle) {
	ear := c.idle.ear.Load()
	c.idle.mu.Lock()
	k := &x.look
	anew := k.ear != ear // earlier messages may have been missed
	recent := !anew && time.Since(k.at) < c.Options.WatchdogTimeout/3
	started := !recent && !k.underWay && c.Calls.Start()
	if started {
		k.underWay = true
	}
	c.idle.mu.Unlock()
	if started {
		if anew {
			c.idle.early.Add(1)
		}
		go func() { // ends with its calls, and Close waits for it
			defer c.Calls.Ended()
			c.lookFor(x, ear, anew)
			if anew {
				c.idle.early.Add(-1)
			}
		}()
	}
}

// lookFor makes the calls of a look. If there are waiters, or that is unknown, the tenure is not kept.
func (c *Engine) lookFor(x *idle, ear uint64, anew bool) {
	began := time.Now()
	alone := c.isAlone(x.tenure, anew)
	c.idle.mu.Lock()
	k := &x.look
	if alone {
		k.ear, k.at = ear, began
	}
	k.underWay = false
	c.idle.mu.Unlock()
	if !alone {
		c.wanted(x.tenure)
	}
}

// isAlone reports whether an idle tenure's lock has no waiters. In a new live period of the ear it also wakes waiters that it may not see;
// when they ask, the tenure is released.
func (c *Engine) isAlone(t *Tenure, anew bool) bool {
	m := t.Spec
	if anew && !c.wakeUnseen(m) {
		return false
	}
	found, err := c.sight([]*askable{{spec: m, tag: t.Tag}})
	return err == nil && !found[0].queued && !found[0].outside
}
