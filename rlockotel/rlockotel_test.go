package rlockotel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidisotel"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
	"github.com/go-rlock/rlock/rlockotel"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const atMost = 10 * time.Second

// telemetry collects measurements and spans.
type telemetry struct {
	reader  *metric.ManualReader
	meters  *metric.MeterProvider
	spans   *tracetest.InMemoryExporter
	tracers *sdktrace.TracerProvider
	trace   *rlock.Trace
}

func newTelemetry(t testing.TB) *telemetry {
	t.Helper()
	e := &telemetry{reader: metric.NewManualReader(), spans: tracetest.NewInMemoryExporter()}
	e.meters = metric.NewMeterProvider(metric.WithReader(e.reader))
	e.tracers = sdktrace.NewTracerProvider(sdktrace.WithSyncer(e.spans))
	var err error
	e.trace, err = rlockotel.New(
		rlockotel.WithMeterProvider(e.meters), rlockotel.WithTracerProvider(e.tracers), rlockotel.WithGroup(group))
	require.NoError(t, err)
	return e
}

func group(name string) string {
	before, _, _ := strings.Cut(name, ":")
	return before
}

// metrics returns the points of all metrics: sums, and counts of histograms.
func (e *telemetry) metrics(t testing.TB) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, e.reader.Collect(context.Background(), &all))
	points := make(map[string]int64)
	for _, s := range all.ScopeMetrics {
		if s.Scope.Name != "github.com/go-rlock/rlock/rlockotel" {
			continue
		}
		for _, m := range s.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					points[point(m.Name, p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					points[point(m.Name, p.Attributes)] = int64(p.Count)
				}
			}
		}
	}
	return points
}

// point is "acquire.duration kind=mutex path=free".
func point(name string, attributes attribute.Set) string {
	text := name
	for _, a := range attributes.ToSlice() {
		text += " " + string(a.Key) + "=" + a.Value.AsString()
	}
	return strings.ReplaceAll(text, "rlock.", "")
}

// span returns the only span of that name.
func (e *telemetry) span(t testing.TB, name string) tracetest.SpanStub {
	t.Helper()
	var found []tracetest.SpanStub
	for _, s := range e.spans.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	require.Len(t, found, 1, name)
	return found[0]
}

func (e *telemetry) client(t testing.TB, rdb rueidis.Client, o rlock.Options) *rlock.Client {
	t.Helper()
	o.Trace = e.trace
	c, err := rlock.New(rdb, o)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// name has the group order.
func name(t testing.TB) string { return "order:" + redistest.Name(t) }

// section is the result of a Lock.
type section struct {
	ctx    context.Context
	unlock rlock.UnlockFunc
	err    error
}

// lockWaiting is a Lock that waits.
func lockWaiting(ctx context.Context, t testing.TB, c *rlock.Client, l rlock.Locker) <-chan section {
	t.Helper()
	before, got := c.Stats().Waiting, make(chan section, 1)
	go func() { // ends with the Lock, which waits for a section of the test
		var s section
		s.ctx, s.unlock, s.err = l.Lock(ctx)
		got <- s
	}()
	redistest.Eventually(t, atMost, func() bool { return c.Stats().Waiting == before+1 }, "it waits")
	return got
}

// Each outcome of a Lock is counted once; up-down counters return to zero.
func TestMetrics(t *testing.T) {
	ctx := context.Background()
	e, rdb := newTelemetry(t), redistest.Dial(t, redistest.Shared(t))
	c := e.client(t, rdb, rlock.Options{})
	m := c.Mutex(name(t))

	inner, unlock, err := m.Lock(ctx)
	require.NoError(t, err)
	require.NoError(t, m.Do(inner, func(context.Context) error { return nil }))
	_, _, err = m.TryLock(ctx, 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	_, _, err = m.TryLock(ctx, time.Millisecond)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	bounded, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, _, err = m.Lock(bounded)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	next := lockWaiting(ctx, t, c, m)
	cancelled, cancel := context.WithCancel(ctx)
	last := lockWaiting(cancelled, t, c, m)
	now := e.metrics(t)
	require.Equal(t, int64(2), now["wait.active group=order kind=mutex"])
	require.Equal(t, int64(1), now["hold.active group=order kind=mutex"])
	cancel()
	require.ErrorIs(t, (<-last).err, context.Canceled)
	require.NoError(t, unlock())
	got := <-next
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())

	const acquire = "acquire.duration "
	want := map[string]int64{
		acquire + "group=order kind=mutex outcome=acquired path=free":                        1,
		acquire + "group=order kind=mutex outcome=acquired path=reentry":                     1,
		acquire + "group=order kind=mutex outcome=not_acquired":                              2,
		acquire + "error.type=deadline_exceeded group=order kind=mutex outcome=not_acquired": 1,
		acquire + "error.type=canceled group=order kind=mutex outcome=not_acquired":          1,
		"hold.duration group=order kind=mutex":                                               2,
		"hold.active group=order kind=mutex":                                                 0,
		"wait.active group=order kind=mutex":                                                 0,
	}
	path := "woken" // if it asked at the moment of the unlock
	switch stats := c.Stats(); {
	case stats.HandOffs == 1:
		path = "handoff"
	case stats.Grants == 1:
		path = "grant"
	}
	want[acquire+"group=order kind=mutex outcome=acquired path="+path] = 1
	if path != "woken" {
		want["handoffs group=order kind=mutex path="+path] = 1
	}
	require.Equal(t, want, e.metrics(t))
}

// A process gets another process's lock: granted, or woken.
func TestMetricsOfTwoProcesses(t *testing.T) {
	ctx := context.Background()
	e, rdb := newTelemetry(t), redistest.Dial(t, redistest.Shared(t))
	one, two := newTelemetry(t).client(t, rdb, rlock.Options{}), e.client(t, rdb, rlock.Options{})
	lock := name(t)
	_, unlock, err := one.Mutex(lock).Lock(ctx)
	require.NoError(t, err)
	next := lockWaiting(ctx, t, two, two.Mutex(lock))
	redistest.Eventually(t, atMost, func() bool {
		n, err := rdb.Do(ctx, rdb.B().Exists().Key("rlock_queue:{"+lock+"}").Build()).AsInt64()
		return err == nil && n == 1
	}, "in the queue")
	require.NoError(t, unlock())
	got := <-next
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())

	granted := two.Stats().Grants // 0, if the place was old on a slow machine
	now := e.metrics(t)
	require.Equal(t, granted > 0, now["handoffs group=order kind=mutex path=grant"] == 1)
	require.Equal(t, granted > 0, now["acquire.duration group=order kind=mutex outcome=acquired path=grant"] == 1)
	require.Equal(t, granted == 0, now["acquire.duration group=order kind=mutex outcome=acquired path=woken"] == 1)
	require.Zero(t, now["wait.active group=order kind=mutex"])
	require.Zero(t, now["hold.active group=order kind=mutex"])
}

// Up-down counters use the same kind for both directions, with any lock.
func TestMetricsOfEachKind(t *testing.T) {
	ctx := context.Background()
	e, rdb := newTelemetry(t), redistest.Dial(t, redistest.Shared(t))
	c := e.client(t, rdb, rlock.Options{})
	lock := name(t)
	rw := c.RWMutex(lock + ":rw")
	var quorum []rlock.Locker
	for range 3 {
		server := redistest.Start(t)
		quorum = append(quorum, e.client(t, server.Client(t), rlock.Options{}).Mutex(lock))
	}
	kinds := map[string]rlock.Locker{
		"mutex": c.Mutex(lock), "fenced": c.FencedMutex(lock), "fair": c.FairMutex(lock),
		"read": rw.Read(), "write": rw.Write(), "upgradeable": rw.Upgradeable(),
		"all": rlock.All(c.Mutex(lock), c.FencedMutex(lock+":2")), "quorum": rlock.Quorum(quorum...),
	}
	for kind, l := range kinds {
		_, unlock, err := l.Lock(ctx)
		require.NoError(t, err)
		point := "hold.active group=order kind=" + kind
		require.Equal(t, int64(1), e.metrics(t)[point], "%s in %v", point, e.metrics(t))
		require.NoError(t, unlock())
		require.Equal(t, int64(0), e.metrics(t)[point])
	}
	writer, _, err := rw.Write().Lock(ctx)
	require.NoError(t, err)
	_, unlock, err := rw.Downgrade(writer)
	require.NoError(t, err)
	require.Equal(t, int64(1), e.metrics(t)["hold.active group=order kind=read"])
	require.Equal(t, int64(0), e.metrics(t)["hold.active group=order kind=write"])
	require.NoError(t, unlock())
	require.Equal(t, int64(0), e.metrics(t)["hold.active group=order kind=read"])

	latch := c.CountDownLatch(lock + ":latch")
	require.NoError(t, latch.Await(ctx))
	_, err = latch.TrySetCount(ctx, 1)
	require.NoError(t, err)
	opened := make(chan error)
	go func() { opened <- latch.Await(ctx) }() // ends with the CountDown
	redistest.Eventually(t, atMost, func() bool { return e.metrics(t)["wait.active group=order kind=latch"] == 1 }, "it waits")
	require.ErrorIs(t, latch.TryAwait(ctx, 0), rlock.ErrNotAcquired)
	require.NoError(t, latch.CountDown(ctx))
	require.NoError(t, <-opened)
	now := e.metrics(t)
	require.Zero(t, now["wait.active group=order kind=latch"])
	require.Equal(t, int64(1), now["acquire.duration group=order kind=latch outcome=acquired path=free"])
	require.Equal(t, int64(1), now["acquire.duration group=order kind=latch outcome=acquired path=woken"])
	require.Equal(t, int64(1), now["acquire.duration group=order kind=latch outcome=not_acquired"])
	require.NotContains(t, now, "hold.active group=order kind=latch", "nobody holds it")

	mixed := rlock.All(c.Mutex(lock), c.Mutex("user:"+lock))
	_, unlock, err = mixed.Lock(ctx)
	require.NoError(t, err)
	_, _, err = mixed.TryLock(ctx, 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.Equal(t, int64(1), e.metrics(t)["hold.active kind=all"], "of no group")
	require.Equal(t, int64(1), e.metrics(t)["acquire.duration kind=all outcome=not_acquired"])
	require.NoError(t, unlock())
	require.Equal(t, int64(0), e.metrics(t)["hold.active kind=all"])
}

// A reader admitted under a writer has its own hold, counted until its own unlock, whichever of the two ends first.
func TestMetricsOfAReaderInAWriter(t *testing.T) {
	e := newTelemetry(t)
	rw := e.client(t, redistest.Dial(t, redistest.Shared(t)), rlock.Options{}).RWMutex(name(t))
	for kind, reads := range map[string]rlock.Locker{"read": rw.Read(), "upgradeable": rw.Upgradeable()} {
		writer, unlockWriter, err := rw.Write().Lock(context.Background())
		require.NoError(t, err)
		reader, unlockReader, err := reads.Lock(context.WithoutCancel(writer))
		require.NoError(t, err)
		_, unlockInner, err := rw.Read().Lock(reader)
		require.NoError(t, err)
		active := func() int64 { return e.metrics(t)["hold.active group=order kind="+kind] }
		require.NoError(t, unlockWriter())
		require.Equal(t, int64(1), active(), kind)
		require.NoError(t, unlockInner())
		require.Equal(t, int64(1), active(), kind)
		require.NoError(t, unlockReader())
		require.Zero(t, active(), kind)
		require.Zero(t, e.metrics(t)["hold.active group=order kind=write"])
	}
}

// Renewal margins are measured, and losses are counted by reason.
func TestMetricsOfLosses(t *testing.T) {
	ctx := context.Background()
	e, rdb := newTelemetry(t), redistest.Dial(t, redistest.Shared(t))
	c := e.client(t, rdb, rlock.Options{WatchdogTimeout: 3 * time.Second})
	lock := name(t)

	inner, unlock, err := c.Mutex(lock).Lock(ctx)
	require.NoError(t, err)
	redistest.Eventually(t, atMost, func() bool { return e.metrics(t)["lease.margin group=order kind=mutex"] > 0 }, "renewed")
	_, err = c.Mutex(lock).ForceUnlock(ctx)
	require.NoError(t, err)
	<-inner.Done()
	require.ErrorIs(t, unlock(), rlock.ErrLost)

	for _, o := range []rlock.Option{rlock.WithLease(500 * time.Millisecond), rlock.WithMaxHold(500 * time.Millisecond)} {
		require.ErrorIs(t, c.Mutex(lock, o).Do(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil }), rlock.ErrLost)
	}
	for _, reason := range []string{"gone", "expired", "max_hold"} { // reported after the section's ctx was cancelled
		point := "losses error.type=" + reason + " group=order kind=mutex"
		redistest.Eventually(t, atMost, func() bool { return e.metrics(t)[point] == 1 }, reason)
	}
	now := e.metrics(t)
	require.Equal(t, int64(3), now["hold.duration error.type=lost group=order kind=mutex"])
	require.Zero(t, now["hold.active group=order kind=mutex"])
}

// Units and buckets follow the conventions.
func TestInstruments(t *testing.T) {
	e, rdb := newTelemetry(t), redistest.Dial(t, redistest.Shared(t))
	c := e.client(t, rdb, rlock.Options{WatchdogTimeout: 3 * time.Second})
	require.NoError(t, c.Mutex(name(t)).Do(context.Background(), func(context.Context) error {
		redistest.Eventually(t, atMost, func() bool { return e.metrics(t)["lease.margin group=order kind=mutex"] > 0 }, "renewed")
		return nil
	}))
	e.trace.Lost(context.Background(), rlock.LostInfo{Err: &rlock.LostError{}})
	e.trace.Renewed(rlock.RenewedInfo{Granted: true})
	require.Equal(t, int64(1), e.metrics(t)["lease.margin path=grant"])
	e.trace.Waiting(context.Background(), rlock.WaitingInfo{})
	e.trace.Acquired(context.Background(), rlock.AcquiredInfo{Path: rlock.PathGrant})
	var all metricdata.ResourceMetrics
	require.NoError(t, e.reader.Collect(context.Background(), &all))
	units := make(map[string]string)
	for _, m := range all.ScopeMetrics[0].Metrics {
		units[m.Name] = m.Unit
		if h, ok := m.Data.(metricdata.Histogram[float64]); ok {
			first := 50e-6
			if m.Name == "rlock.lease.margin" {
				first = 25e-3
				require.Less(t, h.DataPoints[0].Sum/float64(h.DataPoints[0].Count), 3.0, "in seconds")
			}
			require.InDelta(t, first, h.DataPoints[0].Bounds[0], 1e-9, m.Name)
		}
		require.NotEmpty(t, m.Description)
	}
	require.Equal(t, map[string]string{
		"rlock.acquire.duration": "s", "rlock.hold.duration": "s", "rlock.lease.margin": "s", "rlock.wait.active": "{waiter}",
		"rlock.hold.active": "{hold}", "rlock.losses": "{loss}", "rlock.handoffs": "{handoff}",
	}, units)
}

// There are few error types, and the most specific one is used.
func TestErrorTypes(t *testing.T) {
	e := newTelemetry(t)
	join := func(errs ...error) error { return fmt.Errorf("rlock: %w", errors.Join(errs...)) }
	types := map[string]error{
		"error.type=unreachable outcome=error":              join(rlock.ErrNotAcquired, context.Canceled, rlock.ErrUnreachable),
		"error.type=closed outcome=error":                   join(rlock.ErrClosed),
		"error.type=lost outcome=error":                     join(rlock.ErrNotHeld, rlock.ErrLost),
		"error.type=not_held outcome=error":                 join(rlock.ErrNotHeld),
		"error.type=not_replicated outcome=error":           join(rlock.ErrNotReplicated),
		"error.type=reentry outcome=error":                  join(rlock.ErrReentry),
		"error.type=upgrade outcome=error":                  join(rlock.ErrUpgrade),
		"error.type=deadline_exceeded outcome=not_acquired": join(rlock.ErrNotAcquired, context.DeadlineExceeded),
		"error.type=canceled outcome=not_acquired":          join(rlock.ErrNotAcquired, context.Canceled),
		"outcome=not_acquired":                              join(rlock.ErrNotAcquired),
		"error.type=_OTHER outcome=error":                   join(errors.New("WRONGTYPE")),
	}
	for _, err := range types {
		e.trace.Failed(context.Background(), rlock.FailedInfo{Err: err})
	}
	now := e.metrics(t)
	require.Len(t, now, len(types))
	for attributes := range types {
		require.Equal(t, int64(1), now["acquire.duration "+attributes], "%s in %v", attributes, now)
	}
}

// With a group per name, everything is measured, but the cache stays bounded.
func TestTooManyGroups(t *testing.T) {
	e := newTelemetry(t)
	for i := range 2500 {
		e.trace.Released(context.Background(), rlock.ReleasedInfo{Kind: "mutex", Name: fmt.Sprint(i)})
	}
	var sum int64
	for point, n := range e.metrics(t) {
		if strings.HasPrefix(point, "hold.duration") {
			sum += n
		}
	}
	require.Equal(t, int64(2500), sum)
}

// By default the providers are the global ones, which do nothing unless set.
func TestGlobalProviders(t *testing.T) {
	trace, err := rlockotel.New()
	require.NoError(t, err)
	c, err := rlock.New(redistest.Dial(t, redistest.Shared(t)), rlock.Options{Trace: trace})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Mutex(name(t)).Do(context.Background(), func(context.Context) error { return nil }))
}

// A Lock that waited makes a span, a child of its caller's, linked to the section that handed the lock over.
func TestSpanOfAContendedLock(t *testing.T) {
	e, rdb := newTelemetry(t), redistest.Dial(t, redistest.Shared(t))
	c := e.client(t, rdb, rlock.Options{})
	m := c.Mutex(name(t))
	tracer := e.tracers.Tracer("app")
	first, firstSpan := tracer.Start(context.Background(), "first")
	second, secondSpan := tracer.Start(context.Background(), "second")

	var waited time.Duration
	acquired := e.trace.Acquired
	e.trace.Acquired = func(ctx context.Context, i rlock.AcquiredInfo) {
		waited = i.Waited
		acquired(ctx, i)
	}
	var began, unlocks time.Time
	var got section
	for { // until the lock is handed over, which needs a waiter that is not asking Redis at the moment of the unlock
		_, unlock, err := m.Lock(first)
		require.NoError(t, err)
		require.Empty(t, e.spans.GetSpans(), "nobody waited")
		began = time.Now()
		next := lockWaiting(second, t, c, m)
		unlocks = time.Now()
		require.NoError(t, unlock())
		got = <-next
		require.NoError(t, got.err)
		if c.Stats().HandOffs > 0 {
			break
		}
		require.Empty(t, e.span(t, "rlock.acquire").Links)
		require.NoError(t, got.unlock())
		e.spans.Reset()
	}
	require.Equal(t, secondSpan, trace.SpanFromContext(got.ctx), "the section is the caller's")

	s := e.span(t, "rlock.acquire")
	require.Equal(t, secondSpan.SpanContext().SpanID(), s.Parent.SpanID())
	require.Len(t, s.Links, 1)
	require.Equal(t, firstSpan.SpanContext().SpanID(), s.Links[0].SpanContext.SpanID())
	require.False(t, s.StartTime.Before(began))
	require.WithinRange(t, s.EndTime, unlocks, time.Now())
	require.InDelta(t, waited, s.EndTime.Sub(s.StartTime), float64(time.Microsecond))
	require.Equal(t, "acquire group=order kind=mutex name="+m.Name()+" outcome=acquired path=handoff",
		point("acquire", attribute.NewSet(s.Attributes...)))
	require.Equal(t, codes.Unset, s.Status.Code)

	e.spans.Reset()
	_, _, err := m.TryLock(second, time.Millisecond)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	s = e.span(t, "rlock.acquire")
	require.Contains(t, s.Attributes, attribute.String("rlock.outcome", "not_acquired"))
	require.Equal(t, codes.Unset, s.Status.Code, "as it was asked to be")
	e.spans.Reset()
	cancelled, cancel := context.WithCancel(second)
	last := lockWaiting(cancelled, t, c, m)
	cancel()
	err = (<-last).err
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, sdktrace.Status{Code: codes.Error, Description: err.Error()}, e.span(t, "rlock.acquire").Status)

	e.spans.Reset()
	e.trace.Failed(second, rlock.FailedInfo{WasWaiting: true, Err: &rlock.NotAcquiredError{Holder: "9b1f0c1e:1", HolderLabel: "pod-7"}})
	require.Contains(t, e.span(t, "rlock.acquire").Attributes, attribute.String("rlock.holder", "9b1f0c1e:1"))
	require.Contains(t, e.span(t, "rlock.acquire").Attributes, attribute.String("rlock.holder.label", "pod-7"))

	e.spans.Reset()
	last = lockWaiting(context.Background(), t, c, m) // without a span
	_, _, err = m.TryLock(second, 0)                  // without a wait
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.NoError(t, got.unlock())
	got = <-last
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
	require.Empty(t, e.spans.GetSpans())
}

// rueidisotel's command spans belong to the caller's trace, like the wait's span. The process's own commands, such as subscriptions, belong to
// none.
func TestBesideRueidisotel(t *testing.T) {
	e := newTelemetry(t)
	rdb, err := rueidisotel.NewClient(rueidis.ClientOption{InitAddress: []string{redistest.Shared(t)}},
		rueidisotel.WithTracerProvider(e.tracers), rueidisotel.WithMeterProvider(e.meters))
	require.NoError(t, err)
	t.Cleanup(rdb.Close)
	c := e.client(t, rdb, rlock.Options{})
	m := c.Mutex(name(t))
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil })) // the scripts are loaded from here on
	tracer := e.tracers.Tracer("app")
	first, firstSpan := tracer.Start(context.Background(), "first")
	second, secondSpan := tracer.Start(context.Background(), "second")
	second, cancel := context.WithCancel(second)
	defer cancel()

	_, unlock, err := m.Lock(first)
	require.NoError(t, err)
	next := lockWaiting(second, t, c, m)
	require.NoError(t, unlock()) // which hands it over
	got := <-next
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())

	spans := make(map[trace.SpanID]map[string]int)
	for _, s := range e.spans.GetSpans() {
		parent := s.Parent.SpanID()
		if spans[parent] == nil {
			spans[parent] = make(map[string]int)
		}
		spans[parent][s.Name]++
	}
	require.Equal(t, map[string]int{"EVALSHA": 2}, spans[firstSpan.SpanContext().SpanID()])
	seconds := spans[secondSpan.SpanContext().SpanID()]
	require.Equal(t, 1, seconds["rlock.acquire"])
	require.GreaterOrEqual(t, seconds["EVALSHA"], 1) // its unlock, and maybe a query before
}
