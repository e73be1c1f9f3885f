package faults

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// newToxiproxy starts a proxy in front of s, with one toxic each way, and returns its address.
func newToxiproxy(t *testing.T, s *redistest.Server, toxic string) string {
	t.Helper()
	server := &toxiproxy.ApiServer{Metrics: toxiproxy.NewMetricsContainer(nil)}
	netZero(&server.Logger) // writes nothing
	p := toxiproxy.NewProxy(server, "redis", "127.0.0.1:0", s.Addr())
	require.NoError(t, p.Start())
	t.Cleanup(p.Stop)
	for _, stream := range []string{"upstream", "downstream"} {
		_, err := p.Toxics.AddToxicJson(strings.NewReader(strings.ReplaceAll(toxic, "STREAM", stream)))
		require.NoError(t, err)
	}
	return p.Listen
}

// netZero sets *p to a new zero value: its type, of an indirect dependency, need not be named.
func netZero[T any](p **T) { *p = new(T) }

// Fault 2 (100 ms with jitter, or 3 KB/s, each way), G2, G4, G6: locks, re-entries, waits and renewals work over a slow link, and a hold's
// trust never outlasts its key. A call may take 3 s, and the text of release.lua has 5 KB.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	for kind, toxic := range map[string]string{
		"latency":   `{"type":"latency","stream":"STREAM","attributes":{"latency":100,"jitter":50}}`,
		"bandwidth": `{"type":"bandwidth","stream":"STREAM","attributes":{"rate":3}}`,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const watchdog = 12 * time.Second
			s := redistest.Start(t)
			o := rlock.Options{WatchdogTimeout: watchdog, UnlockTimeout: 2 * patience} // a script's text takes 2 s to arrive
			began := time.Now()
			addr := newToxiproxy(t, s, toxic)
			b := newRedisFixture(t, s, o, func(o *rueidis.ClientOption) { o.InitAddress = []string{addr} })
			require.Greater(t, time.Since(began), 200*time.Millisecond, "the link must be slow: the fixture runs two scripts")
			m := b.lock.Mutex(b.name)
			ctx, unlock := b.locks(t, b.name)
			_, unlockInner, err := m.Lock(ctx)
			require.NoError(t, err)
			b.has(t, ctx, 2)
			require.NoError(t, unlockInner())
			sleep(watchdog + watchdog/3)
			b.has(t, ctx, 1)
			require.NoError(t, unlock())

			_, unlockOther, err := b.other.Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			waiter := startLock(context.Background(), m)
			awaitSubscribers(t, b.direct, b.name, false, 1, patience)
			require.NoError(t, unlockOther())
			require.NoError(t, waiter.gets(t, patience, "woken by the unlock").unlock())

			ctx, unlock = b.locks(t, b.name, rlock.WithLease(watchdog/2))
			lostBy(t, ctx, b.expiry(t))
			require.ErrorIs(t, unlock(), rlock.ErrLost)
		})
	}
}
