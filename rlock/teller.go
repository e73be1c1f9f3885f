package rlock

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-rlock/rlock/lease"
)

// The Logger and the Trace are somebody else's code, which may block or panic. A goroutine that keeps leases, has a turn or holds a mutex
// never calls them: it puts the call in the queue of a teller, which drops calls rather than wait. Acquired, Failed and Released are called
// on the caller's own goroutine, when its Lock or unlock has nothing left to do; see tracing for Waiting.

// teller makes calls one after the other, on a goroutine of its own that ends when there are no more.
type teller struct {
	panicked func(v any, stack []byte) // told of a call that panicked

	mu      sync.Mutex          // guards the following; no other lock is taken under it
	queue   []func(dropped int) // calls that are not under way yet
	dropped int                 // calls since the last one that was told this
	idle    chan struct{}       // closed when the goroutine ends; nil: there is none
}

// Bounds of the queues. While a function hangs, the calls after it cost some 100 bytes each, and those of Renewed some kilobytes.
const (
	maxLines    = 1 << 10 // for the Logger
	maxRenewals = 1 << 10 // replies to renewals, of up to 100 holds each, for the Trace
	maxLosses   = 1 << 16 // for the Trace, those renewals included
)

// lastWords is how long Close waits for the Logger and the Trace.
const lastWords = time.Second

// tell has f called, unless as many calls as that wait already. f is given the number of calls that were dropped since the last one.
func (t *teller) tell(most int, f func(dropped int)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) >= most {
		t.dropped++
		return
	}
	t.queue = append(t.queue, f)
	if t.idle == nil {
		t.idle = make(chan struct{})
		go t.run() // ends when the queue is empty, or was emptied by flush and the call under way returns
	}
}

func (t *teller) run() {
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

func (t *teller) next() (f func(int), dropped int) {
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

func (t *teller) call(f func(int), dropped int) {
	defer func() {
		if v := recover(); v != nil {
			t.panicked(v, debug.Stack())
		}
	}()
	f(dropped)
}

// flush waits until all calls were made. Those that are still queued when ctx is done are dropped.
func (t *teller) flush(ctx context.Context) {
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

// tellers are those of a Client. Each of the two hears of what the other one breaks.
type tellers struct{ logs, traces teller }

func (c *engine) newTellers() {
	c.tellers.logs.panicked = func(v any, stack []byte) { // what would tell of it is what has failed
		fmt.Fprintf(os.Stderr, "rlock: panic in Options.Logger: %v\n%s", v, stack)
	}
	c.tellers.traces.panicked = func(v any, stack []byte) {
		c.log(slog.LevelError, "rlock: panic in Options.Trace", "panic", fmt.Sprint(v), "stack", string(stack))
	}
}

// flush is the end of Close.
func (t *tellers) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	t.traces.flush(ctx) // first: it may have something to log
	t.logs.flush(ctx)
}

func (c *engine) warn(text string, args ...any) {
	if c.options.Logger != nil {
		c.log(slog.LevelWarn, text, args...)
	}
}

// log has a line written, with the time of this call. Without a Logger it goes to slog's default.
func (c *engine) log(level slog.Level, text string, args ...any) {
	var pc [1]uintptr
	runtime.Callers(3, pc[:])
	line := slog.NewRecord(time.Now(), level, text, pc[0])
	line.Add(args...)
	c.tellers.logs.tell(maxLines, func(dropped int) {
		to := c.options.Logger
		if to == nil {
			to = slog.Default()
		}
		if dropped > 0 {
			line.AddAttrs(slog.Int("dropped", dropped))
		}
		if to.Enabled(context.Background(), level) {
			_ = to.Handler().Handle(context.Background(), line)
		}
	})
}

// traced has f called, which calls functions of the Trace.
func (c *engine) traced(most int, f func()) {
	c.tellers.traces.tell(most, func(dropped int) {
		if dropped > 0 {
			c.warn("rlock: Options.Trace is slow, and was not told of all losses and renewals", "dropped", dropped)
		}
		f()
	})
}

// lost tells of the loss of a hold. ctx is that of its section.
func (c *engine) lost(ctx context.Context, kind string, e *LostError) {
	if e.Reason == LostClosed {
		return
	}
	c.stats.lost.Add(1)
	c.warn("rlock: lost", "name", e.Name, "kind", kind, "owner", e.Owner, "since", e.Since, "err", e)
	if t := c.options.Trace; t != nil && t.Lost != nil {
		c.traced(maxLosses, func() { t.Lost(ctx, LostInfo{Kind: kind, Err: e}) })
	}
}

// renewed is told of renewals that were confirmed.
func (c *engine) renewed(renewals []lease.Renewal) {
	least, late := c.options.WatchdogTimeout, 0
	for _, r := range renewals {
		given := c.options.WatchdogTimeout
		if r.Short {
			given = c.grantLease()
		}
		if r.Left < given/3 {
			late++
			least = min(least, r.Left)
		}
	}
	if late > 0 {
		c.warn("rlock: renewals are late", "holds", late, "left", least, "watchdog", c.options.WatchdogTimeout)
	}
	if t := c.options.Trace; t != nil && t.Renewed != nil {
		c.traced(maxRenewals, func() {
			for _, r := range renewals {
				name, kind := r.Keeper.(keeps).lock() //nolint:errcheck // there are no other keepers
				t.Renewed(RenewedInfo{Name: name, Kind: kind, Left: r.Left, Granted: r.Short})
			}
		})
	}
}

// keeps is a keeper that can say which lock its lease is for.
type keeps interface{ lock() (name, kind string) }
