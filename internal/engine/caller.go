package engine

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

// Caller is who called Lock, and how long it waits.
type Caller struct {
	Ctx    context.Context // ends the waiting
	Outer  context.Context // that the user has given; ctx may be one inside of it
	parent context.Context // of the section; nil: ctx
	Began  time.Time
	Wait   time.Time // end of the waiting; zero: only ctx ends it
	Limit  time.Time // of an attempt that is under way, not before wait; zero: only ctx ends it
	Once   bool      // no waiting: one attempt
	Climbs bool      // it gives up by itself what it has of an All; so nobody waits for that for good
	Trace  Tracer    // nil: nobody wants to know
}

// CallerNow is the caller of a Lock that is called now.
func CallerNow(ctx context.Context) Caller {
	return Caller{Ctx: ctx, Outer: ctx, parent: sectionParent(ctx), Began: time.Now()}
}

// Caller is the caller of a Lock of m that is called now.
func (m *Spec) Caller(ctx context.Context) Caller {
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

// UpTo bounds the waiting. Its first attempt is given the least at least.
func (c Caller) UpTo(wait, least time.Duration) Caller {
	c.Once, c.Limit = wait <= 0, c.Began.Add(max(wait, least))
	if !c.Once {
		c.Wait = c.Began.Add(wait)
	}
	return c
}

// LeaveTo runs f, which unlocks what the caller has got and has no use for, for as long as the caller stays: until ctx is done, or the
// limit of an attempt is over. f goes on then, and ends as any unlock does. Close of the Clients concerned, which have been started, waits
// for it.
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
			v := recover() // what a Trace panics with is for the caller, if that is still here
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

// Waits tells that the Lock waits from here on.
func (c Caller) Waits(holder string) {
	if c.Trace != nil {
		c.Trace.Waits(holder)
	}
}

// Stopped is closed when the Lock is to stop waiting, though it has time.
func (c Caller) Stopped() <-chan struct{} {
	if c.Trace == nil {
		return nil
	}
	return c.Trace.Over()
}

// Took tells how the lock was got.
func (c Caller) Took(p Path) {
	if c.Trace != nil {
		c.Trace.Took(p)
	}
}

// isSelf reports whether a Lock that was given that ctx waits for its own caller, as far as can be told, if it waits for that owner.
func (c *Engine) isSelf(given context.Context, owner string) bool {
	if !c.IsOwn(owner) || kinds.IsPlaceholder(owner) {
		return false
	}
	tag, _, _ := strings.Cut(owner[len(c.ID)+1:], ":")
	n, err := strconv.ParseUint(tag, 10, 64)
	return err == nil && slices.ContainsFunc(c.insiders.given(n), func(outer context.Context) bool { return IsUnder(given, outer) })
}
