package faults

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// histHandOffs counts the outcomes of one client's hand-offs.
type histHandOffs struct {
	Done, Refused, Failed int64 // Failed: no reply, or an error reply
	Elsewhere             int64 // the lock went to another process, even if this one had a waiter
	Longest               int   // run of hand-offs on one lock
}

func (h histHandOffs) and(o histHandOffs) histHandOffs {
	return histHandOffs{h.Done + o.Done, h.Refused + o.Refused, h.Failed + o.Failed, h.Elsewhere + o.Elsewhere, max(h.Longest, o.Longest)}
}

// histBounds draws the hand-off bounds of each client. Every other client has the defaults; the rest give
// the lock to other processes after one or two sections, so that a run exercises both.
func histBounds(seed uint64, clients int) []rlock.HandOff {
	rng := rand.New(rand.NewPCG(seed, 1<<32)) // not the stream of a worker or a schedule
	bounds := make([]rlock.HandOff, clients)
	for i := rng.IntN(2); i < clients; i += 2 {
		bounds[i].Most = 1 + rng.IntN(2)
		if rng.IntN(2) == 0 {
			bounds[i].For = time.Duration(1+rng.IntN(50)) * time.Millisecond
		}
	}
	return bounds
}

// histRuns follows one client's runs of hand-offs by the replies that the library gets.
type histRuns struct {
	total  histHandOffs
	length map[histKey]int // of the run up to this hold
}

// note is called with the reply to a release or a hand-off, or to the acquire of a hold that may follow one.
func (r *histRuns) note(c histScript, result rueidis.RedisResult) {
	if c.ends && c.toProcess(result) {
		r.total.Elsewhere++
		delete(r.length, c.from)
		return
	}
	switch err := result.Error(); {
	case c.what == "acquire" && c.first && c.granted(0, result):
		delete(r.length, c.keys[0])
	case c.what != "hand-off":
	case err != nil:
		if said, ok := rueidis.IsRedisErr(err); !ok || !said.IsNoScript() {
			r.total.Failed++
		}
	case c.granted(0, result):
		length := r.length[c.from] + 1
		delete(r.length, c.from)
		r.total.Done++
		if c.joins { // it was the first of all waiting processes
			length = 0
		}
		r.length[c.keys[0]] = length
		r.total.Longest = max(r.total.Longest, length)
	case c.refused(result):
		r.total.Refused++
	}
}

// beginRun is called when a kept lock is acquired again: nobody had waited for it, so a new run begins.
func (l *histLog) beginRun(k histKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.runs.length, k)
}

// check reports a run longer than its bound, which could starve other processes.
func (h histHandOffs) check(bounds rlock.HandOff) error {
	most := bounds.Most
	if most == 0 {
		most = rlock.DefaultHandOffMost
	}
	if h.Longest > most {
		return fmt.Errorf("%d hand-offs in a row, the bound is %d", h.Longest, most)
	}
	return nil
}
