package pubsub

import (
	"errors"
	"time"
)

// ErrExpired is the error of a waiter whose time to wait is over, see [Waiter.Until].
var ErrExpired = errors.New("the time to wait is over")

// expiry ends one waiter's wait. It takes less memory than a ctx with a deadline, and adds nothing to the waiter's
// select. It is not part of the Waiter: its timer may fire after the waiter has left and its memory is in use again.
type expiry struct {
	hub    *Hub
	waiter *Waiter // nil when it has left; Hub.mu guards it
	timer  *time.Timer
}

// watch starts the clock of a waiter, unless it runs. Hub.mu is held.
func (w *Waiter) watch() {
	if w.Until.IsZero() || w.expiry != nil || w.err != nil {
		return
	}
	rest := time.Until(w.Until)
	if rest <= 0 {
		w.stop(ErrExpired) // nothing is subscribed for it
		return
	}
	w.expiry = &expiry{hub: w.topic.hub, waiter: w}
	w.expiry.timer = time.AfterFunc(rest, w.expiry.fire)
}

func (w *Waiter) unwatch() {
	w.expiry.timer.Stop()
	w.expiry.waiter = nil
	w.expiry = nil
}

func (e *expiry) fire() {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	if w := e.waiter; w != nil && w.err == nil {
		w.stop(ErrExpired)
	}
}
