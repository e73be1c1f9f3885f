package quorum

import (
	"sync"
	"sync/atomic"
	"time"
)

// localQueue is this process's queue for a quorum. The goroutine with the turn asks for the lock, or has it.
type localQueue struct {
	key    string
	turn   chan struct{}          // capacity 1; full while a goroutine has the turn
	holder atomic.Pointer[votes]  // has the lock; nil: no goroutine here has it
	outage atomic.Pointer[outage] // the next outage
	users  int                    // guarded by lines.mu
}

// outage is an outage of most servers, as found by the goroutine with the turn.
type outage struct {
	known chan struct{} // closed when the following is set
	since time.Time
	err   error
}

func newOutage() *outage { return &outage{known: make(chan struct{})} }

// lines are the queues of all quorums that goroutines of this process hold or wait for.
var lines = struct {
	mu sync.Mutex // guards the following, and line.users; no other lock is taken under it
	of map[string]*localQueue
}{of: make(map[string]*localQueue)}

func enterLine(key string) *localQueue {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	l := lines.of[key]
	if l == nil {
		l = &localQueue{key: key, turn: make(chan struct{}, 1)}
		l.outage.Store(newOutage())
		lines.of[key] = l
	}
	l.users++
	return l
}

func (l *localQueue) leave() {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	l.left()
}

// left takes one user out. lines.mu is held.
func (l *localQueue) left() {
	if l.users--; l.users == 0 {
		delete(lines.of, l.key)
	}
}

// isWaitedFor reports whether other goroutines are in the queue.
func (l *localQueue) isWaitedFor() bool {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	return l.users > 1
}

// pass ends the turn. The next must not count this one as waiting (isWaitedFor).
func (l *localQueue) pass() {
	l.holder.Store(nil)
	lines.mu.Lock()
	defer lines.mu.Unlock()
	l.left()
	<-l.turn // it is full
}

// unanswered reports to all in line that no majority has answered since then. Finding it out one by one would only keep them waiting.
func (l *localQueue) unanswered(since time.Time, err error) {
	o := l.outage.Swap(newOutage())
	o.since, o.err = since, err
	close(o.known)
}
