package counter

import (
	"context"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/lease"
)

// SemaphoreHold is a section with permits of a Semaphore. Nobody owns these in Redis, so it cannot be lost. But it is a hold: Shutdown waits
// for it, and Close cancels its ctx.
type SemaphoreHold struct {
	Ctx context.Context // of the section

	semaphore Semaphore
	n         int64
	lease     lease.Lease // it has no end; the renewer knows of Close

	mu     sync.Mutex // guards the following; as for a tenure, two locks are taken under it
	cancel context.CancelCauseFunc
}

// Section starts a hold with n permits that the caller has. If it fails, the caller gives them back.
func (m Semaphore) Section(ctx context.Context, n int64) (*SemaphoreHold, error) {
	c := m.Engine
	if !c.HoldBegins(false) {
		return nil, m.FailClosed()
	}
	h := &SemaphoreHold{semaphore: m, n: n}
	h.Ctx, h.cancel = context.WithCancelCause(engine.SectionParent(ctx))
	if !c.Leases.Keep(&h.lease, h, time.Now().Add(longest), 0) {
		h.end(c.Errors.Closed)
		c.HoldEnds()
		return nil, m.FailClosed()
	}
	return h, nil
}

// end ends the ctx. It returns false if it was released before.
func (h *SemaphoreHold) end(why error) bool {
	h.mu.Lock()
	cancel := h.cancel
	h.cancel = nil
	h.semaphore.Engine.Leases.Stop(&h.lease)
	h.mu.Unlock()
	if cancel == nil {
		return false
	}
	cancel(why)
	return true
}

// Release gives the permits back, even if Redis refuses that at first.
func (h *SemaphoreHold) Release() error {
	m := h.semaphore
	if !h.end(engine.ErrUnlocked) {
		return m.FailNotHeld(engine.ErrUnlockedBefore)
	}
	defer m.Engine.HoldEnds()
	_, pending, err := m.giveBack(h.Ctx, time.Now().Add(m.Engine.Options.UnlockTimeout), h.n)
	if err != nil {
		return m.changeFailed(pending, m.FailUnreachable(err))
	}
	return nil
}

// Item names the semaphore; it is not renewed.
func (h *SemaphoreHold) Item() lease.Item { return lease.Item{Name: h.semaphore.Key} }

// Group returns the properties shared by all holds of one renewal.
func (h *SemaphoreHold) Group() any { return h.semaphore.Engine.Group(h.semaphore.Spec) }

// About names the semaphore.
func (h *SemaphoreHold) About() (name, kind string) {
	return h.semaphore.Name, h.semaphore.Kind.Name
}

// Lost is never called: the lease has no end.
func (h *SemaphoreHold) Lost(lease.Loss) {}

// Closed is called when the client ends before the section does. The permits stay taken until its end.
func (h *SemaphoreHold) Closed() {
	c := h.semaphore.Engine
	why := c.Errors.Loss(engine.Loss{Name: h.semaphore.Name, Reason: engine.LostClosed, Since: time.Now(), Text: engine.ClientClosed})
	var ended engine.Endings
	h.mu.Lock()
	if h.cancel != nil {
		ended.Add(h.Ctx, c, h.cancel, why)
	}
	h.mu.Unlock()
	ended.Settle()
}
