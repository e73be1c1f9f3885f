package rlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/tell"
	"github.com/go-rlock/rlock/lease"
)

// The Logger and the Trace are somebody else's code, which may block or panic. A goroutine that keeps leases, has a turn or holds a mutex
// never calls them: it puts the call in the queue of a teller, which drops calls rather than wait. Acquired, Failed and Released are called
// on the caller's own goroutine, when its Lock or unlock has nothing left to do; see tracing for Waiting.

// Bounds of the queues. While a function hangs, the calls after it cost some 100 bytes each, and those of Renewed some kilobytes.
const (
	maxLines    = 1 << 10 // for the Logger
	maxRenewals = 1 << 10 // replies to renewals, of up to 100 holds each, for the Trace
	maxLosses   = 1 << 16 // for the Trace, those renewals included
)

// lastWords is how long Close waits for the Logger and the Trace.
const lastWords = time.Second

// tellers are those of a Client. Each of the two hears of what the other one breaks.
type tellers struct {
	logger       *slog.Logger
	trace        *Trace
	label        string
	grant        time.Duration // how long leases last that other processes grant
	logs, traces tell.Teller
}

func newTellers(o Options) *tellers {
	t := &tellers{logger: o.Logger, trace: o.Trace, label: o.Label, grant: engine.GrantLease(o.WatchdogTimeout)}
	t.logs.Panicked = func(v any, stack []byte) { // what would tell of it is what has failed
		fmt.Fprintf(os.Stderr, "rlock: panic in Options.Logger: %v\n%s", v, stack)
	}
	t.traces.Panicked = func(v any, stack []byte) {
		t.log(slog.LevelError, "rlock: panic in Options.Trace", "panic", fmt.Sprint(v), "stack", string(stack))
	}
	return t
}

// Panicked has a panic of the Trace logged.
func (t *tellers) Panicked(v any, stack []byte) { t.traces.Panicked(v, stack) }

// Flush is the end of Close.
func (t *tellers) Flush() {
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	t.traces.Flush(ctx) // first: it may have something to log
	t.logs.Flush(ctx)
}

// Warn has a warning logged.
func (t *tellers) Warn(text string, args ...any) {
	if t.logger != nil {
		t.log(slog.LevelWarn, text, args...)
	}
}

// log has a line written, with the time of this call. Without a Logger it goes to slog's default.
func (t *tellers) log(level slog.Level, text string, args ...any) {
	var pc [1]uintptr
	runtime.Callers(3, pc[:])
	line := slog.NewRecord(time.Now(), level, text, pc[0])
	line.Add(args...)
	if t.label != "" {
		line.AddAttrs(slog.String("label", t.label))
	}
	t.logs.Tell(maxLines, func(dropped int) {
		to := t.logger
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
func (t *tellers) traced(most int, f func()) {
	t.traces.Tell(most, func(dropped int) {
		if dropped > 0 {
			t.Warn("rlock: Options.Trace is slow, and was not told of all losses and renewals", "dropped", dropped)
		}
		f()
	})
}

// Lost tells of the loss of a hold. ctx is that of its section.
func (t *tellers) Lost(ctx context.Context, kind string, loss error) {
	var e *LostError
	if !errors.As(loss, &e) { // there are no others
		return
	}
	t.Warn("rlock: lost", "name", e.Name, "kind", kind, "owner", e.Owner, "since", e.Since, "err", e)
	if to := t.trace; to != nil && to.Lost != nil {
		t.traced(maxLosses, func() { to.Lost(ctx, LostInfo{Kind: kind, Err: e}) })
	}
}

// Deadlock tells of a Lock that is the victim of a deadlock, and waits on. ctx was given to it.
func (t *tellers) Deadlock(ctx context.Context, kind string, err error) {
	var e *DeadlockError
	if !errors.As(err, &e) { // there are no others
		return
	}
	t.Warn("rlock: deadlock", "name", e.Name, "kind", kind, "err", e)
	if to := t.trace; to != nil && to.Deadlock != nil {
		t.traced(maxLosses, func() { to.Deadlock(ctx, DeadlockInfo{Kind: kind, Err: e}) })
	}
}

// onRenewal is what is told of renewals; nil if nobody wants to know of them.
func (t *tellers) onRenewal() func([]lease.Renewal) {
	if t.logger == nil && (t.trace == nil || t.trace.Renewed == nil) {
		return nil
	}
	return t.renewed
}

// renewed is told of renewals that were confirmed.
func (t *tellers) renewed(renewals []lease.Renewal) {
	watchdog := renewals[0].TTL // of all that one call renews
	least, late := watchdog, 0
	for _, r := range renewals {
		given := watchdog
		if r.Short {
			given = min(given, t.grant)
		}
		if r.Left < given/3 {
			late++
			least = min(least, r.Left)
		}
	}
	if late > 0 {
		t.Warn("rlock: renewals are late", "holds", late, "left", least, "watchdog", watchdog)
	}
	if to := t.trace; to != nil && to.Renewed != nil {
		t.traced(maxRenewals, func() {
			for _, r := range renewals {
				name, kind := r.Keeper.(engine.About).About() //nolint:errcheck // there are no other keepers
				to.Renewed(RenewedInfo{Name: name, Kind: kind, Left: r.Left, Granted: r.Short})
			}
		})
	}
}
