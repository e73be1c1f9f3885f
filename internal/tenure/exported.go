package tenure

import (
	"errors"
	"fmt"

	"github.com/go-rlock/rlock/lua"
)

// ErrExported is in the cause of a section whose hold was exported.
var ErrExported = errors.New("rlock: exported")

// exportedError is the [context.Cause] of such a section.
type exportedError struct{ *UnlockedError }

func (e exportedError) Error() string {
	if e.Unwrap() != nil {
		return e.UnlockedError.Error()
	}
	return "rlock: " + Quote(*e.Name) + ": exported"
}

func (e exportedError) Is(target error) bool {
	return target == ErrExported || e.UnlockedError.Is(target)
}

// IsExported reports whether Export ended it.
func (l *Level) IsExported() bool {
	l.Hold.Tenure.mu.Lock()
	defer l.Hold.Tenure.mu.Unlock()
	return l.Hold.exported
}

// TakenTogether notes that its hold is one of several that end together, unless the level is a re-entry.
func (l *Level) TakenTogether() {
	if l.IsReentry() {
		return
	}
	l.Hold.Tenure.mu.Lock()
	defer l.Hold.Tenure.mu.Unlock()
	l.Hold.together = true
}

// FailNotExported returns the error of an Export that changes nothing.
func (m *Lock) FailNotExported(why string) error {
	return m.Fail(m.Client.Errors.NotExported, errors.New(why))
}

// CloseToExport closes the level if its hold may be exported, and leaves the lock to the ticket.
func (l *Level) CloseToExport(left *Stay) error {
	h, t := l.Hold, l.Hold.Tenure
	m := t.Lock
	readers := m.Kind.Side == lua.Writer && m.Client.Open.Reads(m.Key) // the script looks again, when it is too late to go on
	t.mu.Lock()
	var err error
	switch {
	case l.cancel == nil:
		err = m.Fail(m.Client.Errors.NotExported, m.Client.Errors.NotHeld, ErrUnlockedBefore)
	case h.loss() != nil:
		err = m.FailNotHeld(h.loss())
	case m.Kind.Side == lua.Reader:
		err = m.FailNotExported("readers of a process share what they have in Redis (export the write side)")
	case !m.Kind.Exports:
		err = m.FailNotExported("in the queue of a " + m.Kind.Name + " lock, places are timed by the lease of the holder (use a Mutex)")
	case h.together:
		err = m.FailNotExported("it was taken together with other locks, and ends with them (lock them one by one)")
	case h.levels != l || l.next != nil:
		err = m.FailNotExported(fmt.Sprintf("%d levels of the hold are open, all of which run here (unlock the inner ones first)", h.count))
	case readers:
		err = m.FailNotExported("readers are in the section of the writer (unlock these first)")
	}
	if err != nil {
		t.mu.Unlock()
		return err
	}
	h.exported, t.Stays = true, left
	l.closeFor(exportedError{&h.unlocked})
	return nil
}
