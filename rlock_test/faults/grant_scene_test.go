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

// grantLease is for how long a process that was given the lock has it until it renews or asks. If it does neither, the
// first of the queue looks when that is over.
const grantLease = 2 * time.Second

// grantScene is a lock with a holder, and with waiters in a line. Each is a client of its own behind a proxy of its own, and
// has its place in the queue of the processes.
type grantScene struct {
	server string
	rdb    rueidis.Client // past the proxies
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

// newGrantScene has a holder and so many waiters, on the server with that address.
func newGrantScene(t *testing.T, server string, waiters int, o rlock.Options) *grantScene {
	t.Helper()
	s := &grantScene{server: server, rdb: redistest.Dial(t, server), name: redistest.Name(t)}
	t.Cleanup(func() { // while all clients are still there
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
	require.NoError(t, warm.Do(context.Background(), func(context.Context) error { return nil }), "no script is sent twice")
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

// wait starts a Lock, which ends with the client at the latest.
func (s *grantScene) wait(c *grantClient) {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel, c.waiter = cancel, startLock(ctx, c.Mutex(s.name))
}

// gets requires that a client gets the lock in time, alone.
func (s *grantScene) gets(t *testing.T, c *grantClient, within time.Duration, why string) granted {
	t.Helper()
	g := c.waiter.gets(t, within, why)
	s.alone(t, g)
	return g
}

// alone requires that a hold is live, and the only one (G1).
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

// leavesNothing requires that no key, no place in the queue and no channel is left (G5).
func (s *grantScene) leavesNothing(t *testing.T) {
	t.Helper()
	redistest.Eventually(t, 2*prompt, func() bool {
		keys, err := do(t, s.rdb, "EXISTS", s.name, queueOf(s.name)).AsInt64()
		channels, err2 := do(t, s.rdb, "PUBSUB", "CHANNELS", "*{"+s.name+"}*").AsStrSlice()
		return err == nil && err2 == nil && keys == 0 && len(channels) == 0
	}, "no key, no place in the queue, no channel")
}

// isGrant reports whether a proxy carries the message that gives a lock to its process.
func isGrant(cmd []string) bool {
	if len(cmd) != 3 || !strings.HasSuffix(cmd[0], "MESSAGE") {
		return false
	}
	_, _, ok := histGrant(cmd[2])
	return ok
}

// isWatch reports whether a proxy carries the message that tells a successor when to look.
func isWatch(cmd []string) bool {
	return len(cmd) == 3 && strings.HasSuffix(cmd[0], "MESSAGE") && strings.HasPrefix(cmd[2], "? ") && cmd[2] != "? 0"
}

// isEnd reports whether a proxy carries a release that ends a hold.
func isEnd(cmd []string) bool {
	c, ok := parseHistScript(cmd)
	return ok && c.ends
}

// isRenewal reports whether a proxy carries a call that renews holds.
func isRenewal(cmd []string) bool {
	c, ok := parseHistScript(cmd)
	return ok && c.what == "renew"
}

// once strikes the first of the frames that are meant.
func once(meant func([]string) bool, act redistest.Action) redistest.Hook {
	return (&mixStrike{meant: meant, n: 1, act: act}).hook
}

// every strikes all of them.
func every(meant func([]string) bool, act redistest.Action) redistest.Hook {
	return (&mixStrike{meant: meant, act: act}).hook
}
