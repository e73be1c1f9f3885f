package rlock

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/ear"
)

// LeadOption changes how [Lead] leads.
type LeadOption interface{ applyTo(*leadership) }

// leadership holds the options of Lead.
type leadership struct {
	resigns bool
	term    time.Duration
	report  *Leadership // nil: nobody wants to know
}

type leadOption func(*leadership)

func (f leadOption) applyTo(l *leadership) { f(l) }

// ResignWhenAsked lets a leader step down when somebody waits or asks for the lock ([Client.Ask], `rlock ask`), once it has led for the term,
// counted from the call of fn: the ctx of fn is cancelled with the cause [ErrResigned]. When fn has returned, Lead unlocks, and waits for the
// lock again. The lock needs [WithAsked]; without it Lead returns an error.
func ResignWhenAsked(term time.Duration) LeadOption {
	return leadOption(func(l *leadership) { l.resigns, l.term = true, term })
}

// ErrResigned is wrapped in the cause of a leader that stepped down, see [ResignWhenAsked].
var ErrResigned = errors.New("rlock: resigned when asked for the lock")

var errNeverAsked = errors.New("ResignWhenAsked needs a lock WithAsked")

// lead runs fn inside the section of a leader.
func (l leadership) lead(ctx context.Context, name string, fn func(ctx context.Context) error) (err, over error) {
	if !l.resigns {
		defer func() { over = context.Cause(ctx) }()
		return l.run(ctx, name, fn), nil
	}
	asked := ear.Asked(ctx)
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
	return l.run(ctx, name, fn), nil
}

// run runs fn, and reports its begin and end to the Leadership, if any.
func (l leadership) run(ctx context.Context, name string, fn func(ctx context.Context) error) error {
	if l.report != nil {
		defer l.report.begin(ctx, name)()
	}
	return fn(ctx)
}
