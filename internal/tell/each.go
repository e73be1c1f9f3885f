package tell

import (
	"context"
	"runtime/debug"
	"sync"
)

// Each makes calls at once, each on a goroutine of its own: one that blocks delays no other.
type Each struct {
	Panicked func(v any, stack []byte) // called after a call panicked

	mu      sync.Mutex    // guards the following; no other lock is taken under it
	running int           // calls under way
	idle    chan struct{} // closed when there are none; nil: nobody waits for that
}

// Go calls f.
func (e *Each) Go(f func()) {
	e.mu.Lock()
	e.running++
	e.mu.Unlock()
	go func() { // ends with f
		defer e.ended()
		defer func() {
			if v := recover(); v != nil {
				e.Panicked(v, debug.Stack())
			}
		}()
		f()
	}()
}

func (e *Each) ended() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running--; e.running == 0 && e.idle != nil {
		close(e.idle)
		e.idle = nil
	}
}

// Flush waits until no call is under way, or ctx is done.
func (e *Each) Flush(ctx context.Context) {
	e.mu.Lock()
	if e.running > 0 && e.idle == nil {
		e.idle = make(chan struct{})
	}
	idle := e.idle
	e.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-ctx.Done():
	}
}
