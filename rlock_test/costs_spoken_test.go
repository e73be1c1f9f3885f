package rlock_test

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// traffic is the amount of data that a proxy has forwarded, without the commands that open a connection and keep it alive.
type traffic struct{ commands, messages, bytes int }

// countingProxy is a proxy that counts its traffic.
type countingProxy struct {
	addr string
	mu   sync.Mutex // guards the following
	sum  traffic
	said int // messages that its client has published
}

func newMeter(t *testing.T, addr string) *countingProxy {
	t.Helper()
	p := redistest.StartProxy(t, addr)
	m := &countingProxy{addr: p.Addr()}
	p.OnRequest(func(words []string) redistest.Action {
		switch words[0] {
		case "HELLO", "CLIENT", "PING":
			return redistest.Pass
		case "PUBLISH":
			m.mu.Lock()
			m.said++
			m.mu.Unlock()
		}
		m.add(traffic{commands: 1, bytes: respSize(words)})
		return redistest.Pass
	})
	p.OnReply(func(words []string) redistest.Action {
		if strings.HasSuffix(words[0], "MESSAGE") {
			m.add(traffic{messages: 1, bytes: respSize(words)})
		}
		return redistest.Pass
	})
	return m
}

func (m *countingProxy) add(t traffic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sum.commands += t.commands
	m.sum.messages += t.messages
	m.sum.bytes += t.bytes
}

// since returns the traffic since before.
func (m *countingProxy) since(before traffic) traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	return traffic{m.sum.commands - before.commands, m.sum.messages - before.messages, m.sum.bytes - before.bytes}
}

// respSize returns the size of a list of words on the wire, in bytes.
func respSize(words []string) (n int) {
	n = len("*\r\n") + len(strconv.Itoa(len(words)))
	for _, w := range words {
		n += len("$\r\n\r\n") + len(strconv.Itoa(len(w))) + len(w)
	}
	return n
}

// The costs match those in docs/locks.md, docs/features.md and docs/operating.md: for a feature that is unused, used without a waiter,
// and used with one. Each is measured at the holder and at a waiter of another process, for one lock.
func TestCostsOfBeingSpokenTo(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		loadScripts(t, newClient(t, s.Client(t)))
		const pairs = 100
		type costs struct {
			begins       traffic // the Client's first Lock with the feature, and its unlock
			pair         traffic // another hundred Locks and unlocks
			holder, asks traffic // while another process waits, until it has the lock
			said         int     // messages from that process
		}
		measure := func(name string, o rlock.Options, options ...rlock.Option) (c costs) {
			near, far := newMeter(t, s.Addr()), newMeter(t, s.Addr())
			o.WatchdogTimeout = seldom.WatchdogTimeout
			holder, waits := newClient(t, redistest.Dial(t, near.addr), o), newClient(t, redistest.Dial(t, far.addr), o)
			m, lingers := holder.Mutex(name, options...), strings.HasSuffix(name, "linger")
			if name == "fenced linger" {
				m = holder.FencedMutex(name, options...)
			}
			lockAndUnlock(t, m)
			if len(options) > 0 {
				awaitEar(t, s.Client(t), holder)
				redistest.Eventually(t, testTimeout, func() bool { return near.since(traffic{}).commands >= 3 }, "subscription counted")
			}
			c.begins = near.since(traffic{})
			if lingers {
				keep(t, holder, m)
			}
			before := near.since(traffic{})
			for range pairs {
				lockAndUnlock(t, m)
			}
			c.pair = near.since(before)
			var unlock rlock.UnlockFunc
			if !lingers {
				unlock = locked(t, m).unlock
			}
			atHolder := near.since(traffic{})
			waiter := lockAsync(t, waits.Mutex(name))
			if unlock != nil {
				sleep(10 * time.Second) // to wait costs nothing
				require.NoError(t, unlock())
			}
			got := waiter.get(t, testTimeout)
			require.NoError(t, got.err)
			c.holder, c.asks = near.since(atHolder), far.since(traffic{})
			require.NoError(t, got.unlock())
			far.mu.Lock()
			c.said = far.said
			far.mu.Unlock()
			t.Logf("%s: %+v", name, c)
			return c
		}
		none := measure("nothn", rlock.Options{})
		asked := measure("asked", rlock.Options{}, rlock.WithAsked())
		linger := measure("linger", rlock.Options{}, rlock.WithLinger(long))
		fenced := measure("fenced linger", rlock.Options{}, rlock.WithLinger(long))
		cycles := measure("cycle", rlock.Options{Deadlock: rlock.Deadlock{After: soon, Action: rlock.DeadlockFail}})

		require.Equal(t, traffic{commands: 2 * pairs, bytes: none.pair.bytes}, none.pair)
		require.Equal(t, none.begins.commands, cycles.begins.commands)
		require.Equal(t, traffic{commands: 2 * pairs, bytes: cycles.pair.bytes}, cycles.pair)

		require.Equal(t, none.begins.commands+1, asked.begins.commands, "WithAsked costs one subscription")
		require.Equal(t, traffic{commands: 2 * pairs, bytes: asked.pair.bytes}, asked.pair)
		require.Less(t, asked.pair.bytes-none.pair.bytes, 2*pairs*20, "with WithAsked only the owner field is longer")
		require.Equal(t, 1, asked.holder.messages)
		require.Equal(t, none.asks.commands+1, asked.asks.commands, "one message")
		require.Less(t, asked.holder.bytes-none.holder.bytes, 150)
		require.Equal(t, 1, asked.said)

		require.Equal(t, traffic{}, linger.pair)
		require.Equal(t, pairs, fenced.pair.commands, "one for each token")
		require.Equal(t, 1, linger.holder.messages)
		require.Equal(t, 1, linger.said)
		require.Zero(t, none.said+cycles.said)
	})
}
