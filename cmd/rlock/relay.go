package main

import (
	"slices"
	"syscall"
	"time"
)

// relay passes signals on to the command's group, except those that the group has got as well: systemd signals each process of a unit, and
// a shell its job after the terminal has hung up. The witness, a process in the group, tells what the group gets.
type relay struct {
	send func(syscall.Signal)
	ask  func() // lets the witness answer once it has told of everything; nil if there is no witness

	waiting []waitingSignal
	seen    map[syscall.Signal]time.Time // by the group, when
	sent    map[syscall.Signal]time.Time // by us, and not yet seen
}

// waitingSignal is a signal that is not passed on yet.
type waitingSignal struct {
	signal syscall.Signal
	asked  bool
	until  time.Time
}

const (
	// echoTime bounds the time between the copies of one signal.
	echoTime = 250 * time.Millisecond
	// witnessTime bounds the wait for the witness, which may be stopped: mostly together with the command, which then has no use for a signal.
	// A busy machine may need seconds to let it answer.
	witnessTime = 5 * time.Second

	witnessAnswers = syscall.Signal(0) // what the witness tells when it was asked
)

func newRelay(send func(syscall.Signal), ask func()) *relay {
	return &relay{send: send, ask: ask, seen: make(map[syscall.Signal]time.Time), sent: make(map[syscall.Signal]time.Time)}
}

// got handles a signal to this process. prompt: the group can't have got it.
func (r *relay) got(s syscall.Signal, prompt bool, now time.Time) {
	same := func(w waitingSignal) bool { return w.signal == s }
	switch {
	case prompt || r.ask == nil:
		r.pass(s, now)
	case within(r.seen, s, now), slices.ContainsFunc(r.waiting, same):
	default:
		r.waiting = append(r.waiting, waitingSignal{s, false, now.Add(echoTime)})
	}
}

// told handles what the witness tells.
func (r *relay) told(s syscall.Signal, now time.Time) {
	if s == witnessAnswers {
		r.passIf(func(w waitingSignal) bool { return w.asked }, now)
		return
	}
	if within(r.sent, s, now) {
		return
	}
	many := len(r.waiting)
	r.waiting = slices.DeleteFunc(r.waiting, func(w waitingSignal) bool { return w.signal == s })
	if many == len(r.waiting) {
		r.seen[s] = now
	}
}

// within reports whether s was noted in the last echoTime, and forgets it.
func within(noted map[syscall.Signal]time.Time, s syscall.Signal, now time.Time) bool {
	at, ok := noted[s]
	delete(noted, s)
	return ok && now.Sub(at) < echoTime
}

// due handles the end of a wait.
func (r *relay) due(now time.Time) {
	r.passIf(func(w waitingSignal) bool { return w.asked && !now.Before(w.until) }, now)
	for i := range r.waiting {
		if w := &r.waiting[i]; !w.asked && !now.Before(w.until) {
			w.asked, w.until = true, now.Add(witnessTime)
			r.ask()
		}
	}
}

// witnessGone passes on what waits, and everything at once from now on.
func (r *relay) witnessGone(now time.Time) {
	r.ask = nil
	r.passIf(func(waitingSignal) bool { return true }, now)
}

// next returns a channel for the end of the first wait; nil if nothing waits.
func (r *relay) next(now time.Time) <-chan time.Time {
	if len(r.waiting) == 0 {
		return nil
	}
	first := slices.MinFunc(r.waiting, func(a, b waitingSignal) int { return a.until.Compare(b.until) })
	return time.After(first.until.Sub(now))
}

func (r *relay) passIf(pass func(waitingSignal) bool, now time.Time) {
	for _, w := range r.waiting {
		if pass(w) {
			r.pass(w.signal, now)
		}
	}
	r.waiting = slices.DeleteFunc(r.waiting, pass)
}

func (r *relay) pass(s syscall.Signal, now time.Time) {
	r.sent[s] = now
	r.send(s)
}
