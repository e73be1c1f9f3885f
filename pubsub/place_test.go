package pubsub

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// x and {x} are two locks on one channel. Each message reaches the right lock.
func TestPlacesOfSeveralQueues(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.placed("o", 1)
	q := Queue{Lock: "{x}", Channel: d.ch}
	a, b := &Waiter{}, &Waiter{}
	require.True(t, d.hub.Join(a, q))
	require.False(t, d.hub.Join(b, q))
	a.Held(-1, false)
	d.turn([]*Waiter{a}, 0)
	all := []*Waiter{ws[0], a, b}
	d.hub.conns.message(d.ch, "00")
	a.Held(-1, false)
	d.turn(all, 1)
	require.True(t, a.TakePlace("p"))
	a.Held(-1, true)
	d.hub.conns.message(d.ch, "00")
	d.turn(all, -1)
	d.told("p 2000 0 7")
	d.requireGiven(a, aGrant, ws[0], b)
	require.NotNil(t, ws[0].place)
	d.told(aGrantTo)
	d.requireGiven(ws[0], aGrant, b)
}

// heir accepts an inherited place or refuses it, and records the previous owner.
type heir struct {
	name string
	can  bool
	from *heir
}

func (h *heir) Inherit(from any) bool {
	if h.can {
		h.from = from.(*heir)
	}
	return h.can
}

// The place of a waiter that gives up goes to the next waiter, which sleeps on, unless it cannot have the place.
func TestPlaceIsInherited(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		prepare   func(d *manualHub, ws []*Waiter)
		can       bool
		inherited int // the waiter with the place afterwards; 0: none
		turn      int // the waiter with the turn; -1: none
	}{
		"asleep":             {can: true, inherited: 1, turn: -1},
		"cannot":             {turn: 1},
		"the next one stops": {can: true, prepare: func(_ *manualHub, ws []*Waiter) { ws[1].stop(ErrExpired) }, inherited: 2, turn: -1},
		"its time is over":   {can: true, prepare: func(_ *manualHub, ws []*Waiter) { ws[0].stop(ErrExpired) }, inherited: 1, turn: -1},
		"in its turn": {can: true, prepare: func(d *manualHub, ws []*Waiter) {
			d.hub.conns.message(d.ch, "0")
			d.turn(ws, 0)
		}, turn: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newManualHub(t)
			ws := d.placed("o", 3)
			for i, w := range ws {
				w.Value = &heir{name: string(rune('a' + i)), can: row.can}
			}
			if row.prepare != nil {
				row.prepare(d, ws)
			}
			first := ws[0].Value.(*heir)
			require.Equal(t, Left, ws[0].Leave())
			for i, w := range ws {
				if i == 0 {
					continue
				}
				if i == row.inherited {
					require.Same(t, first, w.Value.(*heir).from)
					require.Equal(t, "o", w.place.owner)
				} else {
					require.Nil(t, w.place)
				}
			}
			if row.inherited == 0 {
				d.turn(ws, row.turn)
				return
			}
			d.told(aGrantTo)
			requireGranted(t, ws[row.inherited])
		})
	}
}

// taker accepts a lock or refuses it, and records the previous owner.
type taker struct {
	can       bool
	by        any
	outsiders bool
}

func (k *taker) Take(from any, outsiders bool) bool {
	k.outsiders = outsiders
	if k.can {
		k.by = from
	}
	return k.can
}

// The lock passes to the first waiter if that can take it and no waiter has the turn. A waiter with the process's place cannot: only an
// attempt takes it out of Redis's queue.
func TestPass(t *testing.T) {
	type row struct {
		prepare func(d *manualHub, ws []*Waiter)
		placed  bool
		unknown bool // that this process has the lock
		to      int  // -1: it is not passed on
		place   int  // the waiter with the place afterwards; -1: none
	}
	bubbles(t, map[string]row{
		"asleep":              {to: 0, place: -1},
		"the first one stops": {prepare: func(_ *manualHub, ws []*Waiter) { ws[0].stop(ErrExpired) }, to: 1, place: -1},
		"cannot":              {prepare: func(_ *manualHub, ws []*Waiter) { ws[0].Value.(*taker).can = false }, to: -1, place: -1},
		"in its turn": {prepare: func(d *manualHub, ws []*Waiter) {
			d.hub.conns.message(d.ch, "0")
			d.turn(ws, 0)
		}, to: -1, place: -1},
		"not known to be held here":     {unknown: true, to: -1, place: -1},
		"has the place":                 {placed: true, to: -1, place: 0},
		"behind one that has the place": {placed: true, prepare: func(_ *manualHub, ws []*Waiter) { ws[0].stop(ErrExpired) }, to: 1, place: 0},
	}, func(t *testing.T, row row) {
		d := newManualHub(t)
		var ws []*Waiter
		if row.placed {
			ws = d.placed("o", 3)
		} else {
			ws = d.line(3)
		}
		for _, w := range ws {
			w.Value = &taker{can: true}
		}
		if !row.unknown {
			d.topic().localHold = time.Now().Add(time.Hour)
		}
		if row.prepare != nil {
			row.prepare(d, ws)
		}
		require.Equal(t, row.to >= 0, d.hub.Pass(d.q(), d, time.Hour))
		for i, w := range ws {
			require.Equal(t, i == row.to, w.Value.(*taker).by == any(d), "waiter %d", i)
			require.Equal(t, i == row.place, w.place != nil, "waiter %d", i)
		}
		if row.to >= 0 {
			requireGranted(t, ws[row.to])
			require.False(t, d.hub.Join(new(Waiter), d.q()), "the lock is taken here")
		}
	})
}

// Outsiders are listeners that got an unlock message within the last second.
func TestPassBesideOutsiders(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newManualHub(t)
		k := new(taker)
		ws := d.line(2)
		ws[0].Value = k
		d.topic().localHold = time.Now().Add(time.Hour)
		for _, row := range []struct {
			after     time.Duration
			outsiders bool
		}{{0, false}, {time.Millisecond, true}, {time.Second, false}} {
			if row.outsiders {
				d.hub.mu.Lock()
				d.topic().courtesy.outsideTold = time.Now()
				d.hub.mu.Unlock()
			}
			time.Sleep(row.after)
			require.False(t, d.hub.Pass(d.q(), d, time.Hour))
			require.Equal(t, row.outsiders, k.outsiders)
		}
	})
}
