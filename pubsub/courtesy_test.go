package pubsub

import (
	"io"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/require"
)

const (
	aRun   = 100 * time.Millisecond
	moment = 10*time.Millisecond + time.Millisecond // added by timers, because Redis rounds times down
	step   = (moment - time.Millisecond) / steps    // for each process that comes before
)

// polite runs f with a queue of two waiters in a process whose unlocks notify all, or which has a place if owner is not empty.
func polite(t *testing.T, owner string, f func(t *testing.T, d *manualHub, ws []*Waiter)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		d := newManualHub(t)
		d.hub.Aside = moment - time.Millisecond
		ws := d.line(2)
		if owner != "" {
			d.hub.conns.message(d.ch, "0")
			d.turn(ws, 0)
			require.True(t, ws[0].TakePlace(owner))
			ws[0].Held(time.Hour, true)
		}
		f(t, d, ws)
	})
}

// unlock unlocks in this process and notifies all.
func (d *manualHub) unlock(run time.Duration) {
	d.hub.EndingForAll(queue(d.ch), run)
	d.hub.conns.message(d.ch, "0")
}

// asksIn checks that a waiter gets its turn after d, and ends it.
func asksIn(t *testing.T, w *Waiter, want time.Duration) {
	t.Helper()
	began := time.Now()
	<-w.turn
	require.Equal(t, want, time.Since(began))
	w.Held(time.Hour, w.place != nil)
}

// At the end of a run the first waiter lets outsiders ask first: for a moment, or until a message from one of them.
func TestOthersGoFirst(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		do   func(d *manualHub, ws []*Waiter)
		want time.Duration
	}{
		"the only unlock of the run": {func(d *manualHub, _ []*Waiter) { d.unlock(0) }, moment},
		"the first of a run":         {func(d *manualHub, _ []*Waiter) { d.unlock(aRun) }, 0},
		"the run is not over": {func(d *manualHub, ws []*Waiter) {
			d.unlock(aRun)
			asksIn(d.t, ws[0], 0)
			time.Sleep(aRun - time.Nanosecond)
			d.unlock(aRun)
		}, 0},
		"the run is over": {func(d *manualHub, ws []*Waiter) {
			d.unlock(aRun)
			asksIn(d.t, ws[0], 0)
			time.Sleep(aRun)
			d.unlock(aRun)
		}, moment},
		"another had the lock meanwhile": {func(d *manualHub, ws []*Waiter) {
			d.unlock(aRun)
			asksIn(d.t, ws[0], 0)
			time.Sleep(aRun)
			d.hub.conns.message(d.ch, "0")
			asksIn(d.t, ws[0], 0)
			d.unlock(aRun)
		}, 0},
		"another has come and gone": {func(d *manualHub, _ []*Waiter) {
			d.unlock(0)
			time.Sleep(moment / 2)
			d.hub.conns.message(d.ch, "0")
		}, 0},
		"another's, before": {func(d *manualHub, _ []*Waiter) { d.hub.conns.message(d.ch, "0") }, 0},
		"nobody else was told": {func(d *manualHub, _ []*Waiter) {
			d.unlock(0)
			d.hub.Alone(queue(d.ch))
		}, 0},
		"nobody else was told, says the answer first": {func(d *manualHub, _ []*Waiter) {
			d.hub.EndingForAll(queue(d.ch), 0)
			d.hub.Alone(queue(d.ch))
		}, 0},
		"the subscription is lost": {func(d *manualHub, _ []*Waiter) {
			d.unlock(0)
			d.link.down(io.EOF, false)
			d.obey()
		}, 0},
		"the subscription was lost": {func(d *manualHub, ws []*Waiter) {
			d.hub.EndingForAll(queue(d.ch), 0)
			d.link.down(io.EOF, false)
			d.obey()
			asksIn(d.t, ws[0], 0)
			d.hub.conns.message(d.ch, "0")
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			polite(t, "", func(t *testing.T, d *manualHub, ws []*Waiter) {
				row.do(d, ws)
				asksIn(t, ws[0], row.want)
				d.turn(ws, -1)
			})
		})
	}
}

// If no outsider came, the next courtesy is some time later. If one came, every run ends with a courtesy.
func TestCourtesyInVain(t *testing.T) {
	t.Parallel()
	polite(t, "", func(t *testing.T, d *manualHub, ws []*Waiter) {
		for range 5 {
			gave := time.Now()
			d.unlock(0)
			asksIn(t, ws[0], moment)
			d.unlock(0)
			asksIn(t, ws[0], 0)
			time.Sleep(time.Until(gave.Add(again)) - time.Nanosecond)
			d.unlock(0)
			asksIn(t, ws[0], 0)
			time.Sleep(time.Nanosecond)
		}
		for range 5 {
			d.unlock(0)
			asksIn(t, ws[0], moment)
			d.hub.conns.message(d.ch, "0")
			asksIn(t, ws[0], 0)
		}
	})
}

// A waiter that leaves during the courtesy leaves the remaining delay to the next. A waiter that joins an empty queue then asks at once.
func TestLeavingInTheMoment(t *testing.T) {
	t.Parallel()
	polite(t, "", func(t *testing.T, d *manualHub, ws []*Waiter) {
		d.unlock(0)
		time.Sleep(moment / 2)
		require.Equal(t, Left, ws[0].Leave())
		asksIn(t, ws[1], moment-moment/2)
		d.hub.conns.message(d.ch, "0")
		asksIn(t, ws[1], 0)
		d.unlock(0)
		require.Equal(t, Left, ws[1].Leave())
		late := d.joins(&Waiter{}, true)
		late.Leave()
		d.empties()
	})
}

// A message before a claim, or during an attempt, is handled right after it: it may announce a later unlock. The message of the claimant's
// own release arrives before its reply.
func TestCourtesyInATurn(t *testing.T) {
	t.Parallel()
	polite(t, "", func(t *testing.T, d *manualHub, ws []*Waiter) {
		d.hub.conns.message(d.ch, "0")
		<-ws[0].turn
		d.unlock(0)
		ws[0].Held(time.Hour, false)
		asksIn(t, ws[0], 0)
		d.unlock(0)
		require.Same(t, ws[0], claimOf(d.hub, queue(d.ch)))
		require.True(t, ws[0].Queued(time.Hour))
		asksIn(t, ws[0], 0)
		d.hub.conns.message(d.ch, "00") // a turn of this side
		asksIn(t, ws[0], 0)

		d.hub.conns.message(d.ch, "0")
		asksIn(t, ws[0], 0)
		require.Same(t, ws[0], claimOf(d.hub, queue(d.ch)))
		require.True(t, ws[0].TakePlace("o"))
		d.told("? 0")
		d.hub.conns.message(d.ch, "00")
		require.True(t, ws[0].Queued(time.Hour))
		asksIn(t, ws[0], moment)
	})
}

// The head of the queue in Redis lets outsiders go first. If none came, there is no courtesy for some time, until an outsider's '0'.
func TestOutsidersGoFirst(t *testing.T) {
	t.Parallel()
	polite(t, "o", func(t *testing.T, d *manualHub, ws []*Waiter) {
		outsiders := func(want time.Duration) {
			t.Helper()
			d.told("? 0")
			d.hub.conns.message(d.ch, "00")
			asksIn(t, ws[0], want)
		}
		time.Sleep(outsidersStay) // the last of them has gone
		for range 4 {
			gave := time.Now()
			outsiders(moment)
			outsiders(0)
			time.Sleep(time.Until(gave.Add(again)) - time.Nanosecond)
			outsiders(0)
			time.Sleep(time.Nanosecond)
		}
		for range 4 {
			outsiders(moment)
			d.hub.conns.message(d.ch, "0")
			asksIn(t, ws[0], 0)
		}
		d.hub.conns.message(d.ch, "00") // another process is the first
		outsiders(moment)               // one of them has just come
		time.Sleep(outsidersStay)
		d.hub.conns.message(d.ch, "00")
		outsiders(0)
		d.hub.conns.message(d.ch, "0")
		asksIn(t, ws[0], 0)
		d.told("? 0")
		d.hub.conns.message(d.ch, "0")
		asksIn(t, ws[0], 0)
		outsiders(0) // they have had two turns for one
		outsiders(moment)
	})
}

// After an unlock that notifies all, the first in Redis's queue asks at once, the others the later the more are before them, and at
// the end of the moment at the latest.
func TestInOrder(t *testing.T) {
	t.Parallel()
	polite(t, "o", func(t *testing.T, d *manualHub, ws []*Waiter) {
		unlocked := func(want time.Duration) {
			t.Helper()
			d.hub.conns.message(d.ch, "0")
			asksIn(t, ws[0], want)
		}
		for place, after := range map[int]time.Duration{0: 0, 1: 0, 2: step, 3: 2 * step, 1 + steps: steps * step, 1000: steps * step} {
			ws[0].Saw(place, "")
			if after > 0 {
				after += time.Millisecond
			}
			unlocked(after)
		}
		ws[0].Saw(3, "")
		d.hub.conns.message(d.ch, "00") // the first one's turn is over
		unlocked(step + time.Millisecond)
		d.told("? 0") // this process is the first
		d.hub.conns.message(d.ch, "00")
		unlocked(0)
	})
}

// A waiter that has little time asks at once, whatever the courtesy.
func TestNoCourtesyInAHurry(t *testing.T) {
	t.Parallel()
	for name, hurried := range map[string]func(w *Waiter, end time.Time){
		"the wait ends": func(w *Waiter, end time.Time) { w.Until = end },
		"the ctx ends":  func(w *Waiter, end time.Time) { w.Hurry = end.UnixMilli() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			polite(t, "", func(t *testing.T, d *manualHub, ws []*Waiter) {
				hurried(ws[0], time.Now().Add(2*moment))
				d.unlock(0)
				asksIn(t, ws[0], moment)
				d.hub.conns.message(d.ch, "0") // another has come
				asksIn(t, ws[0], 0)
				d.unlock(0)
				asksIn(t, ws[0], 0)
			})
		})
	}
}

// Without listeners out of line, courtesies become seldom, whatever the locks: they cost 10 ms in 8 s at most.
func TestPresence(t *testing.T) {
	var p presence
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var due []time.Duration
	for d := time.Duration(0); d < 30*time.Second; d += again {
		if p.isLikely(now.Add(d)) {
			due = append(due, d/again)
		}
	}
	require.Equal(t, []time.Duration{0, 1, 3, 7, 15, 31, 63, 95}, due)

	now = now.Add(30 * time.Second)
	p.seen(now)
	require.True(t, p.isLikely(now))
	require.True(t, p.isLikely(now.Add(stays-1)), "as long as they are likely to be there, at each unlock")
	now = now.Add(stays)
	require.True(t, p.isLikely(now), "begins anew")
	require.False(t, p.isLikely(now.Add(again-1)))
	require.True(t, p.isLikely(now.Add(again)))
}

// A waiter that comes after this process's unlock, alone, lets listeners out of line ask first, unless it has little time. If none of them
// came, the next does so a while later.
func TestYield(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newManualHub(t)
		d.hub.Aside = moment - time.Millisecond
		const long = 2*(moment-time.Millisecond) + time.Millisecond
		q := d.q()
		comes := func(want time.Duration) *Waiter {
			t.Helper()
			w := &Waiter{}
			began := time.Now()
			if !d.hub.Join(w, q) {
				<-w.turn
			}
			require.Equal(t, want, time.Since(began))
			return w
		}
		d.hub.Yield(q)
		for _, hasty := range []*Waiter{{Until: time.Now().Add(long)}, {Hurry: time.Now().Add(long).UnixMilli()}} {
			require.True(t, d.hub.Join(hasty, q))
			hasty.Done(-1)
		}
		gave := time.Now()
		comes(long).Done(-1)
		d.hub.Yield(q)
		comes(0).Done(-1)
		w := comes(0)
		w.Saw(0, "a") // they have come, but not in a courtesy
		w.Held(time.Hour, false)
		require.Equal(t, Left, w.Leave())
		d.hub.Yield(q)
		comes(0).Done(-1)
		time.Sleep(time.Until(gave.Add(again)))
		d.hub.Yield(q)
		w = comes(long)
		w.Saw(0, "a")
		w.Held(time.Hour, false)
		d.obey()
		<-w.turn
		w.Done(-1)
		d.hub.Yield(q)
		w = &Waiter{}
		require.False(t, d.hub.Join(w, q))
		d.hub.conns.message(d.ch, "0") // one has come and gone
		<-w.turn
		w.Done(-1)
		d.lapse()
		d.obey()
		d.hub.Yield(q)
		w = &Waiter{}
		require.False(t, d.hub.Join(w, q))
		second := &Waiter{}
		require.False(t, d.hub.Join(second, q))
		require.Equal(t, Left, w.Leave())
		<-second.turn // in its place
		second.Done(-1)
		d.empties()
		for n := range 1000 { // what is over is forgotten
			d.hub.Yield(Queue{Lock: strconv.Itoa(n)})
			time.Sleep(again)
		}
		require.LessOrEqual(t, len(d.hub.yields.of), 64)
	})
}

// A waiter that has let others ask first costs nothing more than that: its attempt counts, and keeps no subscription.
func TestYieldWithASubscription(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newManualHub(t)
		d.hub.Aside = moment - time.Millisecond
		next := func() *Waiter {
			w := &Waiter{}
			clear(d.hub.yields.of) // the last is long ago
			d.hub.Yield(d.q())
			require.False(t, d.hub.Join(w, d.q()))
			<-w.turn
			return w
		}
		d.line(1)[0].Done(-1)
		w := next()
		w.Held(-1, false)
		require.Empty(t, w.turn, "the attempt came when the subscription was live")
		w.Leave()
		require.Equal(t, noOp, d.take())

		time.Sleep(linger / 2)
		next().Done(-1)
		time.Sleep(linger / 2)
		synctest.Wait()
		d.unsubscribes()
	})
}
