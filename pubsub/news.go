package pubsub

import (
	"strconv"
	"strings"
	"time"
)

// A topic listens to its channel. The methods of [listener] are the third entrance to the queues, besides those for
// waiters (join.go) and for holders (ending.go): they take Hub.mu, and nothing here calls them.

// live: the queue that needs the subscription asks.
func (t *topic) live() {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	t.freed()
	if t.need {
		t.confirmed()
	}
}

// lost: an empty queue is not kept any longer.
func (t *topic) lost() {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if t.sub != nil {
		t.removeIfEmpty(false)
	}
}

// look wakes the first waiter, unless somebody asks already. It is no news of the lock.
func (t *topic) look() {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if t.need && t.current == nil && !t.isLive() {
		t.wakeFirst()
	}
}

func (t *topic) refused(err error) {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	t.refuse(err)
}

// told handles a message to this process alone. A message of unknown form makes it look at the lock.
func (t *topic) told(payload string) {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	m, known := ReadMessage(payload)
	w := t.places[m.Owner]
	switch {
	case m.Granted && w != nil:
		w.leavePlace()
		w.given = &Grant{Lease: m.Lease, Token: m.Token}
		if t.current != w { // otherwise the end of its turn or claim applies it
			w.handOver(m.Lease)
		}
	case m.Granted: // its caller releases the lock, or finds another owner there
	case w != nil:
		t.wake(w)
	case m.Owner != "" && known || len(t.places) == 0 || t.queue.Each: // for others
	case m.After > 0:
		t.setTimer(m.After)
	default:
		t.freed()
		t.courtesy.ahead = 0
		if t.queue.Counts || t.courtesy.lead > 1 || !t.stepAside() { // permits are reserved for the notified process
			t.wakeFirst()
		}
	}
}

// heard handles a message to all listeners.
func (t *topic) heard(payload string) {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	switch {
	case t.queue.Shared:
		t.heardWithoutQueue(payload)
	case !t.queue.Counts:
		t.heardWithQueue(payload)
	case len(t.places) == 0 || !strings.HasPrefix(payload, "0"):
		t.freed()
		t.wakeFirst()
	}
}

// heardWithQueue handles a message where there is a queue in Redis. '00' is for processes without a place.
func (t *topic) heardWithQueue(payload string) {
	t.freed()
	t.othersCame(t.first)
	switch payload {
	case "1":
		t.wakeAll()
		return
	case "00":
		t.courtesy.toldOutsiders()
		if len(t.places) > 0 && !t.queue.Each {
			return
		}
	case "0":
		own := t.courtesy.ownUnlock
		t.courtesy.ownUnlock = false
		if !own { // somebody else had the lock
			t.courtesy.outsiderCame()
		} else if t.stepAside() {
			t.courtesy.begun()
			return
		}
	}
	t.inOrder(0)
}

// heardWithoutQueue handles a message where there is none. '00' begins each of this library's. '<ms>', from 2 on, says that the remaining
// lease that waiters last saw may be too long, see read_release.lua. After '01' nobody has unlocked.
func (t *topic) heardWithoutQueue(payload string) {
	ours := t.courtesy.ownLibrary
	t.courtesy.ownLibrary = payload == "00"
	ms, _ := strconv.ParseInt(payload, 10, 64)
	switch {
	case t.courtesy.ownLibrary:
	case ms > 1:
		if t.first != nil {
			t.setTimer(time.Duration(ms) * time.Millisecond)
		}
	case payload == "01":
		t.freed()
		t.inOrder(0)
	default:
		t.freed()
		t.unlockedWithoutQueue(ours)
	}
}

// unlockedWithoutQueue handles an unlock where there is no queue in Redis. ours means that it is this library's. Then
// listeners out of line, such as Redisson, go first, unless they have had more turns lately, or one of ours that comes before nobody has
// come instead: with neither queue nor courtesy, such as in a TryLock, it may come again and again.
func (t *topic) unlockedWithoutQueue(ours bool) {
	c := &t.courtesy
	jumped := t.polite && c.before() == 0
	if !c.ownUnlock {
		t.othersCame(t.first)
		if ours || c.lead > 1 { // or none of those before this process has come while the outsiders had two turns
			c.rivals.heard++
		}
	}
	c.ownUnlock = false
	c.rivals.hadTurn(ours)
	if t.polite { // somebody has come first, and so may the next one
		t.stopTimer()
	}
	pause := time.Duration(0)
	if !ours {
		c.outsiderCame()
		t.hub.presence.seen(c.outsideCame)
	} else {
		if c.lead <= 1 && !jumped && c.isDue() && t.hub.presence.isLikely(time.Now()) {
			c.begun()
			pause = t.hub.Aside
		}
		c.lead = max(0, c.lead-1)
	}
	t.inOrder(pause)
}

// stepAside makes the first waiter ask after a courtesy. It returns false if there is none, or the waiter asks now.
func (t *topic) stepAside() bool { return t.courtesy.isDue() && t.asksIn(t.hub.Aside) }

// inOrder makes the first waiter ask after a pause, and after those who come before it; at once if it wants a share, or has what others
// wait for.
func (t *topic) inOrder(pause time.Duration) {
	pause += t.hub.Aside * time.Duration(min(t.courtesy.before(), steps)) / steps
	if w := t.first; w == nil || w.Shared || w.Ahead || !t.asksIn(pause) {
		t.wakeFirst()
	}
}
