package faults

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/ticket"
	"github.com/go-rlock/rlock/rlock"
)

// Histories of holds exported to another Client of the run, or to the same one.

// histTicket is a ticket between its Export and its Adopt.
type histTicket struct{ name, text, owner string }

// ticketTime is longer than a run: no lock becomes free because a ticket expires.
const ticketTime = time.Hour

// histTickets is the way of tickets between the workers of a process. It has no buffer, so every ticket sent on it has an adopter.
var histTickets = make(chan histTicket)

// export ends a hold of one level with an Export, and has another worker adopt it, or adopts it itself after a moment.
func (w *histWorker) export(h *histHold) {
	var t histTicket
	unlock := h.release
	h.release = func() error {
		text, err := rlock.Export(context.WithoutCancel(h.ctx), rlock.WithTicketTime(ticketTime))
		if err != nil {
			return err
		}
		t = histTicket{h.name, text, w.plan.ticketOwner(text)}
		h.ticket = t.owner
		return nil
	}
	h.unlock(w)
	if err := unlock(); err != nil && t.text != "" {
		w.wrong(fmt.Errorf("%s: the unlock after an Export: %w", h.name, err))
	}
	if t.text == "" {
		return
	}
	w.did(exported)
	wait := time.NewTimer(w.duration(4 * w.plan.Step))
	defer wait.Stop()
	select {
	case histTickets <- t:
	case <-wait.C:
		w.adopt(t)
	}
}

// ticketOwner returns the ticket's owner in Redis.
func (p workPlan) ticketOwner(text string) string {
	t, err := ticket.Parse(text)
	if err != nil {
		panic(err)
	}
	if p.is(histRW) {
		return kinds.Mutex.OfTicket(t.Client, t.Number()) + ":write"
	}
	return kinds.Mutex.OfTicket(t.Client, t.Number())
}

// adoptOne adopts another worker's ticket. It returns false if there is none within a moment.
func (w *histWorker) adoptOne() bool {
	wait := time.NewTimer(w.duration(4 * w.plan.Step))
	defer wait.Stop()
	select {
	case t := <-histTickets:
		w.adopt(t)
		w.did(moved)
		return true
	case <-wait.C:
		return false
	}
}

// adopt is a section that begins with an Adopt.
func (w *histWorker) adopt(t histTicket) {
	e := histEntry{Kind: histAdopt, Name: t.name, Ticket: t.owner, Worker: w.id, Call: histNow()}
	ctx, cancel := context.WithCancel(context.Background())
	h := &histHold{name: t.name, cancel: cancel}
	var err error
	for h.ctx, h.release, err = w.client.Adopt(ctx, t.text); w.plan.Spoken && errors.Is(err, rlock.ErrUnreachable); {
		h.ctx, h.release, err = w.client.Adopt(ctx, t.text) // else others would wait for it for longer than this run
	}
	switch {
	case errors.Is(err, rlock.ErrLost), w.plan.Spoken && errors.Is(err, rlock.ErrTicket): // used up by this Adopt, whose reply came late, or a failed one
		cancel()
		e.Kind, e.Owner, e.Ticket, e.Return = histUnknown, t.owner, "", histNow()
		w.log.add(e)
		w.didFail(err)
		return
	case err != nil:
		cancel()
		w.wrong(fmt.Errorf("%s: Adopt: %w", t.name, err))
		return
	}
	h.whose()
	e.Token, _ = rlock.FencingToken(h.ctx, t.name)
	e.Return = histNow()
	h.begin(w)
	e.Owner = h.hold
	h.base.enter()
	h.watch(w)
	w.log.add(e)
	if _, _, err := w.client.Adopt(ctx, t.text); err == nil {
		w.wrong(fmt.Errorf("%s: a ticket was adopted twice", t.name))
	}
	if w.plan.is(histRW) {
		w.rwStay(h)
	} else {
		w.section(h, 1)
	}
	h.unlock(w)
	h.finish(w)
}

// A ticket in Redis is in doubt until its Export has returned it: an Export that was left by its caller is undone.
func TestHistoryCheckerDoubtsTicketsWithoutExport(t *testing.T) {
	t.Parallel()
	log := newHistLog()
	c, err := rlock.New(histRedis{Client: redistest.Dial(t, redistest.Shared(t)), log: log}, rlock.Options{})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	name := redistest.Name(t)
	ctx, _, err := c.Mutex(name).Lock(t.Context())
	require.NoError(t, err)
	text, err := rlock.Export(ctx)
	require.NoError(t, err)
	ticket := workPlan{}.ticketOwner(text)
	look := histEntry{Kind: histLook, Name: name, Owner: ticket, Seen: ticket + "=1"}
	export := histEntry{Kind: histExport, Name: name, Owner: rlock.Owner(ctx), Ticket: ticket, Return: 1}
	left, returned := histMerge(log.report(), histReport{Entries: []histEntry{look}})[0], histMerge(log.report(), histReport{Entries: []histEntry{look, export}})[0]
	require.True(t, left.Unsure)
	require.Equal(t, ticket+"=1?", left.Seen)
	require.False(t, returned.Unsure)
	require.Equal(t, look.Seen, returned.Seen)
}

// parseTicketScript is parseHistScript for the two scripts of tickets.
func parseTicketScript(names, args []string) (c histScript, ok bool) {
	if len(args) != 5 {
		return c, false
	}
	isTicket := func(field string) bool { return strings.Contains(field, ":000") }
	owner := histKey{names[0], args[0]}
	switch {
	case isTicket(args[1]): // owner, ticket, the ticket's lease
		return histScript{what: "release", keys: []histKey{owner}, from: owner, ends: true, left: histKey{names[0], args[1]}}, true
	case isTicket(args[2]): // owner, lease, ticket
		ms, err := strconv.Atoi(args[1])
		c = histScript{what: "acquire", keys: []histKey{owner}, lease: time.Duration(ms) * time.Millisecond, first: true}
		if len(names) == 2 {
			c.fence = names[1]
		}
		return c, err == nil
	}
	return c, false
}

// Histories of holds that receive messages: asked holds and kept locks.

// spoken draws whether a Lock uses WithAsked, and whether its lock may be kept after the unlock.
func (w *histWorker) spoken() (o []rlock.Option, keeps bool) {
	if !w.plan.Spoken {
		return nil, false
	}
	if w.chance(40) {
		o = append(o, rlock.WithAsked())
	}
	if keeps = w.chance(40); keeps {
		o = append(o, rlock.WithLinger(time.Millisecond+w.duration(w.plan.Watchdog).Truncate(time.Millisecond)))
	}
	return o, keeps
}

// isAsked reports whether an asked section has a waiter, and counts it.
func (w *histWorker) isAsked(h *histHold) bool {
	select {
	case <-rlock.Asked(h.ctx):
		w.did(asked)
		return true
	default: // no waiter, or a Lock without WithAsked
		return false
	}
}

// spokenFaults are the faults of messages to holders, with the ranges of their durations.
func spokenFaults(watchdog time.Duration) map[string]mixRange {
	const ms = time.Millisecond
	return map[string]mixRange{
		"cut ear":          {200 * ms, 800 * ms},
		"deaf ear":         {200 * ms, watchdog * 3 / 2},
		"late ear":         {100 * ms, watchdog * 3 / 2},
		"doubled ear":      {200 * ms, 800 * ms},
		"lost speech":      {200 * ms, 800 * ms},
		"late speech":      {100 * ms, watchdog * 3 / 2},
		"unknown speech":   {200 * ms, 800 * ms},
		"forbidden speech": {200 * ms, 800 * ms},
	}
}
