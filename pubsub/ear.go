package pubsub

import "sync"

// Ear is the subscription to the channel for messages from other processes. A [Hub] has one for all its locks,
// without a queue: each message goes to a function. It is subscribed once, and again after each lost connection,
// until the hub is closed.
type Ear struct {
	share *share
	hear  func(text string) // on the goroutine that reads the connection
	news  chan struct{}     // capacity 1: senders never block

	mu        sync.Mutex // guards the following; no other lock is taken under it
	confirmed int        // confirmations by the server
	refusal   error      // why there is none any more
}

// Listen makes the ear. hear gets each message; it must return at once, and may call the hub. The channel must have
// no queue and no other ear.
func (h *Hub) Listen(ch Channel, hear func(text string)) *Ear {
	e := &Ear{hear: hear, news: make(chan struct{}, 1)}
	e.share = h.conns.listen(ch, e, true, true)
	e.share.need()
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
	live := e.share.reach().live
	e.mu.Lock()
	defer e.mu.Unlock()
	return EarState{Live: live, Confirmed: e.confirmed, Refusal: e.refusal}
}

func (e *Ear) live() { e.changed(1, nil) }

func (e *Ear) refused(err error) {
	e.changed(0, err)
	e.share.leave()
}

func (e *Ear) changed(confirmed int, refusal error) {
	e.mu.Lock()
	e.confirmed += confirmed
	e.refusal = refusal
	e.mu.Unlock()
	e.signal()
}

func (e *Ear) lost()             { e.signal() }
func (e *Ear) look()             {} // it would not help
func (e *Ear) heard(text string) { e.hear(text) }
func (e *Ear) told(string)       {}

func (e *Ear) signal() {
	select {
	case e.news <- struct{}{}:
	default:
	}
}
