package quorum

import (
	"time"

	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/pubsub"
)

// serverWatch receives an election's news of one server.
type serverWatch struct {
	waiter pubsub.Waiter
	member *tenure.Lock
	joined bool
	turn   bool  // the server may be free
	err    error // the subscription's failure

	retry <-chan time.Time // until the server is connected, and so listened to: when to ask again
}

// listen joins the queue of the hub, or takes the turn there: what comes from now on is news.
func (r *serverWatch) listen(q *Quorum) {
	if r.turn || r.err != nil || r.member.Client.Cluster.IsUnknown() {
		return
	}
	hub, queue := r.member.Client.Hub, q.waiters(r.member)
	if !r.joined {
		r.joined = true
		if r.turn = hub.Join(&r.waiter, queue); r.turn {
			return
		}
	}
	hub.Wake(queue)
	select {
	case <-r.waiter.Turn():
	default:
	}
	r.hear()
}

// hear notes what the hub has to say: that the server may be free, or that it cannot be listened to.
func (r *serverWatch) hear() {
	if !r.joined {
		r.turn = true
		return
	}
	if _, err := r.waiter.News(); err != nil {
		r.waiter.Leave()
		r.err = err
		return
	}
	r.turn = true
}

// sleep gives the turn back until there is news, or ttl is over; a negative one is for ever. One that has just connected, or learnt of the
// server's cluster, has to ask once more. Nothing tells of a server that is not connected.
func (r *serverWatch) sleep(q *Quorum, ttl time.Duration) {
	joined, turn := r.joined, r.turn
	r.turn = false
	if !joined || !turn {
		if r.listen(q); !r.joined {
			r.retry = time.After(deadServerRetry)
		}
		return
	}
	r.waiter.Held(ttl, false)
}
