package ear

import (
	"sync/atomic"
	"time"
)

// question asks holds to yield, once, and not before their term is over.
type question struct {
	asked chan struct{}
	put   atomic.Bool
	holds atomic.Int32 // that have not ended
	term  *term        // nil: none
}

// term is the least time before a question reaches its holds.
type term struct {
	over time.Time
	due  atomic.Pointer[time.Timer] // closes asked; nil: nobody has asked before over
}

// begins prepares a question to that many holds, after a term that begins now; 0: none.
func (q *question) begins(holds int, after time.Duration) {
	q.asked = make(chan struct{})
	q.holds.Store(int32(holds))
	if after > 0 {
		q.term = &term{over: time.Now().Add(after)}
	}
}

// ask closes asked, now or when the term is over.
func (q *question) ask() {
	if q.put.Swap(true) {
		return
	}
	if q.term != nil {
		if early := time.Until(q.term.over); early > 0 {
			q.term.due.Store(time.AfterFunc(early, func() { close(q.asked) }))
			q.endIfOver()
			return
		}
	}
	close(q.asked)
}

func (q *question) ends() {
	q.holds.Add(-1)
	q.endIfOver()
}

// endIfOver stops a question that is not due yet when its last hold has ended. Who stores the timer looks afterwards, too.
func (q *question) endIfOver() {
	if q.term == nil || q.holds.Load() > 0 {
		return
	}
	if due := q.term.due.Load(); due != nil {
		due.Stop()
	}
}
