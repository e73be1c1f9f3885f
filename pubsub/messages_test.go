package pubsub

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/require"
)

// rumour sends arbitrary messages to the waiters of three locks on a shared channel. Whatever the messages, and however they interleave
// with replies, nothing breaks and all waiters can leave.
type rumour struct {
	*manualHub
	rnd     *rand.Rand
	queues  []Queue
	waiting []*rumoured
	left    []*rumoured // by their callers; claimants finish for them
	owners  []string
	steps   []string
}

// rumoured is a waiter, with the knowledge of its caller.
type rumoured struct {
	Waiter

	asking  bool // it has the turn, or asks apart
	placed  bool // it took a place in this turn, or an earlier one
	claimed bool
}

// payload is an arbitrary message: words of real messages, and other words.
func (r *rumour) payload() string {
	words := []string{
		"0", "00", "1", "?", "-", "2000", "-1", "", "x", "\x00\xff", "9223372036854775807", "-9223372036854775808", "4294967296", "1e3",
		me, "00000000-0000-0000-0000-000000000000:1", r.ch.Name,
	}
	if len(r.owners) > 0 {
		owner := r.owners[r.rnd.IntN(len(r.owners))]
		if r.rnd.IntN(2) == 0 {
			return fmt.Sprintf([]string{"%s 2000 1 -", "%s 2000 1 7", "? 0 %s", "? 5000 %s"}[r.rnd.IntN(4)], owner)
		}
		words = append(words, owner)
	}
	text := ""
	for range r.rnd.IntN(6) {
		text += words[r.rnd.IntN(len(words))] + " "[:r.rnd.IntN(2)]
	}
	return text
}

// channel returns a channel that this process may subscribe to.
func (r *rumour) channel() Channel {
	names := []string{r.ch.Name, r.ch.Name + ":" + me, r.ch.Name + ":", ":" + me, "other"}
	if len(r.owners) > 0 {
		names = append(names, r.ch.Name+":"+r.owners[r.rnd.IntN(len(r.owners))])
	}
	return Channel{names[r.rnd.IntN(len(names))], r.rnd.IntN(9) == 0}
}

// news makes a waiter read its news.
func (r *rumour) news(w *rumoured) (out bool) {
	select {
	case <-w.turn:
	default:
		return false
	}
	granted, err := w.News()
	switch {
	case granted:
		return true
	case err != nil:
		return r.leaves(w)
	}
	w.asking = true
	return false
}

// leaves reports whether w left the queue.
func (r *rumour) leaves(w *rumoured) bool {
	if w.Leave() == Claimed {
		r.left = append(r.left, w)
	}
	return true
}

// asks is one step of a caller that asks Redis, and of its answer. It reports whether the waiter is out.
func (r *rumour) asks(w *rumoured) bool {
	switch r.rnd.IntN(6) {
	case 0:
		owner := fmt.Sprint("o", len(r.owners))
		if w.Listens() && w.TakePlace(owner) {
			w.placed = true
			r.owners = append(r.owners, owner)
		}
	case 1:
		if w.placed && w.topic.queue.Each {
			w.Hear()
		}
	case 2:
		w.asking = false
		w.Done(time.Duration(r.rnd.Int64()) - 1)
		return true
	case 3:
		w.asking = false
		return r.leaves(w)
	default:
		w.asking = false
		w.Held(time.Duration(r.rnd.Int64N(3)-1)*time.Hour, w.placed && r.rnd.IntN(3) > 0)
	}
	return false
}

// claim ends a claim for a holder of this process, or begins a claim.
func (r *rumour) claim() {
	finish := func(w *rumoured, kept bool) {
		if w.claimed = false; !kept {
			w.Leave()
			r.left = slices.DeleteFunc(r.left, func(x *rumoured) bool { return x == w })
		}
	}
	for _, w := range slices.Concat(r.waiting, r.left) {
		if w.claimed {
			switch r.rnd.IntN(3) {
			case 0:
				finish(w, w.Grant(time.Hour))
			case 1:
				finish(w, w.Queued(time.Hour))
			default:
				finish(w, w.Unclaim())
			}
			return
		}
	}
	if w := claimOf(r.hub, r.queues[0]); w != nil {
		w.Value.(*rumoured).claimed = true
	}
}

func (r *rumour) step() {
	r.waiting = slices.DeleteFunc(r.waiting, r.news)
	switch n := r.rnd.IntN(16); {
	case n < 3 && len(r.waiting) < 9:
		q := r.queues[r.rnd.IntN(len(r.queues))]
		w := &rumoured{}
		w.Value, w.Shared = w, q.Shared && r.rnd.IntN(2) == 0
		w.asking = r.hub.Join(&w.Waiter, q)
		r.waiting = append(r.waiting, w)
	case n < 7:
		ch, text := r.channel(), r.payload()
		r.steps = append(r.steps, fmt.Sprintf("%q: %q", ch.Name, text))
		r.hub.message(ch, text)
	case n < 11:
		if len(r.waiting) > 0 {
			i := r.rnd.IntN(len(r.waiting))
			w := r.waiting[i]
			if w.asking && r.asks(w) || !w.asking && r.rnd.IntN(8) == 0 && r.leaves(w) {
				r.waiting = slices.Delete(r.waiting, i, i+1)
			}
		}
	case n < 12:
		r.claim()
	case n < 13 && len(r.owners) > 0:
		r.hub.Look(r.queues[1], r.owners[r.rnd.IntN(len(r.owners))])
	case n < 14 && r.rnd.IntN(5) == 0:
		r.link.down(io.EOF, false)
	default:
		r.confirmAll()
	}
}

// confirmAll makes the server carry out the link's requests, for all channels.
func (r *rumour) confirmAll() {
	for {
		batch, _ := r.link.take()
		if len(batch) == 0 {
			return
		}
		for _, s := range batch {
			kind := map[op]string{subscribing: "subscribe", unsubscribing: "unsubscribe"}[s.op]
			for _, name := range s.names {
				r.confirmOne(kind, name)
			}
			r.hub.mu.Lock()
			r.link.finish(s, nil)
			r.hub.mu.Unlock()
		}
	}
}

// Any client may publish any text on these channels.
func TestAnyMessageAtAnyTime(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		d := newManualHub(t)
		r := &rumour{manualHub: d, rnd: rand.New(rand.NewPCG(seed, 0)), queues: []Queue{
			{Lock: "plain", Channel: d.ch}, {Lock: "fair", Channel: d.ch, Each: true}, {Lock: "rw", Channel: d.ch, Shared: true},
		}}
		func() {
			defer func() {
				if why := recover(); why != nil {
					t.Fatalf("seed %d: %v, after %q", seed, why, r.steps)
				}
			}()
			for range 200 {
				r.step()
			}
			for len(r.waiting)+len(r.left) > 0 {
				r.claim()
				r.waiting = slices.DeleteFunc(r.waiting, func(w *rumoured) bool {
					return r.news(w) || r.leaves(w)
				})
			}
			d.lapse()
			r.confirmAll()
		}()
		require.Zero(t, d.hub.Len(), "seed %d: a queue is left after %q", seed, r.steps)
		require.Zero(t, len(d.hub.subs), "seed %d: a subscription is left after %q", seed, r.steps)
		d.hub.Close()
	}
}
