package tenure

import (
	"context"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
)

// Caller describes a call of Lock and how long it waits.
type Caller struct {
	Ctx    context.Context // ends the waiting
	Outer  context.Context // the ctx given by the user; Ctx may be derived from it
	parent context.Context // of the section; nil: ctx
	Began  time.Time
	Wait   time.Time // end of the waiting; zero: only ctx ends it
	Limit  time.Time // of an attempt that is under way, not before wait; zero: only ctx ends it. The first answer ends what is beyond wait
	Once   bool      // no waiting: one attempt
	Climbs bool      // it gives up its locks of an All by itself, so no other Lock waits for them forever
	Trace  Tracer    // nil: no tracing
}

// CallerNow returns the Caller of a Lock called now.
func CallerNow(ctx context.Context) Caller {
	return Caller{Ctx: ctx, Outer: ctx, parent: sectionParent(ctx), Began: time.Now()}
}

// Caller returns the Caller of a Lock of m called now.
func (m *Lock) Caller(ctx context.Context) Caller {
	return CallerNow(ctx).Patient(m.MaxWait, m.Engine.MinAttempt())
}

// Patient bounds the waiting, unless there is no bound.
func (c Caller) Patient(most, least time.Duration) Caller {
	if most > 0 {
		return c.UpTo(most, least)
	}
	return c
}

// ShortestWait returns the shorter of two bounds on the waiting; 0 is none.
func ShortestWait(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// UpTo bounds the waiting. The first attempt gets at least least.
func (c Caller) UpTo(wait, least time.Duration) Caller {
	c.Once, c.Limit = wait <= 0, c.Began.Add(max(wait, least))
	if !c.Once {
		c.Wait = c.Began.Add(wait)
	}
	return c
}

// Answered returns the Caller after an attempt that Redis has answered: later ones have no more time than the wait.
func (c Caller) Answered() Caller {
	if !c.Once && !c.Limit.IsZero() {
		c.Limit = c.Wait
	}
	return c
}

// LeaveTo runs f, which unlocks locks the caller cannot use, and waits for it until ctx is done or the limit of an attempt is over.
// Then f continues, and ends as any unlock does. Close of the given Clients, which must be started, waits for it.
func (c Caller) LeaveTo(f func(), clients ...*Engine) {
	if !calls.CanLeave(c.Ctx, c.Limit) {
		f()
		return
	}
	for _, c := range clients {
		c.Calls.Also()
	}
	ended, left := make(chan any), make(chan struct{})
	defer close(left)
	go func() { // ends with f
		defer func() {
			for _, c := range clients {
				c.Calls.Ended()
			}
		}()
		defer func() {
			v := recover() // a Trace's panic goes to the caller, if it still waits
			select {
			case ended <- v:
			case <-left:
				if v != nil {
					clients[0].Options.Tell.Panicked(v, debug.Stack())
				}
			}
		}()
		f()
	}()
	var over <-chan time.Time
	if !c.Limit.IsZero() {
		timer := time.NewTimer(time.Until(c.Limit))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case v := <-ended:
		if v != nil {
			panic(v)
		}
	case <-c.Ctx.Done():
	case <-over:
	}
}

// Waits reports to the Trace that the Lock begins to wait.
func (c Caller) Waits(holder string) {
	if c.Trace != nil {
		c.Trace.Waits(holder)
	}
}

// Stopped returns a channel that is closed when the Lock must stop waiting early.
func (c Caller) Stopped() <-chan struct{} {
	if c.Trace == nil {
		return nil
	}
	return c.Trace.Over()
}

// Took reports to the Trace how the lock was acquired.
func (c Caller) Took(p Path) {
	if c.Trace != nil {
		c.Trace.Took(p)
	}
}

// isSelf reports whether a Lock with that ctx, waiting for owner, waits for its own caller, as far as known.
func (c *Engine) IsSelf(given context.Context, owner string) bool {
	if !c.IsOwn(owner) || kinds.IsPlaceholder(owner) {
		return false
	}
	tag, _, _ := strings.Cut(owner[len(c.ID)+1:], ":")
	n, err := strconv.ParseUint(tag, 10, 64)
	return err == nil && slices.ContainsFunc(c.Open.Given(n), func(outer context.Context) bool { return IsUnder(given, outer) })
}

// CallEnds returns when a call that begins now, and has to precede that of the Lock, is left.
func (c Caller) CallEnds() time.Time {
	end := time.Now().Add(calls.Timeout)
	if !c.Limit.IsZero() {
		end = calls.Earlier(end, c.Limit)
	}
	return end
}

// AwaitEnd waits for the end of what precedes a Lock, at most until then, or until the caller leaves. Close ends it, too.
func (c Caller) AwaitEnd(ended <-chan struct{}, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-c.Ctx.Done():
	}
}
