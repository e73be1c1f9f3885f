package rlock

import "time"

// Nothing may be left behind by a call that failed (G5), though a command that was sent can not be
// called back. What a command without a reply may have done is found out and undone here:
//
//   - Its reply comes late: whoever waits for it gives the hold back (locking.undo).
//   - Its reply is lost: the owner field is swept, that is released again and again until it was
//     found, or until the lease that the command could have started has ended.
//
// A swept field is not used by anybody: its owner is retired, or has another tag since (burn).

// giveBack releases a hold that was granted to nobody. If that fails it is swept.
func (c *Client) giveBack(m *Mutex, h *hold) {
	h.owner.mu.Lock()
	h.owner.burn()
	h.owner.mu.Unlock()
	if _, err := m.kind.release(c.call(), c.rdb, m.releaseArgs(h, 0, 0)); err != nil {
		c.sweep(m, h, time.Now().Add(m.ttl()), firstAnswer)
	}
}

// sweepDoubt sweeps the field of a hold that has ended, or did not come to be, if an acquire with
// unknown outcome may still act.
func (c *Client) sweepDoubt(m *Mutex, h *hold) {
	if h.doubt.IsZero() {
		return
	}
	h.owner.mu.Lock()
	h.owner.burn()
	h.owner.mu.Unlock()
	c.sweep(m, h, h.doubt, found)
}

// sweepEnd says which answer ends a sweep.
type sweepEnd bool

const (
	firstAnswer sweepEnd = false // the outcome of a release was unknown: any answer settles it
	found       sweepEnd = true  // an acquire may still be on its way to Redis: go on until it shows
)

// sweep releases the hold's field, in the background, until it is settled or the time is up, or the
// client closes.
func (c *Client) sweep(m *Mutex, h *hold, until time.Time, end sweepEnd) {
	args := m.releaseArgs(h, 0, 0)
	c.background(func() {
		for pause := minRetry; ; pause = min(2*pause, 4*maxRetry) {
			released, err := m.kind.release(c.call(), c.rdb, args)
			if err == nil && (released || end == firstAnswer) {
				return
			}
			if err != nil && !mayPass(err) || time.Now().After(until) || c.isClosed() {
				return
			}
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-c.done: // one last try
				timer.Stop()
			}
		}
	})
}
