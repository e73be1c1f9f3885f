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

// Export ends the innermost section that ctx carries, and leaves its lock to a ticket: a text of about a hundred bytes that is safe in a header,
// a URL or JSON. [Client.Adopt] turns it into a hold again, in any process; nobody else gets the lock in between. The section's own unlock then
// does nothing and returns nil.
//
// A ticket works once, and is a secret: whoever can read it and reach Redis can take the lock. Until it is adopted or expires, see
// [WithTicketTime], the lock is held, even if this process dies. [Mutex.ForceUnlock] ends it.
//
// Only the holds of a plain or fenced lock or a write side can be exported, and only without other open levels, readers in the writer's section,
// or other locks of an [All].
//
// If the error is [ErrNotExported], the section continues. It is also [ErrNotHeld], if ctx carries no open section; ctx.Err(), if ctx is done;
// or [ErrClosed]. After any other error the section has ended without a ticket: [ErrLost] and [ErrNotHeld] if the hold was lost before, and
// [ErrPending] if Redis refused, or did not answer within [Options].UnlockTimeout ([ErrUnreachable] as well); the lock is then released in the
// background. Of several calls for one section, one gets a ticket.
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
	m := l.Hold.Tenure.Lock
	switch {
	case !s.given:
		s.lasts = m.Client.Options.WatchdogTimeout
	case s.lasts < time.Millisecond:
		return "", m.Fail(ErrNotExported, fmt.Errorf("the ticket's time is %v, want at least 1ms", s.lasts))
	}
	if ctx.Err() != nil && l.IsOpen() && l.Loss() == nil && !m.Client.IsTold() {
		return "", m.Fail(ErrNotExported, ctx.Err())
	}
	kind := m.Kind
	if _, fenced := l.Hold.FencingToken(); fenced {
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
type exportSettings struct {
	lasts time.Duration
	given bool
}

type exportFunc func(*exportSettings)

func (f exportFunc) applyTo(s *exportSettings) { f(s) }

// WithTicketTime sets the life of a ticket, from the call of [Export], in whole milliseconds. The default is the watchdog time of the Client.
// For a d below 1 ms Export returns [ErrNotExported].
func WithTicketTime(d time.Duration) ExportOption {
	return exportFunc(func(s *exportSettings) { s.lasts, s.given = d, true })
}

// Adopt turns a ticket of [Export] into a hold of this Client, which needs the same Redis and [Options].Prefix as the exporting one. It does not
// wait. The section, its unlock and options are those of [Mutex.Lock]; the token of a fenced lock is higher than all before it. Only the first
// Adopt of a ticket gets the lock.
//
// On error Adopt returns the given ctx, and an unlock that returns [ErrNotHeld]. After [ErrTicket] lock the name as usual, and check how far the
// work has come. Other errors are those of [Mutex.Lock]; the ticket may have been used by then: try again, as [WithWaitForRedis] makes Adopt do
// by itself while Redis does not answer. It then continues a hold that one of its tries has got, unless the lease has ended.
func (c *Client) Adopt(ctx context.Context, text string, options ...Option) (context.Context, UnlockFunc, error) {
	c.check()
	needs(ctx)
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
