package faults

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// histHandOffs is what became of the hand-offs that one client sent.
type histHandOffs struct {
	Done, Refused, Failed int64 // Failed: no reply, or an error
	Elsewhere             int64 // the lock went to another process, whether or not one of this one is next
	Longest               int   // run of them, on one lock
}

func (h histHandOffs) and(o histHandOffs) histHandOffs {
	return histHandOffs{h.Done + o.Done, h.Refused + o.Refused, h.Failed + o.Failed, h.Elsewhere + o.Elsewhere, max(h.Longest, o.Longest)}
}

// histBounds draws the bounds of each client's hand-offs. Every other one has the usual ones, the others give
// the lock to the rest of the world after every section or two, so that both ways are used at once.
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

// histRuns follows the runs of hand-offs of one client, by the same replies that the library has.
type histRuns struct {
	total  histHandOffs
	length map[histKey]int // of the run that brought the hold there
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
		if c.joins { // it was the first of all processes that wait
			length = 0
		}
		r.length[c.keys[0]] = length
		r.total.Longest = max(r.total.Longest, length)
	case c.refused(result):
		r.total.Refused++
	}
}

// beginRun is called when a lock was had again that was kept: nobody had waited for it, so the run of before does not count.
func (l *histLog) beginRun(k histKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.runs.length, k)
}

// check reports a run that was longer than its bound: the others would have to wait for ever.
func (h histHandOffs) check(bounds rlock.HandOff) error {
	most := bounds.Most
	if most == 0 {
		most = rlock.DefaultHandOffMost
	}
	if h.Longest > most {
		return fmt.Errorf("%d hand-offs followed each other, %d may", h.Longest, most)
	}
	return nil
}
