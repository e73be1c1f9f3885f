package rlock

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
)

// LeadOption changes how [Lead] leads.
type LeadOption interface{ applyTo(*leadership) }

// leadership is how Lead leads.
type leadership struct {
	resigns bool
	term    time.Duration
}

type leadOption func(*leadership)

func (f leadOption) applyTo(l *leadership) { f(l) }

// ResignWhenAsked has a leader resign in order when somebody else waits for the lock, or asks for it ([Client.Ask], `rlock ask`), and it has led for
// the term, counted from the moment in which fn was called. Then the ctx of fn is cancelled with a cause that satisfies errors.Is for [ErrResigned].
// When fn has returned, whatever it returned, Lead unlocks, so that the next leader has the lock at once, and waits for it again.
//
// The lock needs [WithAsked]; without it Lead returns an error and does not run fn. Other candidates wait all the time, so with two of them
// leaders change each term: give it the time that work should stay in one place, minutes mostly. Without other candidates nobody resigns.
func ResignWhenAsked(term time.Duration) LeadOption {
	return leadOption(func(l *leadership) { l.resigns, l.term = true, term })
}

// ErrResigned is found in the cause of the end of a leader's ctx that was asked for the lock, see [ResignWhenAsked].
var ErrResigned = errors.New("rlock: resigned when asked for the lock")

var errNeverAsked = errors.New("the hold does not know if somebody waits: ResignWhenAsked needs a lock WithAsked")

// lead runs fn inside the section of a leader.
func (l leadership) lead(ctx context.Context, name string, fn func(ctx context.Context) error) (err, over error) {
	if !l.resigns {
		defer func() { over = context.Cause(ctx) }()
		return fn(ctx), nil
	}
	asked := engine.Asked(ctx)
	if asked == nil {
		return newLockError(name, errNeverAsked), nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	term := time.NewTimer(l.term)
	ended := make(chan struct{})
	go func() { // ends when it has cancelled ctx, with ctx, or when fn has returned
		defer close(ended)
		defer term.Stop()
		select {
		case <-asked:
		case <-ctx.Done():
			return
		}
		select {
		case <-term.C:
			cancel(newLockError(name, ErrResigned))
		case <-ctx.Done():
		}
	}()
	defer func() {
		over = context.Cause(ctx) // before it ends with fn
		cancel(nil)
		<-ended
	}()
	return fn(ctx), nil
}
