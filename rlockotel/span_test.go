package rlockotel_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidisotel"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

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
		require.Empty(t, e.spans.GetSpans(), "no Lock waited")
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
