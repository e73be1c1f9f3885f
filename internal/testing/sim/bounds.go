package sim

import (
	"cmp"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// quiet returns how long there has been no fault.
func (w *world) quiet() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active > 0 {
		return 0
	}
	return time.Since(w.lastFault)
}

// settle returns how long faults that have ended may still disturb the locks: a dead holder's lease, grants to the
// dead, and dead connections that rueidis takes for alive.
func (w *world) settle() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.settled()
}

// settled is settle; w.mu is held.
func (w *world) settled() time.Duration {
	return w.plan.Watchdog + time.Duration(w.ended+len(w.all)/4+1)*min(grantLease, w.plan.Watchdog) + 15*time.Second
}

// handOver returns the longest time from one section to the next, without faults.
func (w *world) handOver() time.Duration {
	bound := 400*time.Millisecond + w.reach() + longestMinHold
	if w.plan.Many > 0 {
		bound += longestClimb
	}
	return bound
}

// reach returns the longest time until a waiting call has its place.
func (w *world) reach() time.Duration { return 100*time.Millisecond + 16*w.far }

// turn returns how often a process may have a lock before another that waits.
func (w *world) turn() int {
	return 1 + cmp.Or(w.plan.Processes[0].Options.HandOff.Most, rlock.DefaultHandOffMost)
}

// isInLine reports whether all processes wait in line for plain locks, and each unlock serves the line: one that the server does not count
// is told that the lock is free, and those nearer to the server may ask before it.
func (w *world) isInLine() bool {
	o := w.plan.Processes[0].Options
	return o.HandOff.Most >= 0 && o.Replicas == 0 && w.plan.Odd == 0 && w.plan.Many == 0 && w.plan.Uncounted == nobody
}

// isFree returns how long a lock may be free while an undisturbed process waits for it, whatever happened to the
// others: a grant lease, or the lifetime of a fair lock's place. See docs/guarantees.md.
func (w *world) isFree(k Kind) time.Duration {
	bound := 2*min(grantLease, w.plan.Watchdog) + w.handOver()
	if k == Fair {
		bound += placeLease
	}
	return bound
}

// unlock returns how long an unlock may take: 3 seconds by itself, and 0.1 more for each section around it unlocked
// just before.
func (w *world) unlock() time.Duration {
	if w.plan.isCalm() {
		return w.handOver()
	}
	return 3*time.Second + 500*time.Millisecond
}

// turns returns how long it may take until each worker has had another turn.
func (w *world) turns() time.Duration {
	n := 0
	for _, p := range w.all {
		n += len(p.plan.Workers)
	}
	return time.Duration(n) * 4 * w.handOver() / 10
}
