package faults

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// grantLease is the lease of a process that was handed the lock, until it renews or asks. If it does neither, the
// head of the queue looks after this time.
const grantLease = 2 * time.Second

// grantScene is a lock with a holder and a line of waiters. Each has its own client and proxy, and
// its own place in the processes' queue.
type grantScene struct {
	server string
	rdb    rueidis.Client // bypasses the proxies
	name   string
	holder *grantClient
	held   granted
	line   []*grantClient
}

type grantClient struct {
	*rlock.Client

	proxy  *redistest.Proxy
	waiter waiter
	cancel context.CancelFunc
}

// newGrantScene returns a scene with a holder and the given number of waiters.
func newGrantScene(t *testing.T, server string, waiters int, o rlock.Options) *grantScene {
	t.Helper()
	s := &grantScene{server: server, rdb: redistest.Dial(t, server), name: redistest.Name(t)}
	t.Cleanup(func() { // before the clients are closed
		if !t.Failed() {
			s.leavesNothing(t)
		}
	})
	s.holder = s.client(t, o)
	s.held.ctx, s.held.unlock, s.held.err = s.holder.Mutex(s.name).Lock(context.Background())
	require.NoError(t, s.held.err)
	for range waiters {
		s.join(t, s.client(t, o))
	}
	return s
}

func (s *grantScene) client(t *testing.T, o rlock.Options) *grantClient {
	t.Helper()
	proxy := redistest.StartProxy(t, s.server)
	c := newClient(t, redistest.Dial(t, proxy.Addr()), o)
	warm := c.Mutex(s.name + ":warm")
	require.NoError(t, warm.Do(context.Background(), func(context.Context) error { return nil }), "warm-up: later calls must not get NOSCRIPT")
	return &grantClient{Client: c, proxy: proxy}
}

// join puts a client at the end of the line.
func (s *grantScene) join(t *testing.T, c *grantClient) {
	t.Helper()
	n := len(queued(t, s.rdb, s.name))
	s.wait(c)
	s.line = append(s.line, c)
	awaitQueued(t, s.rdb, s.name, n+1)
}

// wait starts a Lock, which ends at the latest when the client is closed.
func (s *grantScene) wait(c *grantClient) {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel, c.waiter = cancel, startLock(ctx, c.Mutex(s.name))
}

// gets requires that a client gets the lock in time, as its only holder.
func (s *grantScene) gets(t *testing.T, c *grantClient, within time.Duration, why string) granted {
	t.Helper()
	g := c.waiter.gets(t, within, why)
	s.alone(t, g)
	return g
}

// alone requires that a hold is live and the only one (G1).
func (s *grantScene) alone(t *testing.T, g granted) {
	t.Helper()
	require.NoError(t, g.ctx.Err())
	require.Equal(t, map[string]int64{rlock.Owner(g.ctx): 1}, owners(t, s.rdb, s.name))
}

// passes hands the lock on to a client.
func (s *grantScene) passes(t *testing.T, from granted, to *grantClient, within time.Duration) granted {
	t.Helper()
	require.NoError(t, from.unlock())
	return s.gets(t, to, within, "handed over")
}

// leavesNothing requires that no key, queue place or channel is left (G5).
func (s *grantScene) leavesNothing(t *testing.T) {
	t.Helper()
	redistest.Eventually(t, 2*promptly, func() bool {
		keys, err := do(t, s.rdb, "EXISTS", s.name, queueOf(s.name)).AsInt64()
		channels, err2 := do(t, s.rdb, "PUBSUB", "CHANNELS", "*{"+s.name+"}*").AsStrSlice()
		return err == nil && err2 == nil && keys == 0 && len(channels) == 0
	}, "no key, queue place or channel may be left")
}

// isGrant reports whether cmd is the message that hands the lock to this proxy's process.
func isGrant(cmd []string) bool {
	if len(cmd) != 3 || !strings.HasSuffix(cmd[0], "MESSAGE") {
		return false
	}
	_, _, ok := histGrant(cmd[2])
	return ok
}

// isWatch reports whether cmd is the message that gives a successor the time to look.
func isWatch(cmd []string) bool {
	return len(cmd) == 3 && strings.HasSuffix(cmd[0], "MESSAGE") && strings.HasPrefix(cmd[2], "? ") && cmd[2] != "? 0"
}

// isEnd reports whether cmd is a release that ends a hold.
func isEnd(cmd []string) bool {
	c, ok := parseHistScript(cmd)
	return ok && c.ends
}

// isRenewal reports whether cmd renews holds.
func isRenewal(cmd []string) bool {
	c, ok := parseHistScript(cmd)
	return ok && c.what == "renew"
}

// once acts on the first frame for which meant is true.
func once(meant func([]string) bool, act redistest.Action) redistest.Hook {
	return (&mixStrike{meant: meant, n: 1, act: act}).hook
}

// every acts on every frame for which meant is true.
func every(meant func([]string) bool, act redistest.Action) redistest.Hook {
	return (&mixStrike{meant: meant, act: act}).hook
}
