package faults

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
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

// Fault 2 (100 ms with jitter, or 3 KB/s, each way), G2, G4, G6: locks, re-entries, waits and renewals work over a slow
// link, and a hold's trust never outlasts its key. A call may take 3 s, and the text of release.lua has 5 KB.
func TestNetSlowLink(t *testing.T) {
	t.Parallel()
	for kind, toxic := range map[string]string{
		"latency":   `{"type":"latency","stream":"STREAM","attributes":{"latency":100,"jitter":50}}`,
		"bandwidth": `{"type":"bandwidth","stream":"STREAM","attributes":{"rate":3}}`,
	} {
		for name, protocol := range netProtocols {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				const watchdog = 6 * time.Second
				s := redistest.Start(t)
				began := time.Now()
				b := netFixtureVia(t, s, newToxiproxy(t, s, toxic), rlock.Options{
					WatchdogTimeout: watchdog,
					UnlockTimeout:   15 * time.Second, // a script's text takes 2 s to arrive
				}, protocol)
				require.Greater(t, time.Since(began), 400*time.Millisecond, "the link must be slow: the fixture first runs two scripts, each twice")
				b.other = newClient(t, b.direct, rlock.Options{})
				m := b.lock.Mutex(b.name)

				ctx, unlock, err := m.Lock(context.Background())
				require.NoError(t, err)
				_, unlockInner, err := m.Lock(ctx)
				require.NoError(t, err)
				b.counts(t, ctx, 2)
				require.NoError(t, unlockInner())
				for end := time.Now().Add(watchdog + watchdog/2); time.Now().Before(end); sleep(watchdog / 20) {
					require.NoError(t, ctx.Err())
					b.excluded(t)
				}
				require.NoError(t, unlock())
				require.True(t, b.free(t))

				_, unlockOther, err := b.other.Mutex(b.name).Lock(context.Background())
				require.NoError(t, err)
				waiter := startLock(context.Background(), m)
				b.awaitSubscribers(t, 1)
				require.NoError(t, unlockOther())
				got := waiter.within(t, netWakeUp)
				require.NoError(t, got.err)
				require.NoError(t, got.unlock())

				ctx, unlock, err = b.lock.Mutex(b.name, rlock.WithLease(4*time.Second)).Lock(context.Background())
				require.NoError(t, err)
				expiry := b.expiry(t)
				cancellationOf(ctx).by(t, expiry, tellSlack)
				require.ErrorIs(t, unlock(), rlock.ErrLost)
			})
		}
	}
}
