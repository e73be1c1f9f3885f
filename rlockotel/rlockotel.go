package rlockotel

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-rlock/rlock/rlock"
)

const scope = "github.com/go-rlock/rlock/rlockotel"

// Option is an option of [New].
type Option interface{ apply(*telemetry) }

type optionFunc func(*telemetry)

func (f optionFunc) apply(t *telemetry) { f(t) }

// WithMeterProvider uses p instead of the global provider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(t *telemetry) { t.meters = p })
}

// WithTracerProvider uses p instead of the global provider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return optionFunc(func(t *telemetry) { t.tracers = p })
}

// WithGroup sets the attribute rlock.group, because lock names would be too many. The function is called for each Lock and unlock: it must
// be fast, safe for concurrent use, and return the same group for the same name. It should return at most about a hundred groups, because
// each has its own time series. An [rlock.All] has the group of its locks, or none if they differ.
func WithGroup(group func(name string) string) Option {
	return optionFunc(func(t *telemetry) { t.group = group })
}

// New returns a Trace for [rlock.Options]. Several Clients may share it. It fails if the provider fails to make an instrument.
//
// To add functions of your own, wrap the Trace's functions before you pass it to a Client.
func New(options ...Option) (*rlock.Trace, error) {
	t := &telemetry{meters: otel.GetMeterProvider(), tracers: otel.GetTracerProvider()}
	for _, o := range options {
		o.apply(t)
	}
	t.known.Store(&map[series]*measured{})
	v := version()
	t.spans = t.tracers.Tracer(scope, trace.WithInstrumentationVersion(v))
	if err := t.instruments(t.meters.Meter(scope, metric.WithInstrumentationVersion(v))); err != nil {
		return nil, err
	}
	return &rlock.Trace{
		Waiting: t.waits, Acquired: t.acquired, Passed: t.passed, Failed: t.failed, Released: t.released, Lost: t.lost, Renewed: t.renewed,
	}, nil
}

// telemetry is the state shared by a Trace's functions.
type telemetry struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	group   func(name string) string // nil: none

	spans            trace.Tracer
	acquiring, holds metric.Float64Histogram
	waiting, holding metric.Int64UpDownCounter
	margin           metric.Float64Histogram
	losses, handOffs metric.Int64Counter

	known atomic.Pointer[map[series]*measured] // replaced, never changed
	mu    sync.Mutex                           // for replacing known
}

// durations range from below a round trip to a local Redis to a leader's work.
var durations = metric.WithExplicitBucketBoundaries(
	50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)

// margins include a third, below which a renewal was late. Healthy ones are around two thirds.
var margins = metric.WithExplicitBucketBoundaries(
	0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 1.0/3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 1)

func (t *telemetry) instruments(m metric.Meter) error {
	var errs [7]error
	t.acquiring, errs[0] = m.Float64Histogram("rlock.acquire.duration", durations, metric.WithUnit("s"),
		metric.WithDescription("Duration of calls of Lock and TryLock, and of Await and TryAwait."))
	t.holds, errs[1] = m.Float64Histogram("rlock.hold.duration", durations, metric.WithUnit("s"),
		metric.WithDescription("Time from when Lock returned until unlock was called."))
	t.waiting, errs[2] = m.Int64UpDownCounter("rlock.wait.active", metric.WithUnit("{waiter}"),
		metric.WithDescription("Calls of Lock and TryLock, and of Await and TryAwait, that wait now."))
	t.holding, errs[3] = m.Int64UpDownCounter("rlock.hold.active", metric.WithUnit("{hold}"),
		metric.WithDescription("Holds that have not been unlocked yet."))
	t.margin, errs[4] = m.Float64Histogram("rlock.lease.margin", margins, metric.WithUnit("1"),
		metric.WithDescription("The rest of the lease when a renewal was confirmed, as a share of the watchdog time of the hold."))
	t.losses, errs[5] = m.Int64Counter("rlock.losses", metric.WithUnit("{loss}"),
		metric.WithDescription("Holds that ended before their unlock."))
	t.handOffs, errs[6] = m.Int64Counter("rlock.handoffs", metric.WithUnit("{handoff}"),
		metric.WithDescription("Locks that an unlock handed to the next one, in this process or from another."))
	return errors.Join(errs[:]...)
}

func (t *telemetry) waits(ctx context.Context, i rlock.WaitingInfo) {
	t.waiting.Add(ctx, 1, t.of(t.lock(i.Kind, i.Name, i.Names...)).add...)
}

func (t *telemetry) acquired(ctx context.Context, i rlock.AcquiredInfo) {
	lock := t.lock(i.Kind, i.Name, i.Names...)
	s := lock
	s.outcome, s.path = "acquired", i.Path.String()
	t.acquiring.Record(ctx, i.Waited.Seconds(), t.of(s).record...)
	if i.Path != rlock.PathReentry {
		t.holding.Add(ctx, 1, t.of(lock).add...)
	}
	if i.Path == rlock.PathHandOff || i.Path == rlock.PathGrant {
		handed := lock
		handed.path = s.path
		t.handOffs.Add(ctx, 1, t.of(handed).add...)
	}
	if i.WasWaiting {
		t.waiting.Add(ctx, -1, t.of(lock).add...)
		t.span(ctx, i.Name, s, i.Waited, nil, trace.SpanContextFromContext(i.By))
	}
}

func (t *telemetry) passed(ctx context.Context, i rlock.PassedInfo) {
	latch := t.lock(i.Kind, i.Name)
	s := latch
	s.outcome, s.path = "acquired", rlock.PathFree.String()
	if i.WasWaiting {
		s.path = rlock.PathWoken.String()
	}
	t.acquiring.Record(ctx, i.Waited.Seconds(), t.of(s).record...)
	if i.WasWaiting {
		t.waiting.Add(ctx, -1, t.of(latch).add...)
		t.span(ctx, i.Name, s, i.Waited, nil, trace.SpanContext{})
	}
}

func (t *telemetry) failed(ctx context.Context, i rlock.FailedInfo) {
	lock := t.lock(i.Kind, i.Name, i.Names...)
	s := lock
	s.outcome, s.errorType = "error", errorType(i.Err)
	if errors.Is(i.Err, rlock.ErrNotAcquired) && !errors.Is(i.Err, rlock.ErrUnreachable) {
		s.outcome = "not_acquired"
	}
	t.acquiring.Record(ctx, i.Waited.Seconds(), t.of(s).record...)
	if i.WasWaiting {
		t.waiting.Add(ctx, -1, t.of(lock).add...)
		t.span(ctx, i.Name, s, i.Waited, i.Err, trace.SpanContext{})
	}
}

func (t *telemetry) released(ctx context.Context, i rlock.ReleasedInfo) {
	if i.Path == rlock.PathReentry {
		return
	}
	s := t.lock(i.Kind, i.Name, i.Names...)
	t.holding.Add(ctx, -1, t.of(s).add...)
	s.errorType = errorType(i.Err)
	t.holds.Record(ctx, i.Held.Seconds(), t.of(s).record...)
}

func (t *telemetry) lost(ctx context.Context, i rlock.LostInfo) {
	s := t.lock(i.Kind, i.Err.Name)
	switch i.Err.Reason {
	case rlock.LostExpired:
		s.errorType = "expired"
	case rlock.LostGone:
		s.errorType = "gone"
	case rlock.LostMaxHold:
		s.errorType = "max_hold"
	default:
		s.errorType = other
	}
	t.losses.Add(ctx, 1, t.of(s).add...)
}

func (t *telemetry) renewed(i rlock.RenewedInfo) {
	s := t.lock(i.Kind, i.Name)
	if i.Granted {
		s.path = rlock.PathGrant.String()
	}
	t.margin.Record(context.Background(), float64(i.Left)/float64(i.Watchdog), t.of(s).record...)
}

// span records a finished Lock that waited. by is the span of the section that handed the lock over.
func (t *telemetry) span(ctx context.Context, name string, s series, waited time.Duration, err error, by trace.SpanContext) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return
	}
	now := time.Now()
	attributes := append(s.attributes(), attribute.String("rlock.name", name))
	var refused *rlock.NotAcquiredError
	if errors.As(err, &refused) && refused.Holder != "" {
		attributes = append(attributes, attribute.String("rlock.holder", refused.Holder))
		if refused.HolderLabel != "" {
			attributes = append(attributes, attribute.String("rlock.holder.label", refused.HolderLabel))
		}
	}
	options := []trace.SpanStartOption{trace.WithTimestamp(now.Add(-waited)), trace.WithAttributes(attributes...)}
	if by.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: by}))
	}
	_, span := t.spans.Start(ctx, "rlock.acquire", options...)
	if s.errorType != "" {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(trace.WithTimestamp(now))
}

const other = "_OTHER" // the conventions' value for an error without its own type

// errorTypes are ordered from the most specific: the first match wins.
var errorTypes = []struct {
	is   error
	name string
}{
	{rlock.ErrDeadlock, "deadlock"},
	{rlock.ErrUnreachable, "unreachable"},
	{rlock.ErrClosed, "closed"},
	{rlock.ErrLost, "lost"},
	{rlock.ErrNotReplicated, "not_replicated"},
	{rlock.ErrReentry, "reentry"},
	{rlock.ErrUpgrade, "upgrade"},
	{context.DeadlineExceeded, "deadline_exceeded"},
	{context.Canceled, "canceled"},
	{rlock.ErrNotAcquired, ""}, // TryLock's wait ran out as requested
	{rlock.ErrNotHeld, "not_held"},
}

func errorType(err error) string {
	if err == nil {
		return ""
	}
	for _, e := range errorTypes {
		if errors.Is(err, e.is) {
			return e.name
		}
	}
	return other
}

// series is one set of attributes; "" leaves an attribute out.
type series struct{ kind, group, outcome, path, errorType string }

// lock returns the series of a lock. of has the names of an All's locks.
func (t *telemetry) lock(kind, name string, of ...string) series {
	s := series{kind: kind}
	switch {
	case t.group == nil:
	case len(of) == 0:
		s.group = t.group(name)
	default:
		s.group = t.group(of[0])
		for _, name := range of[1:] {
			if t.group(name) != s.group {
				s.group = ""
				break
			}
		}
	}
	return s
}

func (s series) attributes() (all []attribute.KeyValue) {
	for _, a := range [...]struct{ key, value string }{
		{"rlock.kind", s.kind}, {"rlock.group", s.group}, {"rlock.outcome", s.outcome}, {"rlock.path", s.path}, {"error.type", s.errorType},
	} {
		if a.value != "" {
			all = append(all, attribute.String(a.key, a.value))
		}
	}
	return all
}

// measured holds a series' options for the instruments. Making them anew for each call would dominate the cost.
type measured struct {
	record []metric.RecordOption
	add    []metric.AddOption
}

// maxKnown bounds the cache if every name is its own group. The SDK has its own limit, 2000 per metric.
const maxKnown = 1000

func (t *telemetry) of(s series) *measured {
	if m := (*t.known.Load())[s]; m != nil {
		return m
	}
	set := metric.WithAttributeSet(attribute.NewSet(s.attributes()...))
	m := &measured{record: []metric.RecordOption{set}, add: []metric.AddOption{set}}
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := *t.known.Load(); len(known) < maxKnown {
		known = maps.Clone(known)
		known[s] = m
		t.known.Store(&known)
	}
	return m
}
