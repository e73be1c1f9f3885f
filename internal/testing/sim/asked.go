package sim

import (
	"strings"
	"time"
)

// isEar reports whether a channel is a Client's ear.
func isEar(channel string) bool { return strings.HasPrefix(channel, "rlock_client:") }

// lookAtAsked reports a hold that wants to know whether somebody waits, and has not learned of this waiter in time.
func (v *waiter) lookAtAsked() {
	w, o := v.process.world, v.locks[0]
	if w.plan.Asked == 0 || len(v.locks) > 1 || v.gate || v.process.isDead() {
		return
	}
	quiet, settle := w.quiet(), w.settle()
	o.mu.Lock()
	defer o.mu.Unlock()
	for s := range o.sections {
		bound := v.asks(s)
		switch {
		case s.asked == nil, !s.isLive(), !s.excused.IsZero(), s.shared && v.shared[0],
			o.name.Kind == ReadWrite && s.process == v.process: // it may be its own upgrade
			continue
		case min(time.Since(v.began), time.Since(s.began)) <= bound, quiet <= settle+bound:
			continue
		}
		select {
		case <-s.asked:
		default:
			w.violation(o.name.Text, "%v has not learnt within %v that p%d waits since %v (G3)", s, bound, v.process.number, w.since(v.began))
			s.asked = nil
		}
	}
}

// asks returns the longest time until a hold learns of a waiter, without faults: its Lock, or the hold's, has an
// answer by then, and a message or a look has followed. A writer refused by readers asks all of them if the reader
// named in the refusal can be asked; otherwise the others learn of it when they look. A reader refused because a writer's
// turn has come, before the writer is inside, has nobody to ask: the writer looks twice, a second apart.
func (v *waiter) asks(s *section) time.Duration {
	w := v.process.world
	bound := w.handOver() + w.reach()
	if v.shared[0] && v.began.Before(s.began) {
		bound += time.Second + w.reach()
	}
	if s.shared && w.plan.Asked < 1 {
		bound += w.plan.Watchdog/3 + 2*time.Second
	}
	return bound
}
