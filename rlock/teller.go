package rlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/go-rlock/rlock/internal/tell"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lease"
)

// The Logger and the Trace are foreign code, which may block or panic. A goroutine that keeps leases, has a turn or holds a mutex never
// calls them: it queues the call at a teller, which drops calls rather than wait. Acquired, Failed and Released run on the caller's own
// goroutine, when its Lock or unlock has nothing left to do; see tracing for Waiting.

// Limits of the queues. While a function hangs, each queued call takes about 100 bytes, those of Renewed some kilobytes.
const (
	maxLines    = 1 << 10 // for the Logger
	maxRenewals = 1 << 10 // for the Trace: replies to renewals, of up to 100 holds each
	maxLosses   = 1 << 16 // for the Trace, including those renewals
)

// lastWords is how long Close waits for the Logger and the Trace.
const lastWords = time.Second

// tellers calls the Logger and the Trace of a Client. A panic of the Trace goes to the Logger, a panic of the Logger to stderr.
type tellers struct {
	logger       *slog.Logger
	trace        *Trace
	label        string
	grant        time.Duration // lease of a lock handed over by another process
	logs, traces tell.Teller
}

func newTellers(o Options) *tellers {
	t := &tellers{logger: o.Logger, trace: o.Trace, label: o.Label, grant: tenure.GrantLease(o.WatchdogTimeout)}
	t.logs.Panicked = func(v any, stack []byte) { // the Logger itself has failed
		fmt.Fprintf(os.Stderr, "rlock: panic in Options.Logger: %v\n%s", v, stack)
	}
	t.traces.Panicked = func(v any, stack []byte) {
		t.log(slog.LevelError, "rlock: panic in Options.Trace", "panic", fmt.Sprint(v), "stack", string(stack))
	}
	return t
}

// noClient speaks for locks of other packages.
var noClient = newTellers(Options{})

// Panicked logs a panic of the Trace.
func (t *tellers) Panicked(v any, stack []byte) { t.traces.Panicked(v, stack) }

// Flush is the last step of Close. It waits for queued calls.
func (t *tellers) Flush() {
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	t.traces.Flush(ctx) // first, because it may log
	t.logs.Flush(ctx)
}

// Warn logs a warning. Without a Logger it does nothing.
func (t *tellers) Warn(text string, args ...any) {
	if t.logger != nil {
		t.log(slog.LevelWarn, text, args...)
	}
}

// log queues a line with the time of this call. Without a Logger it goes to slog's default.
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

func (t *tellers) traced(most int, f func()) {
	t.traces.Tell(most, func(dropped int) {
		if dropped > 0 {
			t.Warn("rlock: Options.Trace is slow, and was not told of all losses and renewals", "dropped", dropped)
		}
		f()
	})
}

// Lost reports the loss of a hold. ctx is its section's.
func (t *tellers) Lost(ctx context.Context, kind string, loss error) {
	var e *LostError
	if !errors.As(loss, &e) { // always true
		return
	}
	t.Warn("rlock: lost", "name", e.Name, "kind", kind, "owner", e.Owner, "since", e.Since, "err", e)
	if to := t.trace; to != nil && to.Lost != nil {
		t.traced(maxLosses, func() { to.Lost(ctx, LostInfo{Kind: kind, Err: e}) })
	}
}

// Deadlock reports a Lock that is the victim of a deadlock but keeps waiting. ctx was passed to that Lock.
func (t *tellers) Deadlock(ctx context.Context, kind string, err error) {
	var e *DeadlockError
	if !errors.As(err, &e) { // always true
		return
	}
	t.Warn("rlock: deadlock", "name", e.Name, "kind", kind, "err", e)
	if to := t.trace; to != nil && to.Deadlock != nil {
		t.traced(maxLosses, func() { to.Deadlock(ctx, DeadlockInfo{Kind: kind, Err: e}) })
	}
}

// onRenewal returns the function to call after renewals; nil if neither the Logger nor the Trace needs it.
func (t *tellers) onRenewal() func([]lease.Renewal) {
	if t.logger == nil && (t.trace == nil || t.trace.Renewed == nil) {
		return nil
	}
	return t.renewed
}

func (t *tellers) renewed(renewals []lease.Renewal) {
	watchdog := renewals[0].TTL // the same for all renewals of a call
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
				name, kind := r.Keeper.(tenure.About).About() //nolint:errcheck // there are no other keepers
				to.Renewed(RenewedInfo{Name: name, Kind: kind, Left: r.Left, Watchdog: r.TTL, Granted: r.Short})
			}
		})
	}
}
