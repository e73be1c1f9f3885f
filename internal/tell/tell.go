// Package tell calls users' code, a Logger or a Trace, which may block or panic. A goroutine that keeps leases, has a turn or holds a
// mutex never calls it directly: it queues the call in a Teller, which drops calls rather than wait.
package tell

import (
	"context"
	"runtime/debug"
	"sync"
)

// Teller makes calls one after the other, on a goroutine that ends when the queue is empty.
type Teller struct {
	Panicked func(v any, stack []byte) // called after a call panicked

	mu      sync.Mutex          // guards the following; no other lock is taken under it
	queue   []func(dropped int) // calls not started yet
	dropped int                 // calls dropped since f last got the number
	idle    chan struct{}       // closed when the goroutine ends; nil: there is none
}

// Tell queues a call of f, unless most calls already wait. f gets the number of calls dropped since the previous call.
func (t *Teller) Tell(most int, f func(dropped int)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) >= most {
		t.dropped++
		return
	}
	t.queue = append(t.queue, f)
	if t.idle == nil {
		t.idle = make(chan struct{})
		go t.run() // ends when the queue is empty, or was emptied by Flush and the call under way returns
	}
}

func (t *Teller) run() {
	done := false
	defer func() {
		if !done { // a call has ended the goroutine (runtime.Goexit)
			go t.run() // as the one before
		}
	}()
	for f, dropped := t.next(); f != nil; f, dropped = t.next() {
		t.call(f, dropped)
	}
	done = true
}

func (t *Teller) next() (f func(int), dropped int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		close(t.idle)
		t.queue, t.idle = nil, nil
		return nil, 0
	}
	f, dropped = t.queue[0], t.dropped
	t.queue[0] = nil
	t.queue, t.dropped = t.queue[1:], 0
	return f, dropped
}

func (t *Teller) call(f func(int), dropped int) {
	defer func() {
		if v := recover(); v != nil {
			t.Panicked(v, debug.Stack())
		}
	}()
	f(dropped)
}

// Flush waits until all calls were made. Those that are still queued when ctx is done are dropped.
func (t *Teller) Flush(ctx context.Context) {
	t.mu.Lock()
	idle := t.idle
	t.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-ctx.Done():
		t.mu.Lock()
		t.dropped += len(t.queue)
		t.queue = nil
		t.mu.Unlock()
	}
}
