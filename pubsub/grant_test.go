package pubsub

import (
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
)

// grants returns the channel for messages to this process alone.
func grants(ch Channel) Channel { return Channel{ch.Name + ":" + me, ch.Sharded} }

// placed returns a line of n waiters, the first of them with the process's place, as owner.
func (d *manualHub) placed(owner string, n int) []*Waiter {
	d.t.Helper()
	ws := d.line(n)
	d.hub.message(d.ch, "0")
	d.turn(ws, 0)
	require.True(d.t, ws[0].Listens())
	require.True(d.t, ws[0].TakePlace(owner))
	ws[0].Held(time.Hour, true)
	d.turn(ws, -1)
	return ws
}

// asking is the same, but its first waiter has the turn.
func (d *manualHub) asking(owner string, n int) []*Waiter {
	d.t.Helper()
	ws := d.placed(owner, n)
	d.hub.message(d.ch, "0")
	d.turn(ws, 0)
	return ws
}

// requireGiven checks that another process has given w the lock, and that nobody else here asks.
func (d *manualHub) requireGiven(w *Waiter, want Grant, others ...*Waiter) {
	d.t.Helper()
	requireGranted(d.t, w)
	<-w.turn
	require.Equal(d.t, want, said(w))
	d.turn(others, -1)
	require.Nil(d.t, w.place)
}

// said returns the waiter's grant as the message had it.
func said(w *Waiter) Grant {
	g := *w.Given()
	g.Crossed = false
	return g
}

func (d *manualHub) told(text string) { d.hub.message(grants(d.ch), text) }

var aGrant = Grant{Lease: 2 * time.Second, Token: 7}

const aGrantTo = "o 2000 0 7"

func TestGrantsOfOtherProcesses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Grant{
		aGrantTo:    aGrant,
		"o 300 0 -": {Lease: 300 * time.Millisecond, Token: -1},
		"o 1 0 0":   {Lease: time.Millisecond},
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			still(t, func(t *testing.T) {
				d := newManualHub(t)
				ws := d.placed("o", 2)
				d.told(text)
				d.requireGiven(ws[0], want, ws[1])
				require.Same(t, ws[1], claimOf(d.hub, queue(d.ch)))
				require.True(t, ws[1].Grant(time.Hour))
				require.Nil(t, ws[1].Given(), "by a holder of this process")
			})
		})
	}
}

// A message that is no grant, or only looks like one, makes the waiter with a place look at the lock.
func TestUnknownMessages(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"? 0", "? -1", "? x", "? 9223372036854775808", "", "?", "o", "o 2000 0", "o 2000 0 x", "o x 0 -", "o 2000 x -", "o 2000 0 7 more",
		"o -1 0 -", "o 9223372036854775807 0 -", "o 2000 -1 -", "o 2000 three -", "o 2000 0 9223372036854775808",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			d := newManualHub(t)
			ws := d.placed("o", 2)
			d.told(text)
			d.turn(ws, 0)
			require.Nil(t, ws[0].Given())
			ws[0].Held(-1, false)
			d.told(text)
			d.turn(ws, -1)
		})
	}
}

// A grant is for the owner in it, and for nobody else.
func TestGrantToAnotherOwner(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.line(2)
	d.told(aGrantTo)
	d.turn(ws, -1)
	ws[1].Leave()
	ws[0].Leave()
	d.obey()

	ws = d.placed("o", 2)
	d.told("older 2000 0 7")
	d.turn(ws, -1)
	d.told(aGrantTo)
	d.requireGiven(ws[0], aGrant, ws[1])
	d.told(aGrantTo) // once more
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

// A grant that arrives in its waiter's turn waits for the end of the turn, which may bring the lock, too.
func TestGrantInATurn(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(d *manualHub, ws []*Waiter){
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
			d.hub.message(d.ch, "0") // of another hold, maybe
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			still(t, func(t *testing.T) {
				d := newManualHub(t)
				ws := d.asking("o", 2)
				d.told(aGrantTo)
				d.turn(ws, -1)
				require.Zero(t, d.topic().places)
				end(d, ws)
			})
		})
	}
}

// The same in a turn that came with Join, so that nobody has listened to the waiter before.
func TestGrantInTheFirstTurn(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	d.line(1)[0].Done(-1)
	w := &Waiter{}
	require.True(t, d.hub.Join(w, queue(d.ch)))
	require.True(t, w.Listens(), "the subscription lingers")
	require.True(t, w.TakePlace("o"))
	d.told(aGrantTo)
	w.Held(time.Hour, true)
	d.requireGiven(w, aGrant)
}

// A grant that arrives during a claim waits for its end: the claimant, too, may have put the waiter in the queue.
func TestGrantInAClaim(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(d *manualHub, ws []*Waiter){
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			still(t, func(t *testing.T) {
				d := newManualHub(t)
				ws := d.claimed(2)
				require.True(t, ws[0].TakePlace("o"))
				d.told(aGrantTo)
				d.turn(ws, -1)
				end(d, ws)
			})
		})
	}
}

// A waiter stopped at the same moment has the lock if the grant comes first, and its caller gives it back if it does
// not want it.
func TestGrantToAStoppedWaiter(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(d *manualHub, w *Waiter){
		"closed": func(d *manualHub, _ *Waiter) { d.hub.Stop() },
		"refused": func(d *manualHub, _ *Waiter) {
			d.hub.mu.Lock()
			d.topic().refuse(io.ErrUnexpectedEOF)
			d.hub.mu.Unlock()
		},
		"unanswered": func(d *manualHub, w *Waiter) { w.stop(io.ErrUnexpectedEOF) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newManualHub(t)
			w := d.placed("o", 1)[0]
			stop(d, w)
			require.Len(t, w.turn, 1)
			require.Error(t, refusal(w))
			d.told(aGrantTo)
			d.requireGiven(w, aGrant)
		})
	}
}

// A grant for a waiter that has gone is nobody's here. The next one has been woken, and takes the place.
func TestGrantToOneThatHasGone(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(d *manualHub, w *Waiter){
		"gave up": func(d *manualHub, w *Waiter) { require.Equal(d.t, Left, w.Leave()) },
		"time is over": func(d *manualHub, w *Waiter) {
			d.hub.mu.Lock()
			w.stop(ErrExpired)
			d.hub.mu.Unlock()
			<-w.turn
			require.Equal(d.t, Left, w.Leave())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
}

// A process has one place for a lock.
func TestOnePlace(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.placed("o", 2)
	d.hub.message(d.ch, "1")
	d.turn(ws, 0)
	require.True(t, ws[0].Listens(), "it may ask again")
	require.True(t, ws[0].TakePlace("o"))
	ws[0].Held(-1, true)
	d.turn(ws, 1)
	require.False(t, ws[1].Listens())
	require.False(t, ws[1].TakePlace("p"))
	ws[1].Held(-1, false)
	d.told(aGrantTo)
	d.requireGiven(ws[0], aGrant, ws[1])

	d.hub.Wake(queue(d.ch))
	d.turn(ws, 1)
	require.True(t, ws[1].TakePlace("p"))
	ws[1].Done(-1)
	require.Zero(t, d.topic().places)
}

// '00' is for processes without a place. It is not lost for one that has taken the place, and then does not get it.
func TestUnlockForOutsiders(t *testing.T) {
	t.Parallel()
	outsiders := func(d *manualHub) { d.hub.message(d.ch, "00") }
	t.Run("no place", func(t *testing.T) {
		t.Parallel()
		d := newManualHub(t)
		ws := d.line(2)
		outsiders(d)
		d.turn(ws, 0)
		outsiders(d)
		ws[0].Held(-1, false)
		d.turn(ws, 0)
	})
	t.Run("place", func(t *testing.T) {
		t.Parallel()
		d := newManualHub(t)
		ws := d.placed("o", 2)
		outsiders(d)
		d.turn(ws, -1)
		d.hub.message(d.ch, "0")
		d.turn(ws, 0)
		outsiders(d)
		ws[0].Held(-1, true)
		d.turn(ws, -1)
		require.Same(t, ws[0], claimOf(d.hub, queue(d.ch)))
		outsiders(d)
		require.True(t, ws[0].Queued(-1))
		d.turn(ws, -1)
	})
	t.Run("did not join", func(t *testing.T) {
		t.Parallel()
		d := newManualHub(t)
		ws := d.asking("o", 2)
		outsiders(d)
		ws[0].Held(-1, false)
		d.turn(ws, 0)
		ws[0].Held(-1, false)
		d.turn(ws, -1)
	})
	t.Run("left", func(t *testing.T) {
		t.Parallel()
		d := newManualHub(t)
		ws := d.placed("o", 2)
		outsiders(d)
		ws[0].Leave()
		d.turn(ws, 1)
	})
}

// '? <ms>' makes a waiter look at the lock then, or at an earlier time already set, even if it comes before the
// answer to an attempt.
func TestLook(t *testing.T) {
	t.Parallel()
	const rounding = time.Millisecond
	for name, row := range map[string]struct {
		do   func(d *manualHub, w *Waiter)
		want time.Duration // until the waiter asks
	}{
		"earlier":        {func(d *manualHub, _ *Waiter) { d.told("? 2000") }, 2*time.Second + rounding},
		"later":          {func(d *manualHub, _ *Waiter) { d.told("? 4000000") }, time.Hour + rounding},
		"twice":          {func(d *manualHub, _ *Waiter) { d.told("? 2000"); d.told("? 3000") }, 2*time.Second + rounding},
		"twice, earlier": {func(d *manualHub, _ *Waiter) { d.told("? 2000"); d.told("? 1000") }, time.Second + rounding},
		"a turn": {func(d *manualHub, w *Waiter) {
			d.hub.message(d.ch, "0")
			d.turn([]*Waiter{w}, 0)
			d.told("? 2000")
			w.Held(time.Hour, true)
		}, 2*time.Second + rounding},
		"a turn, and no expiry": {func(d *manualHub, w *Waiter) {
			d.hub.message(d.ch, "0")
			d.turn([]*Waiter{w}, 0)
			d.told("? 2000")
			w.Held(-1, true)
		}, 2*time.Second + rounding},
		"before a turn": {func(d *manualHub, w *Waiter) {
			d.told("? 2000")
			d.hub.message(d.ch, "0")
			d.turn([]*Waiter{w}, 0)
			w.Held(time.Minute, true) // knows better
		}, time.Minute + rounding},
		"a claim": {func(d *manualHub, w *Waiter) {
			require.Same(d.t, w, claimOf(d.hub, queue(d.ch)))
			d.told("? 2000")
			require.True(d.t, w.Queued(time.Minute))
		}, 2*time.Second + rounding},
		"no expiry": {func(d *manualHub, w *Waiter) {
			d.hub.message(d.ch, "0")
			d.turn([]*Waiter{w}, 0)
			w.Held(-1, true) // the place would be gone
		}, longest + rounding},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newManualHub(t)
				w := d.placed("o", 1)[0]
				row.do(d, w)
				require.Empty(t, w.turn)
				began := time.Now()
				<-w.turn
				require.Equal(t, row.want, time.Since(began))
			})
		})
	}
}

// Waiters behind one that got the lock sleep as long as its lease, whatever the holder before had.
func TestTimerAfterAGrantOfAnotherProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, ttl := range []time.Duration{time.Second, time.Hour} {
			d := newManualHub(t)
			ws := d.asking("o", 2)
			ws[0].Held(ttl, true)
			d.told(aGrantTo)
			d.requireGiven(ws[0], aGrant)
			began := time.Now()
			<-ws[1].turn
			require.Equal(t, aGrant.Lease+time.Millisecond, time.Since(began))
		}
	})
}

// x and {x} are two locks with one channel. Each message is for the right one.
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
	d.hub.message(d.ch, "00")
	a.Held(-1, false)
	d.turn(all, 1)
	require.True(t, a.TakePlace("p"))
	a.Held(-1, true)
	d.hub.message(d.ch, "00")
	d.turn(all, -1)
	d.told("p 2000 0 7")
	d.requireGiven(a, aGrant, ws[0], b)
	require.NotNil(t, ws[0].place)
	d.told(aGrantTo)
	d.requireGiven(ws[0], aGrant, b)
}

// The subscription is live while both of its channels are, and requested again if one of them is lost.
func TestHalfASubscription(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	for i, name := range []string{d.ch.Name, grants(d.ch).Name} {
		ws := d.placed("o", 2)
		sub := d.topic().sub
		d.confirmOne("unsubscribe", name)
		require.False(t, sub.live())
		d.turn(ws, -1)
		d.hub.message(d.ch, "0") // arrives all the same, maybe
		d.turn(ws, 0)
		require.False(t, ws[0].Listens())
		ws[0].Held(-1, false)
		if i == 0 {
			d.confirmOne("unsubscribe", grants(d.ch).Name) // the other one follows
		}
		require.Equal(t, subscribing, d.take())
		d.confirmOne("subscribe", d.ch.Name)
		require.False(t, d.finish(nil), "rueidis answers with the first channel")
		require.False(t, sub.live())
		require.Equal(t, noOp, d.take(), "it is under way")
		d.turn(ws, -1)
		d.confirmOne("subscribe", grants(d.ch).Name)
		require.True(t, sub.live())
		require.Equal(t, noOp, d.take())
		d.turn(ws, 0)
		require.True(t, ws[0].Listens())
		ws[0].Leave()
		ws[1].Leave()
		d.obey()
		require.Zero(t, d.hub.Len())
	}

	ws := d.line(1)
	ws[0].Leave()
	require.Equal(t, unsubscribing, d.take())
	d.confirm("subscribe") // rueidis repeats what it sent on a connection that broke
	require.Equal(t, noOp, d.take(), "it is under way")
	d.confirmOne("unsubscribe", d.ch.Name)
	require.Equal(t, noOp, d.take(), "still")
	d.confirmOne("unsubscribe", grants(d.ch).Name)
	d.finish(nil)
	require.Zero(t, d.hub.Len())
}

// Without a channel for grants there are no places.
func TestNoGrants(t *testing.T) {
	t.Parallel()
	s := sharedSite(t)
	s.hub = New(redistest.Dial(t, redistest.Shared(t)), "")
	defer s.hub.Close()
	ch := plain(redistest.Name(t))
	ws := s.park(ch, 2)
	require.EqualValues(t, 0, s.subscribers(grants(ch)))
	require.False(t, ws[0].Listens())
	s.publish(ch, "00")
	awaitTurn(t, ws[0], soon)
	s.leaveAll(ch, ws)
}

// parkPlaced is park, and the first waiter has the process's place.
func (s site) parkPlaced(ch Channel, owner string, n int) []*Waiter {
	s.t.Helper()
	ws := s.park(ch, n)
	s.place(ch, ws[0], owner)
	return ws
}

// place makes the first waiter ask again, and take the place.
func (s site) place(ch Channel, w *Waiter, owner string) {
	s.t.Helper()
	s.publish(ch, "0")
	awaitTurn(s.t, w, soon)
	require.True(s.t, w.Listens())
	require.True(s.t, w.TakePlace(owner))
	w.Held(-1, true)
}

// grant gives the lock to an owner for longer than the test: waiters behind it ask when it ends.
func (s site) grant(ch Channel, owner string) {
	s.t.Helper()
	s.publish(grants(ch), fmt.Sprintf("%s %d 0 7", owner, recovery.Milliseconds()))
}

func (s site) awaitGiven(w *Waiter) {
	s.t.Helper()
	awaitTurn(s.t, w, soon)
	require.Equal(s.t, Granted, w.Leave())
	require.Equal(s.t, Grant{Lease: recovery, Token: 7}, said(w))
}

func TestGrantsOnAServer(t *testing.T) {
	t.Parallel()
	for name, mod := range respVersions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			s := newSite(t, server.Client(t, mod), server.Client(t))
			ch := plain("c")
			ws := s.parkPlaced(ch, "o", 3)
			require.EqualValues(t, 1, s.subscribers(ch))
			require.EqualValues(t, 1, s.subscribers(grants(ch)))
			s.publish(ch, "00")
			s.grant(ch, "older")
			noTurn(t, ws...)
			s.grant(ch, "o")
			s.awaitGiven(ws[0])
			noTurn(t, ws[1:]...)

			s.place(ch, ws[1], "p")
			_, err := s.do(s.rdb.B().ClientKill().TypePubsub().Build()).AsInt64()
			require.NoError(t, err)
			awaitTurn(t, ws[1], recovery) // a release meanwhile finds that nobody listens
			require.True(t, ws[1].Listens())
			require.True(t, ws[1].TakePlace("p"))
			s.grant(ch, "p")
			noTurn(t, ws[1:]...)
			ws[1].Held(-1, true)
			s.awaitGiven(ws[1])

			s.publish(ch, "0")
			awaitTurn(t, ws[2], soon)
			s.leaveAll(ch, ws[2:])
			s.awaitSubscribers(grants(ch), 0)
		})
	}
}

// A user that may not have the channel for grants hears of unlocks alone, and so takes no place.
func TestForbiddenGrants(t *testing.T) {
	t.Parallel()
	for name, mod := range respVersions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			setUser(t, server.Client(t), "~*", "+@all", "resetchannels", "&c")
			s := newSite(t, server.Client(t, mod, asTester), server.Client(t))
			ch := plain("c")
			w := &Waiter{}
			require.True(t, s.hub.Join(w, queue(ch)))
			w.Held(-1, false)
			awaitTurn(t, w, soon) // confirmed
			require.False(t, w.Listens())
			require.EqualValues(t, 1, s.subscribers(ch))
			require.EqualValues(t, 0, s.subscribers(grants(ch)))
			w.Held(-1, false)
			s.publish(ch, "0")
			awaitTurn(t, w, soon)
			w.Leave()
			s.awaitSubscribers(ch, 0)
		})
	}
}

// Grants on a cluster, before and after the slot moves. The loss of the subscription ends the place.
func TestGrantsOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for name, mod := range respVersions {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, cluster.Client(t, mod), cluster.Client(t))
			ch := Channel{Name: "c:{" + redistest.Name(t) + "}", Sharded: true}
			ws := s.parkPlaced(ch, "o", 3)
			require.EqualValues(t, 1, s.subscribers(grants(ch)))
			s.grant(ch, "o")
			s.awaitGiven(ws[0])
			s.place(ch, ws[1], "p")

			slot := cluster.Slot(t, ch.Name)
			from, to := cluster.Owner(t, slot), cluster.Nodes()[0]
			if from == to {
				to = cluster.Nodes()[1]
			}
			cluster.MigrateSlot(t, slot, from, to)
			awaitTurn(t, ws[1], recovery)
			require.True(t, ws[1].Listens())
			require.True(t, ws[1].TakePlace("p"))
			ws[1].Held(-1, true)
			require.EqualValues(t, 1, s.subscribers(ch))
			require.EqualValues(t, 1, s.subscribers(grants(ch)))
			s.grant(ch, "p")
			s.awaitGiven(ws[1])
			s.leaveAll(ch, ws[2:])
			s.awaitSubscribers(grants(ch), 0)
		})
	}
	t.Run("another slot", func(t *testing.T) {
		s := newSite(t, cluster.Client(t), cluster.Client(t))
		ch := Channel{Name: redistest.Name(t), Sharded: true}
		ws := s.park(ch, 2)
		s.publish(ch, "0")
		awaitTurn(t, ws[0], soon)
		require.False(t, ws[0].Listens(), "its grants would be at another node")
		s.leaveAll(ch, ws)
	})
}

// heir says whether it inherits, and records from whom it has.
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

// The place of a waiter that gives up goes to the next one, which sleeps on, unless that cannot have it.
func TestPlaceIsInherited(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		prepare   func(d *manualHub, ws []*Waiter)
		can       bool
		inherited int // which one has it then; 0: none
		turn      int // who has the turn; -1: nobody
	}{
		"asleep":             {can: true, inherited: 1, turn: -1},
		"cannot":             {turn: 1},
		"the next one stops": {can: true, prepare: func(_ *manualHub, ws []*Waiter) { ws[1].stop(ErrExpired) }, inherited: 2, turn: -1},
		"its time is over":   {can: true, prepare: func(_ *manualHub, ws []*Waiter) { ws[0].stop(ErrExpired) }, inherited: 1, turn: -1},
		"in its turn": {can: true, prepare: func(d *manualHub, ws []*Waiter) {
			d.hub.message(d.ch, "0")
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
