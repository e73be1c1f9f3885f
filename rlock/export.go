package rlock

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/ticket"
)

// Export ends the innermost section that ctx carries, and leaves its lock to a ticket: a text of about a hundred bytes that is safe in a
// header, a URL or JSON. [Client.Adopt] turns the ticket into a hold again, in this process or another one; nobody else gets the lock in
// between.
//
// The section ends as by an unlock: its ctx is cancelled first, with a [context.Cause] that is [ErrExported]. Its own unlock then does
// nothing and returns nil, so defer it as usual, or call Export in a Do.
//
// A ticket works once, and is a secret: anybody who can read it and reach Redis can take the lock. If nobody adopts it, it expires, see
// [WithTicketTime], and the lock is free. Until then the lock is held, even if this process dies or its Client is closed.
// [Mutex.ForceUnlock] ends a ticket.
//
// A hold can be exported if it was taken through a Mutex, a FencedMutex or the write side of an RWMutex, and not together with others
// ([All]), if no other level of it is open, and if no reader is in the writer's section. Holds of fair locks, readers, a [Quorum] and
// permits cannot be exported.
//
// If the error is [ErrNotExported], nothing was changed: the section continues, and has to be unlocked as usual. It is also
//
//   - [ErrNotHeld], if ctx carries no section, or it was unlocked or exported before,
//   - ctx.Err(), if ctx is done: give Export a [context.WithoutCancel] of it to export the hold anyway,
//   - [ErrClosed], if the Client is closed.
//
// After any other error the section has ended, and there is no ticket:
//
//   - [ErrLost] and ErrNotHeld, if the hold was lost before; its unlock returns them too,
//   - [ErrPending], if Redis did not answer within [Options].UnlockTimeout (then for [ErrUnreachable] as well), or refused. The lock is
//     released in the background, as by an unlock.
//
// Export panics if ctx is nil. It is safe for concurrent use: of several calls for one section, one gets a ticket.
func Export(ctx context.Context, options ...ExportOption) (string, error) {
	var s exportSettings
	for _, o := range options {
		if o == nil {
			return "", notExported("an option is nil")
		}
		o.applyTo(&s)
	}
	section := tenure.SectionOf(ctx)
	if section == nil {
		return "", fmt.Errorf("%w: the ctx carries no section (use the ctx that Lock returned): %w", ErrNotExported, ErrNotHeld)
	}
	l, ok := section.(*tenure.Level)
	if !ok {
		return "", notExported("the innermost section is that of permits, which have no tickets (end it first; a Permit can also be released by its id)")
	}
	m := l.Handle()
	switch {
	case s.lasts == 0:
		s.lasts = m.Client.Options.WatchdogTimeout
	case s.lasts < time.Millisecond:
		return "", m.Fail(ErrNotExported, fmt.Errorf("the ticket's time is %v, want at least 1ms", s.lasts))
	}
	if ctx.Err() != nil && l.IsOpen() && l.Loss() == nil && !m.Client.IsTold() {
		return "", m.Fail(ErrNotExported, ctx.Err())
	}
	kind := m.Kind
	if l.HasToken() {
		kind = cmp.Or(kind.Fenced, kind)
	}
	t := ticket.New(kindLetters[kind], m.Client.ID, m.Name)
	if err := engine.Export(l, t.Number(), s.lasts.Truncate(time.Millisecond)); err != nil {
		return "", err
	}
	return t.String(), nil
}

func notExported(why string) error { return fmt.Errorf("%w: %s", ErrNotExported, why) }

// ExportOption changes one [Export].
type ExportOption interface{ applyTo(*exportSettings) }

// exportSettings is zero without options.
type exportSettings struct{ lasts time.Duration }

type exportFunc func(*exportSettings)

func (f exportFunc) applyTo(s *exportSettings) { f(s) }

// WithTicketTime sets the life of a ticket, from the call of Export, in whole milliseconds. Make it longer than a job may wait in its
// queue. The default is the watchdog time of the Client. For a d below 1 ms Export returns [ErrNotExported].
func WithTicketTime(d time.Duration) ExportOption {
	return exportFunc(func(s *exportSettings) {
		if s.lasts = d; d == 0 {
			s.lasts = -1 // 0 is what nobody has asked for
		}
	})
}

// Adopt turns a ticket of [Export] into a hold of this Client, in one step. The section, its unlock, lease and options are those of
// [Mutex.Lock]. It does not wait, because the ticket has the lock. The token of a fenced lock is higher than all before it. Only the first
// Adopt of a ticket gets the lock.
//
// The Client needs the same Redis and [Options].Prefix as the exporting Client. The options are those of the handle for the new hold.
//
// On error Adopt returns the given ctx, and an unlock that returns [ErrNotHeld]. The error is
//
//   - [ErrTicket], if the ticket was used before, has expired, or is not a ticket: lock the name as usual, and check how far the work has
//     come,
//   - [ErrNotAcquired] and ctx.Err(), if ctx was done first,
//   - [ErrUnreachable], [ErrNotReplicated] or [ErrClosed], as for [Mutex.Lock].
//
// After any error but ErrTicket and ErrClosed, the ticket may have been used, which is undone in the background: try again, and lock the
// name if that returns ErrTicket.
func (c *Client) Adopt(ctx context.Context, text string, options ...Option) (context.Context, UnlockFunc, error) {
	if c.check(); ctx == nil {
		panic("rlock: the ctx is nil")
	}
	t, err := ticket.Parse(text)
	var kind *kinds.Kind
	if err == nil {
		if kind = kindOf(t.Kind); kind == nil {
			err = ticket.ErrVersion
		}
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrTicket, err)
		return ctx, func() error { return fmt.Errorf("%w: Adopt failed", ErrNotHeld) }, err
	}
	m := c.handle(kind, t.Name, options)
	return m.lockTraced(tenure.CallerNow(ctx).Persistent(m.lock.Persists), func(_ *tenure.Lock, who tenure.Caller) (*tenure.Level, error) {
		return engine.Adopt(m.lock, who, t.Client, t.Number())
	})
}

// kindLetters are the names of kinds in tickets.
var kindLetters = map[*kinds.Kind]byte{kinds.Mutex: 'm', kinds.Fenced: 'f', kinds.Write: 'w', kinds.FencedWrite: 'x'}

func kindOf(letter byte) *kinds.Kind {
	for kind, l := range kindLetters {
		if l == letter {
			return kind
		}
	}
	return nil
}
