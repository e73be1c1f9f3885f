package pubsub

// Ear is the subscription to the channel for messages from other processes. A [Hub] has one for all its locks,
// without a queue: each message goes to a function. It is subscribed once, and again after each lost connection,
// until the hub is closed.
type Ear struct {
	sub  *subscription
	hear func(text string) // on the goroutine that reads the connection
	news chan struct{}     // capacity 1: senders hold Hub.mu and never block

	// Guarded by Hub.mu.
	confirmed int   // confirmations by the server
	refusal   error // why there is none any more
}

// Listen makes the ear. hear gets each message; it must return at once, and may call the hub. The channel must have
// no queue and no other ear.
func (h *Hub) Listen(ch Channel, hear func(text string)) *Ear {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := &Ear{hear: hear, news: make(chan struct{}, 1)}
	e.sub = &subscription{hub: h, channel: ch, ear: e}
	h.subs[ch] = e.sub
	e.sub.update()
	return e
}

// News is ready after the ear was confirmed, refused or lost.
func (e *Ear) News() <-chan struct{} { return e.news }

// EarState is the state of an ear.
type EarState struct {
	Live      bool  // messages from now on are heard
	Confirmed int   // how often it has become live: messages in between may have been missed
	Refusal   error // the server refuses it: it stays deaf
}

// State returns the current state.
func (e *Ear) State() EarState {
	h := e.sub.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	return EarState{Live: e.sub.live(), Confirmed: e.confirmed, Refusal: e.refusal}
}

// isConfirmed notes that messages are heard from now on. Hub.mu is held.
func (e *Ear) isConfirmed() {
	e.confirmed++
	e.signal()
}

// refuse notes that the server refuses the ear. Hub.mu is held.
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
