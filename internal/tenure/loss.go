package tenure

import (
	"context"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/tell"
	"github.com/go-rlock/rlock/lease"
)

// A tenure is lost if it ends before its unlock: its lease is over, its key is gone, or Close ends it. Its holds are lost with it, but for
// those that have passed it on.
//
// A section's ctx is cancelled by an unlock, a loss or Close. Cancelling it first ends it and everything derived from it; that is work of
// package context alone. Then it is taken off its parent, whose Done and Value are called for that: foreign code, which may block, say on
// a mutex whose owner waits for a lock. So an unlock cancels on its caller's goroutine, outside of every mutex. A loss and Close, which
// come on the goroutines that keep leases, give each cancelling a goroutine of its own, and wait for its first part only.

// Lose ends a tenure before its unlock and cancels all its sections. If it is on its way to the next hold, that hold is lost before it
// begins. It reports false if the tenure has already ended, by a loss or an unlock.
func (t *Tenure) Lose(why Loss) bool {
	t.mu.Lock()
	if _, count := t.open(); t.loss != nil || count == 0 {
		t.mu.Unlock()
		return false
	}
	loss := t.explain(why)
	t.loss = &loss
	t.follow()
	t.wake()
	var lost []*Hold
	var ended Endings
	for h := range t.holds {
		lost = append(lost, h)
		h.unlocked.Loss.Store(t.loss)
		h.cancel(loss, &ended)
		for l := h.levels; l != nil; l = l.next {
			if l.freed != nil {
				go l.freed() // ends as unlocks do; Close waits for it
			}
		}
	}
	t.mu.Unlock()
	c := t.Lock.Client
	ended.Settle()
	t.LeaveOpen()
	if c.Kept.Load() != 0 {
		c.Cache.Lost(t)
	}
	if why.Reason == LostClosed {
		return true // Close is not reported as a loss
	}
	if why.Reason != LostGone { // Redis frees it without a message
		t.Lock.looksIn(0, t.Field())
	}
	for _, h := range lost {
		h.observedNoMore()
		c.ReportLoss(&h.First, t.Lock.Kind.Name, loss)
	}
	return true
}

// Gone ends a tenure that is missing in Redis. If its time is over, that is the reason, whoever notices first.
func (t *Tenure) Gone() {
	t.CatchUp()
	t.gone()
}

// gone is Gone while its time is not over, as the renewer knows.
func (t *Tenure) gone() {
	t.Lose(Loss{
		Reason: LostGone, Since: time.Now(), Text: "lost: the key was deleted, forced open or forgotten by a failover",
	})
	c := t.Lock.Client
	c.Leases.Stop(&t.Lease)
	c.Hub.WakeSoon(t.Lock.Waiters()) // the lock may be free without a message; the renewer must not wait
}

// ClientClosed is the text of the loss by Close.
const ClientClosed = "client closed"

func (t *Tenure) explain(why Loss) error {
	why.Name, why.Owner = t.Lock.Name, t.Field()
	if why.Reason == LostClosed {
		why.Text = ClientClosed
	}
	return t.Lock.Client.Errors.Loss(why)
}

// AnsweredTooLate returns the error of a grant to that owner whose lease was over before the answer.
func (m *Lock) AnsweredTooLate(owner string, until time.Time) error {
	return m.Client.Errors.Loss(Loss{
		Name: m.Name, Owner: owner, Reason: LostExpired, Since: until, Late: true, Text: "lost: Redis took longer than the lease to answer",
	})
}

// LossOf converts the renewer's loss.
func (m *Lock) LossOf(loss lease.Loss) Loss {
	e := Loss{Reason: LostExpired, Since: loss.Until, Err: loss.Err}
	switch {
	case loss.Limit:
		e.Reason, e.Text = LostMaxHold, "lost: the longest hold was reached, "+m.MaxHold.String()
	case !loss.Renewed:
		e.Text = "lost: its lease of fixed length ended"
	case loss.Err == nil:
		e.Text = "lost: not renewed in time"
	default:
		e.Text = "lost: not renewed in time: " + strings.ReplaceAll(loss.Err.Error(), "\n", "; ")
	}
	return e
}

// why returns its loss, or nil. mu is held.
func (t *Tenure) why() error {
	if t.loss == nil {
		return nil
	}
	return *t.loss
}

// LossSoFar returns why the tenure was lost, or nil.
func (t *Tenure) LossSoFar() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.why()
}

// loss returns why the hold was lost, or nil. mu is held.
func (h *Hold) loss() error {
	if h.passed {
		return nil
	}
	return h.Tenure.why()
}

// LossSoFar returns why the hold was lost, or nil.
func (h *Hold) LossSoFar() error {
	h.Tenure.mu.Lock()
	defer h.Tenure.mu.Unlock()
	return h.loss()
}

// lossOf is LossOf. mu is held.
func (t *Tenure) lossOf(h *Hold) error {
	if h != nil {
		return h.loss()
	}
	return t.why()
}

// LossOf returns why h was lost, which stands on the tenure, or stood; of nil why the tenure was.
func (t *Tenure) LossOf(h *Hold) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lossOf(h)
}

// Endings are the contexts that a loss or Close has cancelled.
type Endings []context.Context

// Add cancels ctx, and returns when ctx is done. A mutex may be held.
func (all *Endings) Add(ctx context.Context, foreign *tell.Each, cancel context.CancelCauseFunc, why error) {
	if ctx.Err() != nil {
		return
	}
	done := ctx.Done()
	foreign.Go(func() { cancel(why) }) // ends when the ctx is off its parent; Close waits for it, for a moment
	<-done
	*all = append(*all, ctx)
}

// Settle returns when everything derived from the contexts is done, too. No mutex is held: there may be much of it.
func (all *Endings) Settle() {
	for _, ctx := range *all {
		_ = context.Cause(ctx) // waits until the first part is over
	}
}
