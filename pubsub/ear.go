package pubsub

// Ear is the subscription to the channel on which other processes speak to this one. There is one for all locks of a [Hub], and no queue: what
// is said is told to a function as it comes. It is asked for once, and again after each connection that was lost, until the hub is closed.
type Ear struct {
	sub  *subscription
	hear func(text string) // on the goroutine that reads the connection
	news chan struct{}     // capacity 1: whoever sends holds Hub.mu and never blocks

	// Guarded by Hub.mu.
	confirmed int   // how often the server has confirmed it
	refusal   error // why there is none any more
}

// Listen makes the ear. hear is told what is said; it must return at once, and may call the hub. No queue may have the channel, and no other ear.
func (h *Hub) Listen(ch Channel, hear func(text string)) *Ear {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := &Ear{hear: hear, news: make(chan struct{}, 1)}
	e.sub = &subscription{hub: h, channel: ch, ear: e}
	h.subs[ch] = e.sub
	e.sub.update()
	return e
}

// News is ready when the ear was confirmed, or refused, or lost since.
func (e *Ear) News() <-chan struct{} { return e.news }

// EarState is what is known of an ear.
type EarState struct {
	Live      bool  // what is said from now on is heard
	Confirmed int   // how often it has become live: what was said between two of these may have been missed
	Refusal   error // the server refuses it: it stays deaf
}

// State is what is known of it now.
func (e *Ear) State() EarState {
	h := e.sub.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	return EarState{Live: e.sub.live(), Confirmed: e.confirmed, Refusal: e.refusal}
}

// isConfirmed notes that what is said from now on is heard. Hub.mu is held.
func (e *Ear) isConfirmed() {
	e.confirmed++
	e.signal()
}

// refuse notes that the server refuses it. Hub.mu is held.
func (e *Ear) refuse(err error) {
	e.refusal = err
	e.signal()
}

func (e *Ear) signal() {
	select {
	case e.news <- struct{}{}:
	default:
	}
}
