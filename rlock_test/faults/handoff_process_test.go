//go:build unix

package faults

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/rlock"
)

// Fault 5, G1 and G4: a process is killed while one of its goroutines hands the lock to another, before or after Redis
// has run the hand-off. Another process gets in when that lease ends. A hand-off that reaches Redis later still has no
// effect.
func TestHandOffKilledMidway(t *testing.T) {
	for _, handed := range []bool{false, true} {
		t.Run(map[bool]string{false: "before", true: "after"}[handed], func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Dial(t, redistest.Shared(t))
			name := redistest.Name(t)
			proxy := redistest.StartProxy(t, redistest.Shared(t))
			p := startPeer(t, proxy.Addr(), peerWatchdog)
			p.send(t, "lock", name)
			first := p.expect(t, "locked", promptly)
			p.send(t, "lock", name)
			p.send(t, "lock", name)
			awaitSubscribers(t, rdb, name, false, 1, promptly)

			require.NoError(t, do(t, rdb, "SCRIPT", "LOAD", lua.Text("release")).Error(), "the unlock must be sent once, without NOSCRIPT")
			on := proxy.OnRequest
			if handed {
				on = proxy.OnReply
			}
			on(once(mixHandOff, redistest.Hold))
			p.send(t, "unlock")
			redistest.Eventually(t, promptly, func() bool {
				select {
				case line := <-p.lines:
					// The waiter was just asking Redis, so the unlock left the lock to it: once more.
					if owner, ok := strings.CutPrefix(line, "locked "); ok {
						first = owner
						p.send(t, "lock", name)
						p.send(t, "unlock")
					}
				default:
				}
				return proxy.Held() > 0
			}, "the hand-off must be under way")
			w := startLock(context.Background(), newClient(t, rdb, rlock.Options{}).Mutex(name))
			awaitSubscribers(t, rdb, name, false, 2, promptly)
			before := owners(t, rdb, name)
			require.Len(t, before, 1)
			require.Equal(t, !handed, before[first] == 1)
			left := remaining(t, rdb, name)
			p.kill()
			w.waits(t)
			got := w.gets(t, left+afterLease, "the lease has ended")
			proxy.Release()
			require.NoError(t, do(t, rdb, "PING").Error())
			redistest.Eventually(t, promptly, func() bool { return proxy.Conns() == 0 }, "the held frames must arrive")
			require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, owners(t, rdb, name))
			require.NoError(t, got.ctx.Err())
			require.NoError(t, got.unlock())
			require.False(t, exists(t, rdb, name))
			awaitSubscribers(t, rdb, name, false, 0, promptly)
		})
	}
}
