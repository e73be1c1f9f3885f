package pubsub

import (
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// crowd returns a line of n waiters that have no signal.
func (d *manualHub) crowd(n int) []*Waiter {
	ws := d.line(n)
	for _, w := range ws {
		require.Empty(d.t, w.turn)
	}
	return ws
}

// A crowd that is stopped is walked once: afterwards nothing walks it again, however many of it have yet to leave.
func TestAStoppedCrowdStandsApart(t *testing.T) {
	bubbles(t, map[string]func(*manualHub, []*Waiter){
		"draining": func(d *manualHub, _ []*Waiter) { d.hub.Drain() },
		"stopped":  func(d *manualHub, _ []*Waiter) { d.hub.Stop() },
		"refused": func(d *manualHub, _ []*Waiter) {
			d.hub.mu.Lock()
			defer d.hub.mu.Unlock()
			d.topic().refuse(io.ErrUnexpectedEOF)
		},
		"expired": func(d *manualHub, ws []*Waiter) {
			d.hub.mu.Lock()
			defer d.hub.mu.Unlock()
			for _, w := range ws {
				w.stop(ErrExpired)
			}
		},
	}, func(t *testing.T, stop func(*manualHub, []*Waiter)) {
		d := newManualHub(t)
		ws := d.crowd(100)
		stop(d, ws)
		topic := d.topic()
		require.Nil(t, topic.first)
		require.Empty(t, topic.dues)
		all, _ := d.hub.Queued(queue(d.ch))
		require.Zero(t, all)
		for _, w := range ws {
			require.Len(t, w.turn, 1)
			require.Error(t, refusal(w))
			require.Equal(t, Left, w.Leave())
		}
		require.False(t, topic.need)
	})
}

// What a stopped crowd was to do, those behind it do at once.
func TestTheDueOfAStoppedCrowd(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.crowd(3)
	d.hub.conns.message(d.ch, "1") // all are due, the first asks
	d.turn(ws, 0)
	after := d.joins(&Waiter{}, false)
	d.hub.mu.Lock()
	d.topic().stopAll(io.ErrUnexpectedEOF, func(w *Waiter) bool { return w != after })
	d.hub.mu.Unlock()
	ws[0].Held(time.Hour, false)
	require.Len(t, after.turn, 1, "nobody has left yet")
	leave(ws...)
	<-after.turn
	after.Leave()
}

// Due waiters ask in the order of the queue, in whatever order they became due, or left.
func TestDuesInOrder(t *testing.T) {
	t.Parallel()
	var d dues
	ws := make([]*Waiter, 100)
	for i := range ws {
		ws[i] = &Waiter{order: int64(i)}
	}
	for _, i := range rand.Perm(len(ws)) {
		d.add(ws[i])
	}
	for _, i := range rand.Perm(len(ws)) {
		if i%3 == 1 {
			d.remove(ws[i])
			d.remove(ws[i])
		}
	}
	for i, w := range ws {
		require.Equal(t, i%3 != 1, w.isDue())
		if w.isDue() {
			require.Same(t, w, d[0])
			d.remove(w)
		}
	}
	require.Empty(t, d)
}

// A wake-up that must not wait comes, though somebody has the hub's mutex for long.
func TestWakeSoonWaitsForNobody(t *testing.T) {
	t.Parallel()
	d := newManualHub(t)
	ws := d.crowd(2)
	d.hub.mu.Lock()
	for range 3 {
		d.hub.WakeSoon(queue(d.ch)) // returns
	}
	d.hub.mu.Unlock()
	<-ws[0].Turn()
	leave(ws[0], ws[1])
	d.hub.Close()
	d.hub.WakeSoon(queue(d.ch))
}

// A crowd of readers knows the writer before them without walking past each other, and so does whoever comes after that writer.
func TestExclusiveInACrowd(t *testing.T) { // alone: it counts CPU time
	d := newManualHub(t)
	const n = 30_000
	ws := d.line(2)
	for range n {
		ws = append(ws, d.joins(&Waiter{Shared: true}, false))
	}
	last := d.joins(&Waiter{}, false)
	behind := d.joins(&Waiter{Shared: true}, false)
	began := redistest.CPU(t)
	for i, want := range []*Waiter{ws[0], ws[1], last} {
		if i > 0 {
			require.Equal(t, Left, ws[i-1].Leave())
		}
		if want == last {
			want = nil // it is behind them
		}
		require.False(t, slices.ContainsFunc(ws[2:], func(w *Waiter) bool { return w.Exclusive() != want }))
	}
	require.True(t, behind.Exclusive() == last)
	require.True(t, last.Exclusive() == nil)
	require.Less(t, redistest.CPU(t)-began, 10*time.Second)
	for _, w := range append(ws[2:], last, behind) {
		w.Leave()
	}
}
