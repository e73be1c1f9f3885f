package engine

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
)

// counter is the common part of latches and semaphores: a key with a number, without a holder.
type counter struct{ *Spec }

// begin starts a call. fits says why a cluster cannot have the counter. If begin returns no error, the caller must call Calls.Ended.
func (m counter) begin(ctx context.Context, limit time.Time, fits error) error {
	if err := m.startCall(); err != nil {
		return err
	}
	c := m.Engine
	var err error
	if fits != nil {
		err = m.Fail(fits)
	} else if c.Cluster.IsUnknown() {
		var known bool
		if known, err = c.Cluster.Learn(ctx, limit, m.Spec); !known {
			err = m.left(ctx, err)
		}
	}
	if err != nil {
		c.Calls.Ended()
	}
	return err
}

// stay returns when a caller's wait has ended, or when the caller must leave. The first answer closes refused, unless it ends the wait:
// from then on the caller waits, or leaves if it only asks once.
func (m counter) stay(who Caller, refused, ended <-chan struct{}) {
	var over <-chan time.Time
	var timer *time.Timer
	if !who.Limit.IsZero() {
		timer = time.NewTimer(time.Until(who.Limit))
		defer timer.Stop()
		over = timer.C
	}
	for {
		select {
		case <-ended:
		case <-refused:
			if !who.Once {
				if refused = nil; timer != nil {
					timer.Reset(time.Until(who.Wait)) // Limit was for the first answer
				}
				who.Waits("")
				continue
			}
		case <-over:
		case <-who.Ctx.Done():
		case <-who.Stopped():
		case <-m.Engine.Calls.Done():
		}
		return
	}
}

// failed returns the error of an unanswered or refused call.
func (m counter) failed(err error) error {
	if m.Engine.Calls.IsClosed() {
		return m.closed()
	}
	return m.unreachable(err)
}

// left returns the error for a caller that left before the answer. err is the known reason.
func (m counter) left(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil:
		return m.failed(err)
	case err != nil:
		return m.Fail(m.Engine.errs.Unreachable(err), ctx.Err())
	}
	return m.Fail(ctx.Err())
}

// changeFailed adds to the error of a change whether it may have been made, or may yet be.
func (m counter) changeFailed(pending bool, err error) error {
	if pending {
		return m.Fail(m.Engine.errs.Pending, err)
	}
	return err
}

// notSent returns the error for a caller whose ctx was done before its change.
func (m counter) notSent(ctx context.Context) error { return m.Fail(errNotSent, ctx.Err()) }

// notAdmitted returns the error of a change for which Redis was not asked, because too many calls have no answer.
func (m counter) notAdmitted(ctx context.Context, err error) error {
	if m.Engine.Calls.IsClosed() {
		return m.closed()
	}
	return m.Fail(errNotSent, m.Engine.errs.Unreachable(err), ctx.Err())
}

// silence returns the error about Redis for a caller that leaves: nil if there was no time for an answer.
func silence(began time.Time) error {
	if time.Since(began) < calls.UnresponsiveAfter/2 {
		return nil
	}
	return calls.ErrNoAnswer
}

// insist repeats a call until Redis answers, for a minute, even after refusals; once if the engine is closed. It reports whether Redis
// answered. what names the state that may be wrong otherwise.
func (m counter) insist(began time.Time, what string, send func(context.Context) error) (answered bool) {
	c := m.Engine
	for pause := calls.MinPause; ; pause = min(2*pause, 4*calls.MaxPause) {
		closing := c.Calls.IsClosed()
		ctx, cancel := c.Calls.Last()
		err := send(ctx)
		cancel()
		c.Calls.Answered(m.Slot, err)
		switch {
		case err == nil:
			return true
		case closing, time.Since(began) > sweep.Most:
			c.Options.Tell.Warn("rlock: "+what+" may be wrong after a call without an answer", "name", m.Name, "err", err)
			return false
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-c.Calls.Done():
		}
		timer.Stop()
	}
}
