package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// netCuts are the bytes after which a connection is cut, from the start of a call: before, in and after the request
// (upward), or before, in and after the reply.
var netCuts = []struct {
	upward bool
	bytes  int
}{
	{true, 0}, {true, 1}, {true, 9}, {true, 60}, {true, 120},
	{false, 0}, {false, 1}, {false, 2}, {false, 3}, {false, 4}, {false, 7}, {false, 8}, {false, 11},
}

// netReply is the length of a reply to acquire and release: ":1" and the end of the line.
const netReply = 4

// Fault 2, G1, G5, G6: the connection is cut at every phase of each call in turn. The call succeeds, once, and the state
// in Redis is right.
func TestNetResetAtEveryPhaseOfACall(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, protocol := range netProtocols {
		for kind, newCtx := range netContexts {
			t.Run(name+"/"+kind, func(t *testing.T) {
				relay := newNetRelay(t, s.Addr())
				b := netFixtureVia(t, s, relay.ln.Addr().String(), rlock.Options{}, protocol)
				m := b.lock.Mutex(b.name)
				for _, cut := range netCuts {
					if !cut.upward && cut.bytes >= netReply {
						continue // nothing follows until the next call
					}
					var struck []string
					arm := func() { relay.armAt("\r\nEVALSHA", cut.upward, cut.bytes) }
					disarm := func(call string) {
						if relay.disarm() {
							struck = append(struck, call)
						}
					}
					what := fmt.Sprintf("upward=%v, %d bytes", cut.upward, cut.bytes)
					has := func(ctx context.Context, n int64) {
						t.Helper()
						b.counts(t, ctx, n)
						b.excluded(t)
					}
					arm()
					ctx, unlock, err := m.Lock(newCtx(t))
					disarm("Lock")
					require.NoError(t, err, what)
					has(ctx, 1)
					arm()
					inner, unlockInner, err := b.forLonger().Lock(ctx)
					disarm("re-entry")
					require.NoError(t, err, what)
					has(inner, 2)
					require.NoError(t, unlockInner(), what)
					has(ctx, 1)
					arm()
					err = unlock()
					disarm("unlock")
					require.NoError(t, err, what)
					require.True(t, b.free(t), what)
					require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
					b.becomesFree(t, 0)
					require.Equal(t, []string{"Lock", "re-entry", "unlock"}, struck, what)
				}
			})
		}
	}
}

// Fault 2, G4: a waiter's connection is cut at every phase of its SUBSCRIBE, and of the message that wakes it.
func TestNetResetAtEveryPhaseOfAWait(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, protocol := range netProtocols {
		for _, phase := range []string{"subscribe", "message"} {
			t.Run(name+"/"+phase, func(t *testing.T) {
				t.Parallel()
				relay := newNetRelay(t, s.Addr())
				b := netFixtureVia(t, s, relay.ln.Addr().String(), rlock.Options{}, protocol)
				for _, cut := range netCuts {
					if phase == "message" && cut.upward {
						continue
					}
					what := fmt.Sprintf("upward=%v, %d bytes", cut.upward, cut.bytes)
					_, unlock, err := b.other.Mutex(b.name).Lock(context.Background())
					require.NoError(t, err)
					if phase == "subscribe" {
						relay.armAt("\r\nSUBSCRIBE", cut.upward, cut.bytes)
					}
					waiter := startLock(context.Background(), b.lock.Mutex(b.name))
					if phase == "subscribe" {
						// The client's PINGs follow the request, one a second.
						redistest.Eventually(t, netGivesUp, relay.struck, "the connection must be cut")
					} else {
						b.awaitSubscribers(t, 1)
						relay.arm(cut.upward, cut.bytes)
					}
					waiter.waits(t)
					require.NoError(t, unlock())
					got := waiter.within(t, netWakeUp)
					require.NoError(t, got.err, what)
					require.True(t, relay.disarm(), what)
					require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, b.fields(t), what)
					require.NoError(t, got.unlock())
					b.awaitSubscribers(t, 0)
				}
			})
		}
	}
}

// Fault 2, G2, G7: one renewal after another is cut off, each at another phase, for several leases. The hold lasts.
func TestNetResetDuringRenewals(t *testing.T) {
	t.Parallel()
	const watchdog = 3 * time.Second
	s := redistest.Start(t)
	relay := newNetRelay(t, s.Addr())
	b := netFixtureVia(t, s, relay.ln.Addr().String(), rlock.Options{WatchdogTimeout: watchdog})
	ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	for _, cut := range netCuts {
		relay.armAt("\r\nEVALSHA", cut.upward, cut.bytes)
		redistest.Eventually(t, 2*watchdog, relay.struck, "a renewal must be cut")
		expiry := b.expiry(t)
		redistest.Eventually(t, watchdog, func() bool { return b.expiry(t).After(expiry) }, "renewed")
		require.NoError(t, ctx.Err())
		b.excluded(t)
	}
	require.NoError(t, unlock())
	for end := time.Now().Add(watchdog); time.Now().Before(end); sleep(watchdog / 20) {
		require.True(t, b.free(t), "no renewal may follow the unlock")
	}
}
