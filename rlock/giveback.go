package rlock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// Nothing may be left behind by a call that failed (G5), though a command that was sent can not be
// called back. What a command without a reply may have done is found out and undone here:
//
//   - Its reply comes late: whoever waits for it gives the hold back (locking.undo).
//   - Its reply is lost: the owner field is swept, that is released again and again until it was
//     found, or until the lease that the command could have started has ended.
//
// A swept field is not used by anybody: its owner is retired, or has another tag since (burn).

// maxSweep bounds the search for a hold that a lost acquire may have started: how long a network may
// hold a request back and still deliver it.
const maxSweep = time.Minute

// lastCallTimeout is what a release is given while Close waits for it.
const lastCallTimeout = time.Second

// giveBack releases a hold that was granted to nobody. If that fails, or an earlier attempt may
// still act, it is swept.
func (c *Client) giveBack(m *Mutex, h *hold) {
	h.owner.disown(h)
	_, err := c.releaseOnce(m, m.releaseArgs(h, 0, 0))
	if err != nil {
		h.doubted(time.Now().Add(m.ttl())).unsure = true
	} else if h.doubt != nil {
		h.doubt.unsure = false
	}
	c.sweepDoubt(m, h)
}

// sweepDoubt sweeps the field of a hold that has ended, or did not come to be, if an acquire with
// unknown outcome may still act, or a hand-off may have made it a live one.
func (c *Client) sweepDoubt(m *Mutex, h *hold) {
	if d := h.doubt; d != nil && (d.late > 0 || d.unsure) {
		h.owner.disown(h)
		c.sweep(m, h, *d)
	}
}

// sweep releases the hold's field, in the background, until it is settled or the time is up. If the
// client closes, it is tried once more.
//
// Settled means two things. If it is not known whether there is a hold: any answer settles
// that. Then there are late acquires that may still be on their way to Redis: each of them may show
// alone, so it goes on until as many were found. What the first answer found may have been the hold
// in question, so it does not count.
func (c *Client) sweep(m *Mutex, h *hold, d doubt) {
	args := m.releaseArgs(h, 0, 0)
	if !c.background(func() {
		for pause := minRetry; ; pause = min(2*pause, 4*maxRetry) {
			released, err := c.releaseOnce(m, args)
			if err == nil {
				if released && !d.unsure {
					d.late--
				}
				if d.unsure && !released { // it may have been handed off in the last moment
					c.hub.Wake(m.queue())
				}
				if d.unsure = false; d.late <= 0 {
					return
				}
			}
			// Also after an error that does not pass by itself: a right or memory may be given back.
			if errors.Is(err, rueidis.ErrClosing) || time.Now().After(d.until) || c.isClosed() {
				return
			}
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-c.done:
				timer.Stop()
			}
		}
	}) {
		_, _ = c.releaseOnce(m, args)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// releaseOnce sends a release that is to arrive even if the client is closing.
func (c *Client) releaseOnce(m *Mutex, args lua.ReleaseArgs) (bool, error) {
	timeout := callTimeout
	if c.isClosed() { // Close waits
		timeout = lastCallTimeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return m.kind.release(ctx, c.rdb, args)
}
