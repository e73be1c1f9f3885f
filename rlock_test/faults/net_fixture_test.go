package faults

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/hex"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/rlock"
)

// netSlack is how far a call may exceed its bound on a busy machine.
const netSlack = 2 * time.Second

// netGivesUp is how long rueidis keeps a silent connection; docs/guarantees.md says about 10 s.
const netGivesUp = 10 * time.Second

// netFixture is a lock client behind a faulty network, beside clients with a direct connection to Redis.
type netFixture struct {
	server *redistest.Server
	proxy  *redistest.Proxy // nil if the test brings its own network
	lock   *rlock.Client    // through the network
	other  *rlock.Client    // past it
	direct rueidis.Client   // past it
	conns  *netConns        // of lock
	name   string
}

func newNetFixture(t *testing.T, o rlock.Options, mod ...func(*rueidis.ClientOption)) *netFixture {
	t.Helper()
	return netFixtureOn(t, redistest.Start(t), o, mod...)
}

// netFixtureOn is newNetFixture on an existing server.
func netFixtureOn(t *testing.T, s *redistest.Server, o rlock.Options, mod ...func(*rueidis.ClientOption)) *netFixture {
	t.Helper()
	proxy := redistest.StartProxy(t, s.Addr())
	b := netFixtureVia(t, s, proxy.Addr(), o, mod...)
	b.proxy = proxy
	return b
}

// netFixtureVia is netFixtureOn with the caller's own network, at addr, in front of the server.
func netFixtureVia(t *testing.T, s *redistest.Server, addr string, o rlock.Options, mod ...func(*rueidis.ClientOption)) *netFixture {
	t.Helper()
	b := &netFixture{server: s, direct: s.Client(t), name: redistest.Name(t), conns: &netConns{}}
	b.lock = newClient(t, redistest.Dial(t, addr, append(mod, b.conns.record)...), o)
	b.other = newClient(t, b.direct, o)
	b.warmUp(t)
	t.Cleanup(func() { b.leavesNothing(t) }) // before both clients are closed
	return b
}

// warmUp runs every script of a lock, so that no later call is repeated because of NOSCRIPT.
func (b *netFixture) warmUp(t *testing.T) {
	t.Helper()
	m := b.lock.Mutex(b.name + ":warm")
	require.NoError(t, m.Do(context.Background(), func(ctx context.Context) error {
		return m.Do(ctx, func(context.Context) error { return nil })
	}))
	require.NoError(t, do(t, b.direct, "SCRIPT", "LOAD", lua.Text("renew")).Error())
}

// fields returns the lock's hash.
func (b *netFixture) fields(t testing.TB) map[string]int64 {
	t.Helper()
	return owners(t, b.direct, b.name)
}

// counts waits until the count in Redis equals the hold's open levels.
func (b *netFixture) counts(t testing.TB, hold context.Context, levels int64) {
	t.Helper()
	want := map[string]int64{rlock.Owner(hold): levels}
	redistest.Eventually(t, netSlack, func() bool { return maps.Equal(b.fields(t), want) }, "the count in Redis must equal the open levels")
}

// forLonger returns a handle whose longer lease makes each re-entry send a command.
func (b *netFixture) forLonger() *rlock.Mutex {
	return b.lock.Mutex(b.name, rlock.WithLease(time.Hour))
}

func (b *netFixture) free(t testing.TB) bool { return !exists(t, b.direct, b.name) }

// excluded checks G1 with a second client, which must not get the lock now.
func (b *netFixture) excluded(t testing.TB) {
	t.Helper()
	_, _, err := b.other.Mutex(b.name).TryLock(context.Background(), 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
}

// becomesFree checks G5 with a second client, which must get the lock in time.
func (b *netFixture) becomesFree(t testing.TB, within time.Duration) {
	t.Helper()
	_, unlock, err := b.other.Mutex(b.name).TryLock(context.Background(), within)
	require.NoError(t, err)
	require.NoError(t, unlock())
}

// awaitSubscribers waits until n connections listen for the lock's unlock.
func (b *netFixture) awaitSubscribers(t testing.TB, n int) {
	t.Helper()
	awaitSubscribers(t, b.direct, b.name, false, n, netGivesUp+netSlack)
}

// leavesNothing checks G5 for all locks of the fixture: no key, no subscription. After a call that did not
// reach Redis, the library cleans up within seconds, or the lease expires.
func (b *netFixture) leavesNothing(t testing.TB) {
	if t.Failed() {
		return
	}
	none := func(what ...string) bool {
		list, err := do(t, b.direct, append(what, "*"+b.name+"*")...).AsStrSlice()
		return err == nil && len(list) == 0
	}
	redistest.Eventually(t, netGivesUp+netSlack, func() bool {
		return none("KEYS") && none("PUBSUB", "CHANNELS")
	}, "no key or channel may be left")
}

// netConns are a client's connections, as it opened them.
type netConns struct {
	mu  sync.Mutex // guards the following
	all []net.Conn
}

func (c *netConns) record(o *rueidis.ClientOption) {
	o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			c.mu.Lock()
			c.all = append(c.all, conn)
			c.mu.Unlock()
		}
		return conn, err
	}
}

// close closes the open connections. Data already sent may still arrive.
func (c *netConns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.all {
		_ = conn.Close()
	}
	c.all = nil
}

// netScript is the name that a hook uses for calls of one script.
func netScript(name string) string {
	sum := sha1.Sum([]byte(lua.Text(name)))
	return "EVALSHA " + hex.EncodeToString(sum[:])
}

func netRESP2(o *rueidis.ClientOption) { o.AlwaysRESP2, o.DisableCache = true, true }

// netProtocols are the two protocols of a client.
var netProtocols = map[string]func(*rueidis.ClientOption){
	"RESP3": func(*rueidis.ClientOption) {},
	"RESP2": netRESP2,
}

// netContexts are the two kinds of ctx: each takes a different path through the library.
var netContexts = map[string]func(testing.TB) context.Context{
	"background": func(testing.TB) context.Context { return context.Background() },
	"cancellable": func(t testing.TB) context.Context {
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		return ctx
	},
}

// netInfo returns one field of INFO.
func netInfo(t testing.TB, rdb rueidis.Client, field string) string {
	t.Helper()
	info, err := do(t, rdb, "INFO").ToString()
	require.NoError(t, err)
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			return v
		}
	}
	require.FailNow(t, "no such field", field)
	return ""
}
