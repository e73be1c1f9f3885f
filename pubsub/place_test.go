package pubsub

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

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
