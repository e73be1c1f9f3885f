package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-rlock/rlock/internal/testing/memnet"
	"github.com/go-rlock/rlock/rlock"
)

// Processes may connect late (Options.ConnectOnUse), and Locks may wait for Redis (WithWaitForRedis).

// openLate returns a Client that has not connected yet.
func (p *process) openLate(way *memnet.Way, o rlock.Options) (*rlock.Client, error) {
	o.ConnectOnUse = true
	c, err := rlock.OpenWith(clientOption(func() (net.Conn, error) {
		p.dials.Add(1)
		return way.Dial()
	}), o)
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	return c, nil
}

// lookAtLate reports late Clients that have connected before they were used.
func (w *world) lookAtLate() {
	for _, p := range w.all {
		if n := p.dials.Load(); n > 0 {
			w.violation("", "p%d, which connects late, has dialled %d times before its first call", p.number, n)
		}
	}
}

// isFirst reports whether a process has used no Redis yet: its first calls fail only because it cannot be reached.
func (p *process) isFirst() bool { return p.plan.Late && !p.heard.Load() }

// persists draws whether a call waits for Redis, and returns its options.
func (k *worker) persists(options []rlock.Option) (persists bool, all []rlock.Option) {
	if patient := k.world().plan.Patient; patient == 0 || !k.chance(patient) {
		return false, options
	}
	return true, append(options, rlock.WithWaitForRedis())
}

// isPatient reports a call that waits for Redis, and returned an error before its end, although its process lives. Zero: it has none. A lease
// of its own may be too short.
func (k *worker) isPatient(outer context.Context, o *oracle, what string, end time.Time, fixed bool, err error) {
	var loss *rlock.LostError
	lost := errors.As(err, &loss) && loss.Reason == rlock.LostExpired && !fixed
	switch {
	case k.process.isDead(), k.process.ctx.Err() != nil, errors.Is(err, rlock.ErrClosed), outer.Err() != nil:
	case !end.IsZero() && !time.Now().Before(end):
		if errors.Is(err, rlock.ErrUnreachable) && !errors.Is(err, rlock.ErrNotAcquired) {
			k.world().violation(o.name.Text, "p%d: %s, which waits for Redis, has another error at its end: %v", k.process.number, what, err)
		}
	case errors.Is(err, rlock.ErrUnreachable), errors.Is(err, rlock.ErrNotAcquired), lost:
		k.world().violation(o.name.Text, "p%d: %s, which waits for Redis, gives up: %v", k.process.number, what, err)
	}
}
