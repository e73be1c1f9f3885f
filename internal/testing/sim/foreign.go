package sim

import (
	"context"
	"sync"
	"time"
)

// foreign is a ctx of a program's own type. Its methods block for a while during its section, as they do for a mutex that somebody else
// has.
type foreign struct {
	context.Context

	mu   sync.Mutex    // guards gate
	gate chan struct{} // closed when the methods may return; nil: they may
}

// abroad returns the ctx of a Lock, sometimes a foreign one.
func (k *worker) abroad(outer context.Context) (context.Context, *foreign) {
	if at := k.world().plan.Foreign; at == 0 || !k.chance(at) {
		return outer, nil
	}
	f := &foreign{Context: outer}
	return f, f
}

// shut makes the methods block from now on, for a while.
func (f *foreign) shut(k *worker) {
	if f == nil {
		return
	}
	gate := make(chan struct{})
	f.mu.Lock()
	f.gate = gate
	f.mu.Unlock()
	time.AfterFunc(between(k.r, 0, 2*k.world().plan.Watchdog), func() { close(gate) })
}

// wait waits until the methods do not block.
func (f *foreign) wait() {
	if f == nil {
		return
	}
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

func (f *foreign) Done() <-chan struct{} { f.wait(); return f.Context.Done() }
func (f *foreign) Err() error            { f.wait(); return f.Context.Err() }
func (f *foreign) Value(key any) any     { f.wait(); return f.Context.Value(key) }
