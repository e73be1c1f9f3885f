package pubsub

import (
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/require"
)

// placeStep makes the waiter with the turn, or its claimant, take the process's place.
func (m *model) placeStep() string {
	w := m.turn
	if w == nil {
		return "nobody to take the place"
	}
	free := (m.each || len(m.placed) == 0 || m.placed[w]) && m.topic().sub != nil
	require.Equal(m.t, free && m.topic().sub.live(), w.Listens(), "%v", m.steps)
	if !m.claimed && !w.Listens() {
		return "would not hear of a grant"
	}
	require.Equal(m.t, free, w.TakePlace(fmt.Sprintf("%p", w)), "%v", m.steps)
	if free {
		m.placed[w] = true
	}
	return "take the place"
}

// grantStep sends a message to this process alone.
func (m *model) grantStep() string {
	t := m.topic()
	if t == nil || !subOf(t).confirmed {
		return "told nobody"
	}
	tell := func(format string, args ...any) {
		m.hub.message(Channel{Name: m.ch.Name + ":" + me}, fmt.Sprintf(format, args...))
	}
	var w *Waiter
	for _, x := range m.queue {
		if m.placed[x] && (w == nil || m.rnd.IntN(2) == 0) {
			w = x
		}
	}
	switch m.rnd.IntN(5) {
	case 0:
		if len(m.queue) > 0 {
			if x := m.queue[m.rnd.IntN(len(m.queue))]; !m.placed[x] {
				tell("%p 2000 1 -", x)
				return "given to one without the place"
			}
		}
		return "given to nobody"
	case 1:
		tell("%s", []string{"? 0", "", "\x00 2000 0 -1"}[m.rnd.IntN(3)])
		if w != nil && !m.each {
			m.event()
		}
		return "look"
	case 3:
		if w != nil {
			m.event()
			tell("? 0 %p", w)
			require.True(m.t, w.isDue() || t.current == w || w.err != nil, "%v", m.steps)
		}
		return "one is to look"
	case 2:
		before := t.timerAt
		tell("? 5")
		require.True(m.t, w == nil || m.each || !t.timerAt.IsZero() && (before.IsZero() || !t.timerAt.After(before)), "%v", m.steps)
		return "look later"
	default:
		if w == nil {
			return "given to nobody"
		}
		m.clock++
		if w.isDue() {
			m.event()
		}
		tell("%p 2000 0 7", w)
		m.moved("given", w)
		delete(m.placed, w)
		if w == m.turn {
			m.given = m.clock
			return "given in its turn"
		}
		m.local = m.clock
		require.Equal(m.t, Grant{Lease: 2 * time.Second, Token: 7}, said(w))
		m.out(w)
		return "given"
	}
}
