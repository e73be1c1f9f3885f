package pubsub

import (
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

// said returns the waiter's grant as the message gave it.
func said(w *Waiter) Grant {
	g := *w.Given()
	g.Crossed = false
	return g
}

func (d *manualHub) told(text string) { d.hub.conns.message(grants(d.ch), text) }
func (d *manualHub) outsidersTold()   { d.hub.conns.message(d.ch, "00") }

const aGrantTo = "o 2000 0 7"

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
