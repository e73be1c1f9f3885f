package rlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/ticket"
)

// Export ends the innermost section that ctx carries, and leaves its lock to a ticket: whoever gives that to [Client.Adopt] goes on with the lock, in
// this process or in another one, and nobody gets in between. It is for work that begins in one process and ends in another one, say
// in a handler that puts a job into a queue. The ticket is a text of about a hundred bytes that can stand in a header, a URL or JSON.
//
// The section ends as by an unlock: its ctx is cancelled first, with a [context.Cause] that satisfies errors.Is for [ErrExported]. Its own unlock has
// nothing left to do, and returns nil: defer it as ever, or call Export in a Do. No waiter of this process is given the lock.
//
// A ticket works once. One that nobody adopts ends with its time, see [WithTicketTime], and the lock is free then; until then the lock is held, whatever
// becomes of this process or of its Client. The options of the handle go with the section, not with the ticket. [Mutex.ForceUnlock] ends a ticket.
//
// A ticket is a secret: whoever has it can have the lock. It cannot be guessed, nor found from what Redis shows to others. So keep it out of logs.
//
// A hold can be exported if it was taken through a Mutex, a FencedMutex or the write side of an RWMutex, and if no other level of it is open (unlock
// the inner ones first), no reader is in the writer's section, and it was not taken together with others ([All]). Those of fair locks, readers, a
// [Quorum] and permits cannot.
//
// If the error satisfies errors.Is for [ErrNotExported], nothing was changed: the section goes on, and has to be unlocked as ever. It satisfies, too,
//
//   - [ErrNotHeld], if ctx carries no section, or it was unlocked or exported before,
//   - ctx.Err(), if ctx is done: give Export a [context.WithoutCancel] of it if the hold is to be exported all the same,
//   - [ErrClosed], if the Client is closed.
//
// After any other error the section has ended. There is no ticket, and the lock is released in the background as by an unlock:
//
//   - [ErrLost] and ErrNotHeld, if the hold was lost before; its unlock says so as well,
//   - [ErrUnreachable], if Redis did not answer within [Options].UnlockTimeout,
//   - or what Redis said.
//
// Export panics if ctx is nil. It is safe for concurrent use: of several calls for one section one gets a ticket.
func Export(ctx context.Context, options ...ExportOption) (string, error) {
	var s exportSettings
	for _, o := range options {
		if o == nil {
			return "", notExported("an option is nil")
		}
		o.applyTo(&s)
	}
	section := engine.SectionOf(ctx)
	if section == nil {
		return "", fmt.Errorf("rlock: Export: %w: the ctx carries no section (use the ctx that Lock returned): %w", ErrNotExported, ErrNotHeld)
	}
	l, ok := section.(*engine.Level)
	if !ok {
		return "", notExported("the innermost section is that of permits (give the id of the Permit to whoever is to release it)")
	}
	m := l.Spec()
	switch {
	case s.lasts == 0:
		s.lasts = m.Engine.Options.WatchdogTimeout
	case s.lasts < time.Millisecond:
		return "", m.Fail(ErrNotExported, fmt.Errorf("the ticket's time is %v, want at least 1ms", s.lasts))
	}
	if ctx.Err() != nil && l.IsOpen() && l.Loss() == nil && !m.Engine.IsTold() {
		return "", m.Fail(ErrNotExported, ctx.Err())
	}
	kind := m.Kind
	if l.HasToken() {
		kind = kinds.Fenced
	}
	t := ticket.New(kindLetters[kind], m.Engine.ID, m.Name)
	if err := l.Export(t.Number(), s.lasts.Truncate(time.Millisecond)); err != nil {
		return "", err
	}
	return t.String(), nil
}

func notExported(why string) error { return fmt.Errorf("rlock: Export: %w: %s", ErrNotExported, why) }

// ExportOption changes one [Export].
type ExportOption interface{ applyTo(*exportSettings) }

// exportSettings are zero if nothing was asked for.
type exportSettings struct{ lasts time.Duration }

type exportFunc func(*exportSettings)

func (f exportFunc) applyTo(s *exportSettings) { f(s) }

// WithTicketTime keeps the lock for d after the call of Export, in whole milliseconds, unless somebody adopts it: allow for the time that the job
// may be in its queue. Without this option it is the watchdog time of the Client. A d below 1 ms is reported by Export, and changes nothing.
func WithTicketTime(d time.Duration) ExportOption {
	return exportFunc(func(s *exportSettings) {
		if s.lasts = d; d == 0 {
			s.lasts = -1 // 0 is what nobody has asked for
		}
	})
}

// Adopt goes on with the lock that [Export] has left to a ticket: in one step it becomes a hold of this Client, with a section, an unlock, a lease
// and options as those of [Mutex.Lock]. It does not wait: the lock is the ticket's. The token of a [Client.FencedMutex] is higher than
// all before it. Only the first Adopt of a ticket gets the lock.
//
// The Client needs the same Redis and [Options].Prefix as that of the Export. The options are those of the handle that the hold is to have.
//
// On error the given ctx comes back, and an unlock that returns [ErrNotHeld]. The error satisfies errors.Is for
//
//   - [ErrTicket], if the ticket was used before, or its time is over, or it is none: lock the name as ever, and look at how far the work has come,
//   - [ErrNotAcquired] and ctx.Err(), if ctx was done first,
//   - [ErrUnreachable], [ErrNotReplicated] and [ErrClosed] as for [Mutex.Lock].
//
// After all but ErrTicket and ErrClosed it is open whether the ticket was used. What it got is released in the background: try again, and if that
// is ErrTicket, lock the name.
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
		err = fmt.Errorf("rlock: Adopt: %w: %w", ErrTicket, err)
		return ctx, func() error { return fmt.Errorf("rlock: Adopt: %w: %w", ErrNotHeld, errAdoptFailed) }, err
	}
	m := c.handle(kind, t.Name, options)
	return m.lockTraced(engine.CallerNow(ctx), func(who engine.Caller) (*engine.Level, error) { return m.spec.Adopt(who, t.Client, t.Number()) })
}

var errAdoptFailed = errors.New("it failed")

// kindLetters are how tickets name kinds.
var kindLetters = map[*kinds.Kind]byte{kinds.Mutex: 'm', kinds.Fenced: 'f', kinds.Write: 'w'}

func kindOf(letter byte) *kinds.Kind {
	for kind, l := range kindLetters {
		if l == letter {
			return kind
		}
	}
	return nil
}
