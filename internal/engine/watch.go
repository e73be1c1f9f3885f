package engine

import (
	"iter"

	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/pubsub"
)

// A Watcher is told of the waits of all Locks of a Client.
type Watcher interface {
	// Waits is called before each sleep of a Lock, which fails with the error that the channel delivers, if any; nil: it never does.
	Waits(l *Attempt) (fails <-chan error)
	// Refused is called when a Lock that does not wait is refused.
	Refused(l *Attempt)
	// WaitOver is called at the end of a Lock that competed.
	WaitOver(l *Attempt)
}

// watchers yields those among the features of an engine.
func watchers(c *tenure.Client) iter.Seq[Watcher] {
	return func(yield func(Watcher) bool) {
		for _, f := range c.Features {
			if w, ok := f.(Watcher); ok && !yield(w) {
				return
			}
		}
	}
}

func (l *Attempt) observed(h *tenure.Hold, how tenure.Beginning) {
	for _, o := range l.Lock.Observers {
		o.Began(h, how)
	}
}

// watched tells the watchers that the Lock is about to sleep. fails delivers the error with which one of them has it fail; nil: none may.
func (l *Attempt) watched() (fails <-chan error) {
	l.waited = true
	for w := range watchers(l.Lock.Client) {
		if may := w.Waits(l); may != nil {
			fails = may
		}
	}
	return fails
}

func (l *Attempt) refusedOnce() {
	for w := range watchers(l.Lock.Client) {
		w.Refused(l)
	}
}

type watcherError struct{ error }

// beginning returns how a hold of the Lock begins.
func (l *Attempt) beginning(a tenure.AcquireResult) tenure.Beginning {
	switch {
	case a.Path != tenure.ByCall:
		return tenure.Alone
	case l.within != nil || l.ticket != nil:
		return tenure.Unheard
	case a.Lease > 0:
		return tenure.Granted
	case l.waiter != nil && l.waiter.Waited():
		return tenure.AfterOther
	}
	return tenure.Alone
}

// Waiter returns its place in the line of the process; nil: it never waited there.
func (l *Attempt) Waiter() *pubsub.Waiter { return l.waiter }

// Within returns the hold that lets the Lock in: the writer's, or that of the reader that becomes the writer; nil: none.
func (l *Attempt) Within() *tenure.Hold { return l.within }

func (l *Attempt) continueKept() (o tenure.Outcome) {
	c := l.Lock.Client
	t, token, left, err := c.Cache.Take(l.Caller, l.Lock)
	switch {
	case left:
		return failed(l.Failure(err))
	case t == nil:
		return o
	}
	l.Tenure, t.Run = t, nil // and with the run its tokens, which are older
	a := tenure.AcquireResult{Path: tenure.Passed}
	a.Token = token
	if o = l.enter(a); o.Level != nil {
		l.Took(tenure.PathIdle)
		c.Counts.Kept.Add(1)
	}
	return o
}
