package rlockotel_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/go-rlock/rlock/internal/testing/redistest"
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
