package rlockotel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
	"github.com/go-rlock/rlock/rlockotel"
)

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
	// A Lock is heard of as it begins to wait, which may be before it is counted.
	redistest.Eventually(t, time.Minute, func() bool { return e.metrics(t)["wait.active group=order kind=mutex"] == 2 }, "both are counted")
	require.Equal(t, int64(1), e.metrics(t)["hold.active group=order kind=mutex"])
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

// A lock that the process kept, and one from a ticket, were not waited for.
func TestMetricsWithoutAWait(t *testing.T) {
	ctx := context.Background()
	e := newTelemetry(t)
	c := e.client(t, redistest.Dial(t, redistest.Shared(t)), rlock.Options{})
	m := c.Mutex(name(t), rlock.WithLinger(time.Minute))
	redistest.Eventually(t, atMost, func() bool {
		require.NoError(t, m.Do(ctx, func(context.Context) error { return nil }))
		return c.Stats().Kept > 0
	}, "it is kept, once the Client can be asked for it")
	section, _, err := c.Mutex(name(t)).Lock(ctx)
	require.NoError(t, err)
	ticket, err := rlock.Export(section)
	require.NoError(t, err)
	_, unlock, err := c.Adopt(ctx, ticket)
	require.NoError(t, err)
	require.NoError(t, unlock())

	now := e.metrics(t)
	require.EqualValues(t, c.Stats().Kept, now["acquire.duration group=order kind=mutex outcome=acquired path=kept"])
	require.Equal(t, int64(1), now["acquire.duration group=order kind=mutex outcome=acquired path=adopted"])
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
	require.NotContains(t, now, "hold.active group=order kind=latch", "latches have no holder")

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
	t.Parallel()
	ctx := context.Background()
	e, rdb := newTelemetry(t), redistest.Dial(t, redistest.Shared(t))
	c := e.client(t, rdb, rlock.Options{WatchdogTimeout: 10 * time.Second})
	lock := name(t)

	inner, unlock, err := c.Mutex(lock).Lock(ctx)
	require.NoError(t, err)
	redistest.Eventually(t, atMost, func() bool { return e.metrics(t)["lease.margin group=order kind=mutex"] > 0 }, "renewed")
	_, err = c.Mutex(lock).ForceUnlock(ctx)
	require.NoError(t, err)
	<-inner.Done()
	require.ErrorIs(t, unlock(), rlock.ErrLost)

	for _, o := range []rlock.Option{rlock.WithLease(3 * time.Second), rlock.WithMaxHold(3 * time.Second)} {
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
	t.Parallel()
	e, rdb := newTelemetry(t), redistest.Dial(t, redistest.Shared(t))
	c := e.client(t, rdb, rlock.Options{WatchdogTimeout: 10 * time.Second})
	require.NoError(t, c.Mutex(name(t)).Do(context.Background(), func(context.Context) error {
		redistest.Eventually(t, atMost, func() bool { return e.metrics(t)["lease.margin group=order kind=mutex"] > 0 }, "renewed")
		return nil
	}))
	e.trace.Lost(context.Background(), rlock.LostInfo{Err: &rlock.LostError{}})
	e.trace.Renewed(rlock.RenewedInfo{Watchdog: time.Second, Granted: true})
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
				first = 0.01
			}
			require.InDelta(t, first, h.DataPoints[0].Bounds[0], 1e-9, m.Name)
		}
		require.NotEmpty(t, m.Description)
	}
	require.Equal(t, map[string]string{
		"rlock.acquire.duration": "s", "rlock.hold.duration": "s", "rlock.lease.margin": "1", "rlock.wait.active": "{waiter}",
		"rlock.hold.active": "{hold}", "rlock.losses": "{loss}", "rlock.handoffs": "{handoff}",
	}, units)
}

// A margin is a share of the watchdog time of its hold, so that holds with different ones can be compared.
func TestMarginIsRelative(t *testing.T) {
	e := newTelemetry(t)
	for _, watchdog := range []time.Duration{5 * time.Second, 30 * time.Second} {
		e.trace.Renewed(rlock.RenewedInfo{Left: watchdog / 2, Watchdog: watchdog})
	}
	var all metricdata.ResourceMetrics
	require.NoError(t, e.reader.Collect(context.Background(), &all))
	require.Len(t, all.ScopeMetrics[0].Metrics, 1)
	h, ok := all.ScopeMetrics[0].Metrics[0].Data.(metricdata.Histogram[float64])
	require.True(t, ok)
	require.Len(t, h.DataPoints, 1)
	require.Equal(t, uint64(2), h.DataPoints[0].Count)
	require.InDelta(t, 1, h.DataPoints[0].Sum, 1e-9)
	require.Contains(t, h.DataPoints[0].Bounds, 1.0/3)
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
