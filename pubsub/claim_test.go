package pubsub

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/require"
)

// claimed returns a line of n waiters, the first of them claimed.
func (d *manualHub) claimed(n int) []*Waiter {
	d.t.Helper()
	ws := d.line(n)
	require.Same(d.t, ws[0], claimOf(d.hub, queue(d.ch)))
	d.turn(ws, -1)
	return ws
}

// claimOf is Hub.Claim without the second result.
func claimOf(h *Hub, q Queue) *Waiter {
	w, _ := h.Claim(q)
	return w
}

func requireGranted(t *testing.T, w *Waiter) {
	t.Helper()
	require.Len(t, w.turn, 1, "no signal")
	granted, err := w.News()
	require.True(t, granted)
	require.NoError(t, err)
	require.Equal(t, Granted, w.Leave(), "too late to leave")
}

func TestClaimTakesTheFirstThatWaits(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	q := queue(d.ch)
	require.Nil(t, claimOf(d.hub, q), "no queue")
	a := &Waiter{}
	d.hub.Join(a, q)
	require.Nil(t, claimOf(d.hub, q), "it has the turn")
	b := &Waiter{Value: "b"}
	d.hub.Join(b, q)
	require.Nil(t, claimOf(d.hub, q), "the first has the turn")
	a.Done(-1)
	require.Same(t, b, claimOf(d.hub, q), "though the subscription does not stand yet")
	require.Equal(t, "b", b.Value)
	require.Nil(t, claimOf(d.hub, q), "claimed already")
	require.Nil(t, claimOf(d.hub, Queue{Lock: "other", Channel: d.ch}))
	require.Nil(t, claimOf(d.hub, queue(Channel{Name: d.ch.Name, Sharded: true})))
	require.False(t, d.hub.JoinFirst(&Waiter{}, q), "somebody waits")
	require.True(t, b.Grant(-1))
	requireGranted(t, b)
	d.obey()
	require.Zero(t, d.hub.Len())
}

// A line is handed through without a turn: nobody asks.
func TestGrants(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.line(4)
	for i, w := range ws {
		require.Same(t, w, claimOf(d.hub, queue(d.ch)))
		require.True(t, w.Grant(-1))
		requireGranted(t, w)
		<-w.turn
		d.turn(ws[i+1:], -1)
	}
	require.Nil(t, claimOf(d.hub, queue(d.ch)))
	d.obey()
	require.Zero(t, d.hub.Len())
}

// I6: news during a claim is not lost, however the claim ends.
func TestNewsDuringAClaim(t *testing.T) {
	t.Parallel()
	for name, news := range map[string]func(d *manualHub, ws []*Waiter){
		"message":   func(d *manualHub, _ []*Waiter) { d.hub.message(d.ch, "0") },
		"messages":  func(d *manualHub, _ []*Waiter) { d.hub.message(d.ch, "0"); d.hub.message(d.ch, "?") },
		"timer":     func(d *manualHub, _ []*Waiter) { d.topic().expired() },
		"wake":      func(d *manualHub, _ []*Waiter) { d.hub.Wake(queue(d.ch)) },
		"confirmed": func(d *manualHub, _ []*Waiter) { d.confirm("subscribe") },
	} {
		for end, row := range map[string]struct {
			do   func(w *Waiter)
			turn int // whose it is then
		}{
			"granted":                {func(w *Waiter) { require.True(t, w.Grant(-1)); requireGranted(t, w); <-w.turn }, 1},
			"queued":                 {func(w *Waiter) { require.True(t, w.Queued(-1)) }, 0},
			"unclaimed":              {func(w *Waiter) { require.True(t, w.Unclaim()) }, 0},
			"gave up, not granted":   {func(w *Waiter) { abandon(t, w); require.False(t, w.Grant(-1)); require.Equal(t, Left, w.Leave()) }, 1},
			"gave up, not queued":    {func(w *Waiter) { abandon(t, w); require.False(t, w.Queued(-1)); require.Equal(t, Left, w.Leave()) }, 1},
			"gave up, not unclaimed": {func(w *Waiter) { abandon(t, w); require.False(t, w.Unclaim()); require.Equal(t, Left, w.Leave()) }, 1},
		} {
			t.Run(name+"/"+end, func(t *testing.T) {
				d := newManualHub(t)
				ws := d.claimed(3)
				news(d, ws)
				d.turn(ws, -1) // I7
				row.do(ws[0])
				d.turn(ws, row.turn)
				require.Same(t, ws[row.turn], d.topic().current)
				ws[row.turn].Held(-1, false)
				d.turn(ws, -1)
			})
		}
	}
}

func abandon(t *testing.T, w *Waiter) {
	t.Helper()
	require.Equal(t, Claimed, w.Leave())
	require.Equal(t, Claimed, w.Leave(), "still")
}

// Without news the end of a claim leaves everybody asleep: the claimant's next action is published.
func TestClaimEnds(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.claimed(3)
	require.True(t, ws[0].Queued(-1))
	d.turn(ws, -1)
	require.Same(t, ws[0], claimOf(d.hub, queue(d.ch)), "it keeps its place")
	require.True(t, ws[0].Unclaim())
	d.turn(ws, 0)
	ws[0].Held(-1, false)
	d.turn(ws, -1)
	require.Same(t, ws[0], claimOf(d.hub, queue(d.ch)))
	require.True(t, ws[0].Queued(-1))
	require.Equal(t, Left, ws[0].Leave())
	d.turn(ws, -1)
	require.Same(t, ws[1], claimOf(d.hub, queue(d.ch)))
	require.Equal(t, Left, ws[2].Leave(), "behind a claim")
	require.True(t, ws[1].Grant(-1))
	require.Equal(t, Granted, ws[1].Leave())
	d.obey()
	require.Zero(t, d.hub.Len())
}

// A waiter that gave up keeps the place of a turn until its claimant leaves for it (I10). Then the next one wakes:
// the outcome of the claim may be an unlock known only to the claimant.
func TestClaimedWaiterGivesUp(t *testing.T) {
	t.Parallel()
	for _, end := range []func(w *Waiter) bool{
		func(w *Waiter) bool { return w.Grant(time.Hour) },
		func(w *Waiter) bool { return w.Queued(-1) },
		func(w *Waiter) bool { return w.Unclaim() },
	} {
		d := newManualHub(t)
		ws := d.claimed(3)
		abandon(t, ws[0])
		require.False(t, end(ws[0]))
		require.Nil(t, claimOf(d.hub, queue(d.ch)))
		d.hub.message(d.ch, "0")
		d.turn(ws, -1)
		require.Equal(t, Left, ws[0].Leave())
		d.turn(ws, 1)
		ws[1].Leave()
		d.turn(ws, 2)
		ws[2].Leave()
		d.obey()
		require.Zero(t, d.hub.Len())
	}
}

func TestTimerAfterAGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newManualHub(t)
		ws := d.claimed(3)
		require.True(t, ws[0].Grant(time.Minute))
		<-ws[0].turn
		began := time.Now()
		<-ws[1].turn
		require.Equal(t, time.Minute+time.Millisecond, time.Since(began), "the lease of the one that was granted")
		ws[1].Held(time.Minute, false)
		require.Same(t, ws[1], claimOf(d.hub, queue(d.ch)))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		d.turn(ws, -1)
		require.True(t, ws[1].Grant(time.Hour))
		<-ws[1].turn
		began = time.Now()
		<-ws[2].turn
		require.Equal(t, time.Hour+time.Millisecond, time.Since(began), "no longer that of the holder before")
		ws[2].Leave()
		d.obey()
		require.Zero(t, d.hub.Len())
	})
}

func TestRefusalDuringAClaim(t *testing.T) {
	t.Parallel()
	no := serverError(t, "NOPERM no such luck")
	for _, end := range []string{"grant", "queued", "unclaim", "give up"} {
		d := newManualHub(t)
		a, b, late := &Waiter{}, &Waiter{}, &Waiter{}
		d.hub.Join(a, queue(d.ch))
		d.hub.Join(b, queue(d.ch))
		a.Held(-1, false)
		require.Equal(t, subscribing, d.take())
		require.Same(t, a, claimOf(d.hub, queue(d.ch)))
		d.refused(no)
		require.Empty(t, a.turn, "it may still get the lock")
		require.Len(t, b.turn, 1)
		d.hub.Join(late, queue(d.ch))
		b.Leave()
		switch end {
		case "grant":
			require.True(t, a.Grant(-1))
			requireGranted(t, a)
			d.obey() // for the one that joined since
		case "queued", "unclaim":
			require.True(t, map[string]func() bool{"queued": func() bool { return a.Queued(-1) }, "unclaim": a.Unclaim}[end]())
			require.Len(t, a.turn, 1)
			require.ErrorIs(t, refusal(a), no)
			require.Equal(t, Left, a.Leave())
		case "give up":
			abandon(t, a)
			require.False(t, a.Unclaim())
			a.Leave()
		}
		require.Len(t, late.turn, 1, end)
		<-late.turn
		late.Leave()
		d.obey()
		require.Zero(t, d.hub.Len())
	}
}

// A stopped waiter is not claimed; one that joined behind it is.
func TestClaimPassesByTheRefused(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	a, b := &Waiter{}, &Waiter{}
	d.hub.Join(a, queue(d.ch))
	a.Held(-1, false)
	require.Equal(t, subscribing, d.take())
	d.refused(serverError(t, "NOPERM no such luck"))
	require.Nil(t, claimOf(d.hub, queue(d.ch)))
	d.hub.Join(b, queue(d.ch))
	require.Same(t, b, claimOf(d.hub, queue(d.ch)))
	require.Equal(t, Left, a.Leave())
	d.turn([]*Waiter{b}, -1)
	require.True(t, b.Queued(-1))
	d.turn([]*Waiter{b}, 0) // passed on by a
	b.Leave()
	d.obey()
	require.Zero(t, d.hub.Len())
}

func TestClaimsOfSeveralQueues(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.claimed(2)
	q := Queue{Lock: "{x}", Channel: d.ch} // has the same channel
	a, b := &Waiter{}, &Waiter{}
	require.True(t, d.hub.Join(a, q))
	d.hub.Join(b, q)
	a.Held(-1, false)
	d.turn([]*Waiter{a}, 0) // the subscription is live
	a.Held(-1, false)
	require.Same(t, a, claimOf(d.hub, q))
	d.hub.message(d.ch, "0")
	d.turn([]*Waiter{ws[0], ws[1], a, b}, -1)
	require.True(t, a.Grant(-1))
	<-a.turn
	d.turn([]*Waiter{ws[0], ws[1], b}, 2)
	require.True(t, ws[0].Queued(-1))
	d.turn(ws, 0)
	b.Leave()
	ws[0].Leave()
	ws[1].Leave()
	d.obey()
	require.Zero(t, d.hub.Len())
}

func TestClaimAndClose(t *testing.T) {
	t.Parallel()
	for _, end := range []func(w *Waiter){
		func(w *Waiter) { require.True(t, w.Grant(time.Hour)); requireGranted(t, w) },
		func(w *Waiter) { require.True(t, w.Queued(-1)); require.Equal(t, Left, w.Leave()) },
		func(w *Waiter) { require.True(t, w.Unclaim()); require.Equal(t, Left, w.Leave()) },
		func(w *Waiter) { abandon(t, w); require.False(t, w.Grant(time.Hour)); w.Leave() },
		func(w *Waiter) { abandon(t, w); require.False(t, w.Unclaim()); w.Leave() },
	} {
		d := newManualHub(t)
		ws := d.claimed(2)
		topic := d.topic()
		d.hub.Close()
		d.hub.Wake(d.q())
		topic.expired()
		require.Len(t, ws[0].turn, 1, "signalled, although it is claimed")
		require.ErrorIs(t, refusal(ws[0]), ErrClosed)
		requireClosed(t, ws[1])
		end(ws[0])
		require.Nil(t, claimOf(d.hub, queue(d.ch)))
		require.Zero(t, topic.timerAt, "no timer starts")
		ws[1].Leave()
	}
}

// claimStep is a step of the model for claims.
func (m *model) claimStep() string {
	if !m.claimed && m.rnd.IntN(4) == 0 {
		return m.passStep()
	}
	if !m.claimed {
		m.local = 0
		if m.each || m.rnd.IntN(4) == 0 {
			if !m.each && m.rnd.IntN(2) == 0 {
				m.hub.GiveWay(m.q(), time.Duration(m.rnd.IntN(2)))
				if t := m.topic(); t != nil && t.own && m.rnd.IntN(2) == 0 {
					m.event()
					m.ended, m.heard = m.clock, m.clock
					m.hub.message(m.ch, "0")
				}
				return "gives way"
			}
			m.hub.Ending(m.q())
			return "ending"
		}
		w := claimOf(m.hub, m.q())
		if w == nil {
			for _, x := range m.queue {
				require.True(m.t, m.turn != nil || x.err != nil, "not claimed: %v", m.steps)
			}
			return "nobody to claim"
		}
		require.Nil(m.t, m.turn, "claimed past a turn: %v", m.steps)
		m.moved("Claim", w)
		m.turn, m.joined, m.claimed, m.gave, m.given = w, false, true, false, 0
		m.clock++
		m.claimAt = m.clock
		return "claim"
	}
	switch m.rnd.IntN(4) {
	case 0:
		m.gave = true
		require.Equal(m.t, Claimed, m.turn.Leave())
		m.moved("Leave", m.turn)
		return "claimed one gives up"
	case 1:
		w := m.turn
		ttl := m.got(m.claimAt)
		granted := w.Grant(ttl)
		m.moved("Grant", w)
		require.Equal(m.t, !m.gave, granted)
		if granted {
			require.Nil(m.t, w.Given(), "it is another hold: %v", m.steps)
			m.claimed = false
			m.out(w)
			return "grant"
		}
		m.claimed, m.local = false, 0
		m.leaveInTurn()
		return "grant of one that gave up"
	case 2:
		m.endClaim("Queued", func(w *Waiter) bool { return w.Queued([]time.Duration{-1, time.Hour}[m.rnd.IntN(2)]) })
		return "queued"
	default:
		m.unclaim()
		return "unclaim"
	}
}

// passStep is the end of a hold that is passed on to the next waiter.
func (m *model) passStep() string {
	var next *Waiter
	if i := slices.IndexFunc(m.queue, func(w *Waiter) bool { return w.err == nil }); i >= 0 {
		next = m.queue[i]
		next.Value = &taker{can: m.rnd.IntN(4) > 0}
	}
	known := m.topic() != nil && !m.topic().localHold.IsZero()
	can := next != nil && known && m.turn == nil && !m.placed[next] && next.Value.(*taker).can
	require.Equal(m.t, can, m.hub.Pass(m.q(), m, time.Hour), "%v", m.steps)
	if !can {
		return "not passed on"
	}
	m.clock++
	m.began, m.local = m.clock, m.clock
	m.moved("Pass", next)
	m.out(next)
	return "passed on"
}

// taker says whether it can take a lock, and records from whom it did.
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

// The lock goes to the first waiter, if that can have it and nobody has the turn. A waiter with the process's place
// cannot: an attempt must take it out of Redis's queue.
func TestPass(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		prepare func(d *manualHub, ws []*Waiter)
		placed  bool
		unknown bool // that this process has the lock
		to      int  // -1: it is not passed on
		place   int  // who has it then; -1: nobody
	}{
		"asleep":              {to: 0, place: -1},
		"the first one stops": {prepare: func(_ *manualHub, ws []*Waiter) { ws[0].stop(ErrExpired) }, to: 1, place: -1},
		"cannot":              {prepare: func(_ *manualHub, ws []*Waiter) { ws[0].Value.(*taker).can = false }, to: -1, place: -1},
		"in its turn": {prepare: func(d *manualHub, ws []*Waiter) {
			d.hub.message(d.ch, "0")
			d.turn(ws, 0)
		}, to: -1, place: -1},
		"not known to be held here":     {unknown: true, to: -1, place: -1},
		"has the place":                 {placed: true, to: -1, place: 0},
		"behind one that has the place": {placed: true, prepare: func(_ *manualHub, ws []*Waiter) { ws[0].stop(ErrExpired) }, to: 1, place: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
}

// Outsiders are listeners that got an unlock message within the last second.
func TestPassBesideOutsiders(t *testing.T) {
	t.Parallel()
	still(t, func(t *testing.T) {
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
				d.topic().outside = time.Now()
				d.hub.mu.Unlock()
			}
			time.Sleep(row.after)
			require.False(t, d.hub.Pass(d.q(), d, time.Hour))
			require.Equal(t, row.outsiders, k.outsiders)
		}
	})
}

func (m *model) unclaim() {
	if m.given == 0 {
		m.event()
	}
	m.endClaim("Unclaim", (*Waiter).Unclaim)
}

func (m *model) endClaim(name string, end func(w *Waiter) bool) {
	w := m.turn
	m.claimed = false
	require.Equal(m.t, !m.gave, end(w))
	m.moved(name, w)
	if m.gave {
		m.leaveInTurn()
		return
	}
	m.turnEnded(w)
}

func (m *model) leaveInTurn() {
	w := m.turn
	m.turn, m.given = nil, 0
	m.drop(w)
	m.event()
	require.Equal(m.t, Left, w.Leave())
	m.moved("Leave", w)
}

// turnEnded is for a turn or a claim that ended without the lock, unless another process has given it.
func (m *model) turnEnded(w *Waiter) {
	m.turn = nil
	if m.given == 0 {
		require.Equal(m.t, unclaimed, w.claim, "%v", m.steps)
		return
	}
	if m.local = m.given; m.given < m.ended { // news that came since
		m.local = 0
	}
	require.NotNil(m.t, w.Given())
	m.out(w)
}

// out is for a waiter that learned that it has the lock, and is out of the queue.
func (m *model) out(w *Waiter) {
	if m.turn == w {
		m.turn = nil
	}
	if m.turn == nil { // otherwise the one with the turn may still have been given the lock before
		m.given = 0
	}
	require.Len(m.t, w.turn, 1, "no signal: %v", m.steps)
	<-w.turn
	granted, _ := w.News()
	require.True(m.t, granted)
	require.Equal(m.t, Granted, w.Leave())
	m.moved("Leave", w)
	delete(m.states.now, w)
	m.drop(w)
}

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

// grantStep is a message to this process alone.
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
		tell("? 0")
		if w != nil && !m.each {
			m.event()
		}
		return "look"
	case 3:
		if w != nil {
			m.event()
			tell("? 0 %p", w)
			require.True(m.t, w.due || t.current == w || w.err != nil, "%v", m.steps)
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
		if w.due {
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

// A claim reports whether listeners out of line lately got an unlock message.
func TestClaimBesideOutsiders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newManualHub(t)
		_, outsiders := d.hub.Claim(d.q())
		require.False(t, outsiders, "no queue")
		ws := d.line(1)
		claims := func(want bool) {
			t.Helper()
			w, outsiders := d.hub.Claim(d.q())
			require.Same(t, ws[0], w)
			require.Equal(t, want, outsiders)
			require.True(t, w.Queued(time.Hour))
		}
		d.hub.message(d.ch, "0")
		d.turn(ws, 0)
		ws[0].Held(time.Hour, false)
		claims(false)
		d.hub.message(d.ch, "00")
		d.turn(ws, 0)
		_, outsiders = d.hub.Claim(d.q())
		require.True(t, outsiders, "nobody is claimed")
		ws[0].Held(time.Hour, false)
		time.Sleep(outsidersStay - time.Millisecond)
		claims(true)
		time.Sleep(time.Millisecond)
		claims(false)
		ws[0].Leave()
		d.obey()
		d.hub.Close()
	})
}
