package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// along is a ticket, as the oracle of its lock knows it; o.mu guards it. From the Export to the Adopt nobody may
// enter, unless the server forgets the lock, the ticket's time is over, or an Adopt that may have used the ticket
// fails.
type along struct {
	until    time.Time // the end of its time
	adopting int       // calls in progress
	adopted  int       // calls that got the lock
	failed   bool      // a call has used it, or may have, and gives the lock back
	forgot   bool      // the server may have forgotten it
}

// isOpen reports whether the ticket surely has the lock.
func (t *along) isOpen() bool {
	return t.adopting == 0 && t.adopted == 0 && !t.failed && !t.forgot && time.Until(t.until) > 2*time.Millisecond
}

// isTicket reports whether an owner field is a ticket's.
func isTicket(field string) bool {
	_, tag, _ := strings.Cut(field, ":")
	return strings.HasPrefix(tag, "000")
}

// exported notes a ticket, of an Export called at began. forgot means that the server may have forgotten its lock
// before; it may have, too, while the answer was under way, and nobody was inside then.
func (o *oracle) exported(began time.Time, lasts time.Duration, forgot bool) *along {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := &along{until: began.Add(lasts), forgot: forgot || !o.lost.Before(began)}
	o.tickets[t] = struct{}{}
	o.expires = true // the end of a ticket sends no message
	return t
}

// adopts notes a call of Adopt.
func (o *oracle) adopts(t *along) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t.adopting++
}

// adoptEnds notes that an Adopt has returned, or that its section has begun. It reports whether nobody could have the
// ticket, and none of its calls is in progress.
func (o *oracle) adoptEnds(t *along, err error) (unused bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t.adopting--
	t.failed = t.failed || !errors.Is(err, rlock.ErrTicket)
	return t.isOpen()
}

// heeds checks a new section against the tickets; o.mu is held.
func (o *oracle) heeds(s *section) {
	if s.ticket != nil {
		if s.ticket.adopted++; s.ticket.adopted > 1 {
			o.world.violation(o.name.Text, "%v is the second one that has adopted a ticket", s)
		}
	}
	for t := range o.tickets {
		switch {
		case t != s.ticket && t.isOpen():
			o.world.violation(o.name.Text, "%v got in between an Export and its Adopt (G1)", s)
		case t.adopting == 0 && !t.isOpen():
			delete(o.tickets, t)
		}
	}
}

// isExported reports whether a ticket has the lock on the server, so that nobody is inside; o.mu is held.
func (o *oracle) isExported() bool {
	if o.world.plan.Along == 0 || o.name.Kind == Quorum {
		return false
	}
	return slices.ContainsFunc(o.world.servers[0].fields(o.name.Text), isTicket)
}

// mayExport reports whether a section of w can be exported.
func (w want) mayExport() bool {
	kind := w.parts[0].oracle.name.Kind
	_, many := w.lock.(*rlock.MultiMutex) // maybe of one
	return !many && w.parts[0].least == 0 && (kind == Plain || kind == Fenced || kind == ReadWrite && !w.shared && w.upper == nil)
}

// takeAlong exports a section, and makes two processes adopt it. One of them gets it, possibly this one. It stays in the sections around it
// meanwhile, unless their ctx, outer, ends.
func (k *worker) takeAlong(outer, ctx context.Context, w want, s *section, unlock rlock.UnlockFunc) {
	world, o := k.world(), w.parts[0].oracle
	lasts := between(k.r, 50*time.Millisecond, min(world.plan.Watchdog, 3*time.Second))
	excused := k.leave(ctx, w, []*section{s})
	began := time.Now()
	text, err := rlock.Export(context.WithoutCancel(ctx), rlock.WithTicketTime(lasts))
	k.returned(o, "Export", began.Add(world.unlock()), o.name.Text)
	if err != nil {
		if !excused {
			k.check(o, "Export", err, false)
		}
		_ = unlock() // if there was nothing to export any more
		return
	}
	world.released(k.process, o, s.owner)
	if err := unlock(); err != nil && !excused {
		k.check(o, "unlock after Export", err, false)
	}
	t := o.exported(began, lasts, excused)
	var calls sync.WaitGroup
	for range 2 {
		other := *k
		other.process = world.all[k.r.IntN(len(world.all))]
		other.r = rand.New(rand.NewPCG(k.seed, k.r.Uint64()))
		calls.Add(1)
		world.work.Go(func() { // ends with its one section
			other.adopt(t, text, w, lasts, &calls)
		})
	}
	called := make(chan struct{})
	world.work.Go(func() { // ends with the calls
		calls.Wait()
		close(called)
	})
	select {
	case <-called:
	case <-outer.Done():
	}
}

// adopt continues with a ticket, if it gets the lock.
func (k *worker) adopt(t *along, text string, w want, lasts time.Duration, called *sync.WaitGroup) {
	world, o := k.world(), w.parts[0].oracle
	defer k.begin(w)()
	k.sleep(k.process.ctx, time.Duration(k.r.Float64()*1.2*float64(lasts)))
	asks, _, latest := k.leaves(k.process.ctx)
	if asks == k.process.ctx {
		latest = time.Time{} // it has no other bound
	}
	persists, options := k.persists(nil)
	o.adopts(t)
	began := time.Now()
	ctx, unlock, err := k.process.locks[0].Adopt(asks, text, options...)
	k.returned(o, "Adopt", latest, o.name.Text)
	if err != nil {
		unused := o.adoptEnds(t, err)
		called.Done()
		// One that it took by an earlier try, whose answer was lost, may have ended with its lease.
		own := persists && time.Since(began) < world.plan.Watchdog
		switch {
		case persists && !errors.Is(err, rlock.ErrTicket):
			k.isPatient(k.process.ctx, o, "Adopt", latest, false, err)
		case !errors.Is(err, rlock.ErrTicket):
			k.check(o, "Adopt", err, !latest.IsZero() || k.process.ctx.Err() != nil)
		case unused && (own || world.quiet() > world.settle()):
			world.violation(o.name.Text, "p%d: a ticket that nobody has used has no lock: %v", k.process.number, err)
		}
		return
	}
	s := &section{process: k.process, ctx: ctx, owner: rlock.Owner(ctx), ticket: t}
	o.enter(s, began)
	o.adoptEnds(t, nil)
	called.Done()
	k.hold(ctx)
	k.unlock(ctx, want{lock: w.lock, parts: []part{{oracle: o}}}, []*section{s}, unlock)
}
