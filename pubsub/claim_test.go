package pubsub

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// claimed returns a queue of n waiters with the first claimed.
func (d *manualHub) claimed(n int) []*Waiter {
	d.t.Helper()
	ws := d.line(n)
	require.Same(d.t, ws[0], claimOf(d.hub, queue(d.ch)))
	d.turn(ws, -1)
	return ws
}

// claimOf is Hub.Claim without its second result.
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
	d.empties()
}

// I6: news during a claim is kept, however the claim ends.
func TestNewsDuringAClaim(t *testing.T) {
	t.Parallel()
	for name, news := range map[string]func(d *manualHub, ws []*Waiter){
		"message":   func(d *manualHub, _ []*Waiter) { d.hub.conns.message(d.ch, "0") },
		"messages":  func(d *manualHub, _ []*Waiter) { d.hub.conns.message(d.ch, "0"); d.hub.conns.message(d.ch, "?") },
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

func TestTimerAfterAGrant(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newManualHub(t)
		ws := d.claimed(3)
		require.True(t, ws[0].Grant(time.Minute))
		<-ws[0].turn
		began := time.Now()
		<-ws[1].turn
		require.Equal(t, time.Minute+time.Millisecond, time.Since(began), "the lease of the granted waiter")
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
		d.empties()
	})
}

// A refusal during a turn or a claim fails its waiter once that has ended without the lock.
func TestRefusalDuringAnAttempt(t *testing.T) {
	t.Parallel()
	no := serverError(t, "NOPERM no such luck")
	for name, row := range map[string]struct {
		claim bool
		end   func(a *Waiter)
		fails bool // otherwise it gets the lock, or leaves
	}{
		"held":     {false, func(a *Waiter) { a.Held(-1, false) }, true},
		"done":     {false, func(a *Waiter) { a.Done(-1) }, false},
		"leave":    {false, func(a *Waiter) { a.Leave() }, false},
		"granted":  {true, func(a *Waiter) { require.True(t, a.Grant(-1)); requireGranted(t, a) }, false},
		"queued":   {true, func(a *Waiter) { require.True(t, a.Queued(-1)) }, true},
		"unclaim":  {true, func(a *Waiter) { require.True(t, a.Unclaim()) }, true},
		"gives up": {true, func(a *Waiter) { abandon(t, a); require.False(t, a.Unclaim()); a.Leave() }, false},
	} {
		d := newManualHub(t)
		a := d.joins(&Waiter{}, true)
		b := d.joins(&Waiter{}, false)
		a.Held(-1, false)
		require.Equal(t, subscribing, d.take())
		if row.claim {
			require.Same(t, a, claimOf(d.hub, d.q()))
		} else {
			d.topic().expired()
			<-a.turn
		}
		d.refused(no)
		require.Empty(t, a.turn, "it may still get the lock")
		require.Len(t, b.turn, 1)
		late := &Waiter{}
		d.hub.Join(late, d.q())
		b.Leave()
		row.end(a)
		if row.fails {
			require.Len(t, a.turn, 1)
			require.ErrorIs(t, refusal(a), no)
			require.Equal(t, Left, a.Leave())
		}
		d.obey() // if that left the one that joined since alone
		require.Len(t, late.turn, 1, name)
		<-late.turn
		late.Leave()
		d.empties()
	}
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
	d.hub.conns.message(d.ch, "0")
	d.turn([]*Waiter{ws[0], ws[1], a, b}, -1)
	require.True(t, a.Grant(-1))
	<-a.turn
	d.turn([]*Waiter{ws[0], ws[1], b}, 2)
	require.True(t, ws[0].Queued(-1))
	d.turn(ws, 0)
	leave(b, ws[0], ws[1])
	d.empties()
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

// A claim reports whether listeners outside the queue recently got an unlock message.
func TestClaimBesideOutsiders(t *testing.T) {
	inBubble(t, func(t *testing.T) {
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
		d.hub.conns.message(d.ch, "0")
		d.turn(ws, 0)
		ws[0].Held(time.Hour, false)
		claims(false)
		d.hub.conns.message(d.ch, "00")
		d.turn(ws, 0)
		_, outsiders = d.hub.Claim(d.q())
		require.True(t, outsiders, "no waiter is claimed")
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
