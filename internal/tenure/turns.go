package tenure

import "time"

// Callers are what a tenure needs beyond its first level, and those who wait for the right to make calls for it. The zero value is none;
// most tenures have them from their unlock on, which brings the memory. All fields are guarded by tenure.mu.
type Callers struct {
	turn    chan struct{}   // capacity 1: a token is the right, for the first of those that wait; closed when the tenure is lost; nil: nobody has waited
	waiting int             // those that wait, and have no token coming
	told    chan<- struct{} // gets a token when the tenure is lost; nil: no unlock waits for that
	count   follower
	longest time.Duration // the longest lease a re-entry was renewed for
	open    *openLevels   // nil until there is a second level
	cached  any           // see Cached
}

// TryCallSlot takes the right to make calls for the tenure (I1) if it is free. It is for an unlock, which does not wait for the count
// in Redis.
func (t *Tenure) TryCallSlot() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ok := !t.calling
	t.calling = true
	return ok
}

// CallSlot is TryCallSlot, and waits if the right is taken: a token from turn is the right. Who does not wait for that calls LeaveCallSlot.
// When the tenure is lost, turn is closed, and the right may be asked for again. turn is nil if it is lost already: then no call is needed.
func (t *Tenure) CallSlot() (ok bool, turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !t.calling && (t.callers == nil || !t.callers.count.calling):
		t.calling = true
		return true, nil
	case t.loss != nil:
		return false, nil
	}
	return false, t.join()
}

// join waits for the right. mu is held.
func (t *Tenure) join() chan struct{} {
	c := t.more()
	if c.turn == nil {
		c.turn = make(chan struct{}, 1)
	}
	c.waiting++
	return c.turn
}

// LeaveCallSlot ends the wait for a turn. If only the leaving goroutine could take the token, the right goes on.
func (t *Tenure) LeaveCallSlot(turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.callers; turn == c.turn && c.waiting > 0 {
		c.waiting--
	} else if _, given := <-turn; given {
		t.pass()
	}
}

// AwaitCallSlot is CallSlot for an unlock: it waits for the right, even if the tenure is lost meanwhile.
func (t *Tenure) AwaitCallSlot() {
	for given := false; !given; {
		t.mu.Lock()
		if !t.calling {
			t.calling = true
			t.mu.Unlock()
			return
		}
		turn := t.join()
		t.mu.Unlock()
		_, given = <-turn
	}
}

// ReleaseCallSlot gives the right to make calls back.
func (t *Tenure) ReleaseCallSlot() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pass()
}

// pass gives the right to the next in line and wakes only that goroutine: waking all n each time would take n²/2 wake-ups. mu is held.
func (t *Tenure) pass() {
	c := t.callers
	if t.calling = c != nil && c.waiting > 0 && !c.count.calling; !t.calling { // while the count is stated, state passes it on
		t.follow()
		return
	}
	c.waiting--
	c.turn <- struct{}{}
}

// wake wakes all of them, and an unlock, after a loss. mu is held.
func (t *Tenure) wake() {
	c := t.callers
	if c == nil {
		return
	}
	select {
	case c.told <- struct{}{}:
	default:
	}
	if c.turn != nil {
		close(c.turn)
		c.turn, c.waiting = nil, 0
	}
}
