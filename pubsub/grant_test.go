package pubsub

import (
	"io"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// grants returns the channel for messages to this process alone.
func grants(ch Channel) Channel { return Channel{ch.Name + ":" + me, ch.Sharded} }

// placed returns a queue of n waiters; the first has the process's place, with that owner.
func (d *manualHub) placed(owner string, n int) []*Waiter {
	d.t.Helper()
	ws := d.line(n)
	d.hub.conns.message(d.ch, "0")
	d.turn(ws, 0)
	require.True(d.t, ws[0].Listens())
	require.True(d.t, ws[0].TakePlace(owner))
	ws[0].Held(time.Hour, true)
	d.turn(ws, -1)
	return ws
}

// asking is placed with the first waiter in its turn.
func (d *manualHub) asking(owner string, n int) []*Waiter {
	d.t.Helper()
	ws := d.placed(owner, n)
	d.hub.conns.message(d.ch, "0")
	d.turn(ws, 0)
	return ws
}

// requireGiven checks that w got the lock by a grant from another process, and that no waiter here asks.
func (d *manualHub) requireGiven(w *Waiter, want Grant, others ...*Waiter) {
	d.t.Helper()
	requireGranted(d.t, w)
	<-w.turn
	require.Equal(d.t, want, said(w))
	d.turn(others, -1)
	require.Nil(d.t, w.place)
}

// said returns the waiter's grant as the message gave it.
func said(w *Waiter) Grant {
	g := *w.Given()
	g.Crossed = false
	return g
}

func (d *manualHub) told(text string) { d.hub.conns.message(grants(d.ch), text) }
func (d *manualHub) outsidersTold()   { d.hub.conns.message(d.ch, "00") }

var aGrant = Grant{Lease: 2 * time.Second, Token: 7}

const aGrantTo = "o 2000 0 7"

// A grant is only for the owner it names, and what the process is told only for a waiter with a place.
func TestGrantToAnotherOwner(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.line(2)
	d.told(aGrantTo)
	d.told("? 0")
	d.turn(ws, -1)
	leave(ws[1], ws[0])
	d.obey()

	ws = d.placed("o", 2)
	d.told("older 2000 0 7")
	d.turn(ws, -1)
	d.told(aGrantTo)
	d.requireGiven(ws[0], aGrant, ws[1])
	d.told(aGrantTo) // again
	d.turn(ws, -1)

	d.hub.Wake(queue(d.ch))
	d.turn(ws, 1)
	require.True(t, ws[1].TakePlace("p"))
	d.told(aGrantTo)
	ws[1].Held(-1, true)
	d.turn(ws, -1)
	d.told("p 2000 0 7")
	d.requireGiven(ws[1], aGrant)
}

// A grant during its waiter's turn waits for the end of the turn, which may also get the lock.
func TestGrantInATurn(t *testing.T) {
	bubbles(t, map[string]func(d *manualHub, ws []*Waiter){
		"held": func(d *manualHub, ws []*Waiter) {
			ws[0].Held(time.Hour, true)
			d.requireGiven(ws[0], aGrant, ws[1])
		},
		"held, not known to have joined": func(d *manualHub, ws []*Waiter) {
			ws[0].Held(time.Hour, false)
			d.requireGiven(ws[0], aGrant, ws[1])
		},
		"held, after its time": func(d *manualHub, ws []*Waiter) {
			ws[0].Until = time.Now()
			ws[0].Held(time.Hour, true)
			d.requireGiven(ws[0], aGrant, ws[1])
		},
		"held, woken since": func(d *manualHub, ws []*Waiter) {
			d.hub.conns.message(d.ch, "0") // of another hold, maybe
			ws[0].Held(time.Hour, true)
			requireGranted(d.t, ws[0])
			d.turn(ws[1:], 0)
		},
		"done": func(d *manualHub, ws []*Waiter) {
			ws[0].Done(time.Hour)
			d.turn(ws, -1)
		},
		"leave": func(d *manualHub, ws []*Waiter) {
			require.Equal(d.t, Left, ws[0].Leave(), "its caller gives the lock back")
			d.turn(ws, 1)
		},
	}, func(t *testing.T, end func(d *manualHub, ws []*Waiter)) {
		d := newManualHub(t)
		ws := d.asking("o", 2)
		d.told(aGrantTo)
		d.turn(ws, -1)
		require.Empty(t, d.topic().places)
		end(d, ws)
	})
}

// A grant during a claim waits for its end, because the claimant may also have queued the waiter.
func TestGrantInAClaim(t *testing.T) {
	bubbles(t, map[string]func(d *manualHub, ws []*Waiter){
		"queued": func(d *manualHub, ws []*Waiter) {
			require.True(d.t, ws[0].Queued(time.Hour))
			d.requireGiven(ws[0], aGrant, ws[1])
		},
		"unclaimed": func(d *manualHub, ws []*Waiter) {
			require.True(d.t, ws[0].Unclaim())
			d.requireGiven(ws[0], aGrant, ws[1])
		},
		"granted by the claimant": func(d *manualHub, ws []*Waiter) {
			require.True(d.t, ws[0].Grant(time.Hour))
			requireGranted(d.t, ws[0])
			require.Nil(d.t, ws[0].Given(), "it was another hold")
			d.turn(ws[1:], -1)
		},
		"stopped": func(d *manualHub, ws []*Waiter) {
			d.hub.Stop()
			requireClosed(d.t, ws...)
			require.True(d.t, ws[0].Queued(time.Hour))
			d.requireGiven(ws[0], aGrant)
		},
		"gave up": func(d *manualHub, ws []*Waiter) {
			abandon(d.t, ws[0])
			require.False(d.t, ws[0].Queued(time.Hour))
			require.Equal(d.t, Left, ws[0].Leave(), "the claimant gives the lock back")
			d.turn(ws, 1)
		},
	}, func(t *testing.T, end func(d *manualHub, ws []*Waiter)) {
		d := newManualHub(t)
		ws := d.claimed(2)
		require.True(t, ws[0].TakePlace("o"))
		d.told(aGrantTo)
		d.turn(ws, -1)
		end(d, ws)
	})
}

// If a grant comes before a stop, the waiter has the lock, and its caller gives it back if unwanted.
func TestGrantToAStoppedWaiter(t *testing.T) {
	bubbles(t, map[string]func(d *manualHub, w *Waiter){
		"closed": func(d *manualHub, _ *Waiter) { d.hub.Stop() },
		"refused": func(d *manualHub, _ *Waiter) {
			d.hub.mu.Lock()
			d.topic().refuse(io.ErrUnexpectedEOF)
			d.hub.mu.Unlock()
		},
		"unanswered": func(d *manualHub, w *Waiter) { w.stop(io.ErrUnexpectedEOF) },
	}, func(t *testing.T, stop func(d *manualHub, w *Waiter)) {
		d := newManualHub(t)
		w := d.placed("o", 1)[0]
		stop(d, w)
		require.Len(t, w.turn, 1)
		require.Error(t, refusal(w))
		d.told(aGrantTo)
		d.requireGiven(w, aGrant)
	})
}

// '00' is for processes without a place. It is kept for a waiter that took the place and then does not get it.
func TestUnlockForOutsiders(t *testing.T) {
	bubbles(t, map[string]func(d *manualHub){
		"no place": func(d *manualHub) {
			ws := d.line(2)
			d.outsidersTold()
			d.turn(ws, 0)
			d.outsidersTold()
			ws[0].Held(-1, false)
			d.turn(ws, 0)
		},
		"place": func(d *manualHub) {
			ws := d.placed("o", 2)
			d.outsidersTold()
			d.turn(ws, -1)
			d.hub.conns.message(d.ch, "0")
			d.turn(ws, 0)
			d.outsidersTold()
			ws[0].Held(-1, true)
			d.turn(ws, -1)
			require.Same(d.t, ws[0], claimOf(d.hub, queue(d.ch)))
			d.outsidersTold()
			require.True(d.t, ws[0].Queued(-1))
			d.turn(ws, -1)
		},
		"did not join": func(d *manualHub) {
			ws := d.asking("o", 2)
			d.outsidersTold()
			ws[0].Held(-1, false)
			d.turn(ws, 0)
			ws[0].Held(-1, false)
			d.turn(ws, -1)
		},
		"left": func(d *manualHub) {
			ws := d.placed("o", 2)
			d.outsidersTold()
			ws[0].Leave()
			d.turn(ws, 1)
		},
	}, func(t *testing.T, run func(d *manualHub)) { run(newManualHub(t)) })
}

// '? <ms>' makes a waiter look after that time, or earlier if already scheduled, even if it arrives before the answer to an attempt.
func TestLook(t *testing.T) {
	const rounding = time.Millisecond
	type row struct {
		do   func(d *manualHub, w *Waiter)
		want time.Duration // until the waiter asks
	}
	bubbles(t, map[string]row{
		"earlier":        {func(d *manualHub, _ *Waiter) { d.told("? 2000") }, 2*time.Second + rounding},
		"later":          {func(d *manualHub, _ *Waiter) { d.told("? 4000000") }, time.Hour + rounding},
		"twice":          {func(d *manualHub, _ *Waiter) { d.told("? 2000"); d.told("? 3000") }, 2*time.Second + rounding},
		"twice, earlier": {func(d *manualHub, _ *Waiter) { d.told("? 2000"); d.told("? 1000") }, time.Second + rounding},
		"a turn": {func(d *manualHub, w *Waiter) {
			d.hub.conns.message(d.ch, "0")
			d.turn([]*Waiter{w}, 0)
			d.told("? 2000")
			w.Held(time.Hour, true)
		}, 2*time.Second + rounding},
		"a turn, and no expiry": {func(d *manualHub, w *Waiter) {
			d.hub.conns.message(d.ch, "0")
			d.turn([]*Waiter{w}, 0)
			d.told("? 2000")
			w.Held(-1, true)
		}, 2*time.Second + rounding},
		"before a turn": {func(d *manualHub, w *Waiter) {
			d.told("? 2000")
			d.hub.conns.message(d.ch, "0")
			d.turn([]*Waiter{w}, 0)
			w.Held(time.Minute, true) // knows better
		}, time.Minute + rounding},
		"a claim": {func(d *manualHub, w *Waiter) {
			require.Same(d.t, w, claimOf(d.hub, queue(d.ch)))
			d.told("? 2000")
			require.True(d.t, w.Queued(time.Minute))
		}, 2*time.Second + rounding},
		"no expiry": {func(d *manualHub, w *Waiter) {
			d.hub.conns.message(d.ch, "0")
			d.turn([]*Waiter{w}, 0)
			w.Held(-1, true) // the place would be gone
		}, longest + rounding},
	}, func(t *testing.T, row row) {
		d := newManualHub(t)
		w := d.placed("o", 1)[0]
		row.do(d, w)
		require.Empty(t, w.turn)
		began := time.Now()
		<-w.turn
		require.Equal(t, row.want, time.Since(began))
	})
}

// A grant for a waiter that left belongs to no waiter here. The next waiter is already awake, and takes the place.
func TestGrantToOneThatHasGone(t *testing.T) {
	bubbles(t, map[string]func(d *manualHub, w *Waiter){
		"gave up": func(d *manualHub, w *Waiter) { require.Equal(d.t, Left, w.Leave()) },
		"time is over": func(d *manualHub, w *Waiter) {
			d.hub.mu.Lock()
			w.stop(ErrExpired)
			d.hub.mu.Unlock()
			<-w.turn
			require.Equal(d.t, Left, w.Leave())
		},
	}, func(t *testing.T, leave func(d *manualHub, w *Waiter)) {
		d := newManualHub(t)
		ws := d.placed("o", 3)
		leave(d, ws[0])
		d.turn(ws, 1)
		d.told(aGrantTo)
		require.True(t, ws[1].Listens())
		require.True(t, ws[1].TakePlace("p"))
		d.told(aGrantTo)
		ws[1].Held(time.Hour, true)
		d.turn(ws, -1)
		d.told("p 2000 0 7")
		d.requireGiven(ws[1], aGrant, ws[2])
	})
}
