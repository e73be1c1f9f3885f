package rlock_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Open connects a Client by each form of URL. Close ends its connections.
func TestOpen(t *testing.T) {
	redistest.Parallel(t)
	socket := filepath.Join(t.TempDir(), "s")
	s := redistest.Start(t, "--unixsocket", socket, "--user", "shop", "on", ">p@ss:w/rd", "~*", "&*", "+@all")
	secure, _ := redistest.StartTLS(t, s.Addr())
	cluster, sentinels := redistest.StartCluster(t, 3, 0), redistest.StartSentinel(t)
	for name, c := range map[string]struct {
		url  string
		more []*redistest.Server // other servers it connects to, besides s
	}{
		"a server":  {url: "redis://" + s.Addr()},
		"a user":    {url: "redis://shop:" + url.QueryEscape("p@ss:w/rd") + "@" + s.Addr()},
		"database":  {url: "redis://" + s.Addr() + "/3"},
		"RESP2":     {url: "redis://" + s.Addr() + "?protocol=2"},
		"TLS":       {url: "rediss://" + secure + "?skip_verify"},
		"socket":    {url: "unix://" + socket},
		"a node":    {url: "redis://" + cluster.Addrs()[0], more: cluster.Nodes()},
		"nodes":     {url: "redis://127.0.0.1:1?addr=" + strings.Join(cluster.Addrs(), "&addr="), more: cluster.Nodes()},
		"sentinels": {url: "redis://127.0.0.1:1?master_set=" + redistest.MasterSet + "&addr=" + strings.Join(sentinels.Addrs(), "&addr="), more: slices.Concat(sentinels.Nodes(), sentinels.Sentinels())},
	} {
		t.Run(name, func(t *testing.T) {
			servers := slices.Concat(c.more, []*redistest.Server{s})
			before := connections(t, servers)
			client := answer(rlock.Open(patiently(c.url), unhurried(t))).ok(t)
			m := client.Mutex("open")
			require.NoError(t, m.Do(t.Context(), func(ctx context.Context) error {
				require.Greater(t, connections(t, servers), before)
				_, _, err := m.TryLock(context.Background(), time.Millisecond) // subscribes
				require.ErrorIs(t, err, rlock.ErrNotAcquired)
				return ctx.Err()
			}))
			client.Close()
			client.Close()
			require.ErrorIs(t, m.Do(t.Context(), func(context.Context) error { return nil }), rlock.ErrClosed)
			redistest.Eventually(t, soon, func() bool { return connections(t, servers) <= before }, "the Client's connections end")
		})
	}
}

// patiently adds the times that a busy machine may take to dial and to answer.
func patiently(url string) string {
	sign := "?"
	if strings.Contains(url, sign) {
		sign = "&"
	}
	return url + sign + "dial_timeout=1m&write_timeout=1m"
}

// connections returns the number of client connections to the servers, without the counting one.
func connections(t *testing.T, servers []*redistest.Server) (n int) {
	t.Helper()
	for _, s := range servers {
		n += s.Connections(t)
	}
	return n
}

// OpenWith accepts options that no URL can express.
func TestOpenWith(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t, "--requirepass", "secret")
	secure, ca := redistest.StartTLS(t, s.Addr())
	pem := answer(os.ReadFile(ca)).ok(t)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(pem))
	c, err := rlock.OpenWith(rueidis.ClientOption{
		InitAddress: []string{secure}, TLSConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		Dialer: net.Dialer{Timeout: testTimeout}, ConnWriteTimeout: testTimeout, // a busy machine may take its time
		AuthCredentialsFn: func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			return rueidis.AuthCredentials{Username: "default", Password: "secret"}, nil
		},
	}, unhurried(t))
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Mutex("a").Do(t.Context(), func(context.Context) error { return nil }))
}

// An error of Open is one line with the address and a cure, never the password, and leaves no connection behind.
func TestOpenFails(t *testing.T) {
	redistest.Parallel(t)
	const password = "hush-hush"
	s, down := redistest.Start(t), redistest.Start(t)
	guarded := redistest.Start(t, "--requirepass", "another")
	secure, _ := redistest.StartTLS(t, s.Addr())
	down.Stop()
	resp2 := redistest.StartProxy(t, s.Addr())
	resp2.OnRequest(redistest.Each("HELLO 3", redistest.Fail("NOPROTO unsupported protocol version")))
	fake := func(serve func(net.Conn)) (url, addr string) {
		addr = redistest.StartFake(t, serve)
		return patiently("redis://:" + password + "@" + addr), addr
	}
	full, fullAddr := fake(redistest.Says("-ERR max number of clients reached\r\n"))
	hangsUp, hangsUpAddr := fake(redistest.Says(""))
	closes, closesAddr := fake(redistest.HangsUp)
	resets, resetsAddr := fake(redistest.Resets)
	web, webAddr := fake(redistest.Says("HTTP/1.1 400 Bad Request\r\n\r\n"))
	alert, alertAddr := fake(redistest.Says("\x15\x03\x03\x00\x02\x02\x46")) // unexpected_message
	guards, guardsAddr := fake(redistest.Says("-DENIED Redis is running in protected mode because of this. To mend it, do that.\r\n"))
	silent, err := net.Listen("tcp4", "127.0.0.1:0") // accepts connections and never answers
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	before := connections(t, []*redistest.Server{s})
	const noURL = "rlock: not a Redis URL: want redis://user:password@host:6379/0"
	start := "(start Redis there, or correct the address)"
	const hung = "(it hangs up, as do a server at maxclients, one that wants TLS or a client certificate, a proxy without a server"
	met := make(map[string]bool)
	refused := map[string]bool{ // by Redis, or before dialing
		"no RESP3":       true,
		"wrong password": true, "no password": true, "no such database": true, "no sentinel": true, "bad port": true, "slash in it": true,
		"bad escape": true, "another scheme": true, "no scheme": true, "empty": true, "bad database": true, "bad time": true,
	}
	for name, c := range map[string]struct {
		url  string
		says []string
	}{
		"down":             {"redis://:" + password + "@" + down.Addr(), []string{"to Redis at " + down.Addr() + ": ", "refused", start}},
		"no such host":     {"redis://:" + password + "@no.such.host.invalid:1", []string{"no.such.host.invalid:1", start}},
		"no socket":        {"unix://u:" + password + "@/no/such.sock", []string{"/no/such.sock", start}},
		"all nodes down":   {"redis://:" + password + "@" + down.Addr() + "?addr=127.0.0.1:1", []string{down.Addr() + ",127.0.0.1:1: ", start}},
		"sentinels down":   {"redis://:" + password + "@" + down.Addr() + "?master_set=m", []string{`the master "m" of the sentinels at ` + down.Addr(), start}},
		"wrong password":   {patiently("redis://:" + password + "@" + guarded.Addr()), []string{guarded.Addr(), "WRONGPASS", "(look at the user and the password)"}},
		"no password":      {patiently("redis://" + guarded.Addr()), []string{guarded.Addr(), "NOAUTH", "(look at the user and the password)"}},
		"no TLS there":     {"rediss://:" + password + "@" + s.Addr() + "?dial_timeout=1s", []string{s.Addr(), "(is it a Redis that speaks TLS, or none?)"}},
		"TLS there":        {patiently("redis://:" + password + "@" + secure), []string{secure, "TLS"}},
		"TLS alert":        {alert, []string{alertAddr, "(what listens there speaks TLS: use rediss://)"}},
		"no RESP3":         {patiently("redis://" + resp2.Addr()), []string{resp2.Addr(), "NOPROTO", "(a server or proxy without RESP3: add ?protocol=2 to the URL"}},
		"full":             {full, []string{fullAddr, "ERR max number of clients reached: EOF (raise the server's maxclients"}},
		"hangs up":         {hangsUp, []string{hangsUpAddr, hung}},
		"closes":           {closes, []string{closesAddr, hung}},
		"resets":           {resets, []string{resetsAddr, hung}},
		"web server":       {web, []string{webAddr, "(what listens there is no Redis)"}},
		"protected mode":   {guards, []string{guardsAddr, "because of this: EOF (its protected mode: set a password there"}},
		"its own name":     {patiently("rediss://localhost:1?master_set=m&addr=" + secure), []string{secure, "unknown authority"}}, // no "not localhost"
		"unknown CA":       {patiently("rediss://:" + password + "@" + secure), []string{secure, "certificate"}},
		"silent":           {"redis://:" + password + "@" + silent.Addr().String() + "?dial_timeout=1s", []string{silent.Addr().String(), "(is it a Redis"}},
		"no such database": {patiently("redis://" + s.Addr() + "/99"), []string{s.Addr(), "out of range"}},
		"no sentinel":      {patiently("redis://" + s.Addr() + "?master_set=m"), []string{s.Addr(), "SENTINEL"}},
		"bad port":         {"redis://:" + password + "@127.0.0.1:port", []string{noURL}},
		"slash in it":      {"redis://u:" + password + "/x@127.0.0.1:1", []string{noURL, "%2F"}},
		"bad escape":       {"redis://u:" + password + "%zz@127.0.0.1:1", []string{noURL}},
		"another scheme":   {"http://u:" + password + "@127.0.0.1:1", []string{noURL, "rediss://"}},
		"no scheme":        {"127.0.0.1:6379", []string{noURL}},
		"empty":            {"", []string{noURL}},
		"bad database":     {"redis://127.0.0.1:1/" + password, []string{noURL}},
		"bad time":         {"redis://127.0.0.1:1?dial_timeout=" + password, []string{noURL, "dial_timeout=2s"}},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := rlock.Open(c.url, rlock.Options{})
			require.Nil(t, client)
			require.Regexp(t, `^rlock: [^\n]*$`, err)
			met[changing.ReplaceAllString(err.Error(), "#")] = true
			for _, text := range c.says {
				require.ErrorContains(t, err, text)
			}
			require.NotContains(t, err.Error(), password)
			require.Equal(t, !refused[name], errors.Is(err, rlock.ErrUnreachable))
		})
	}
	page := answer(os.ReadFile("../docs/troubleshooting.md")).ok(t)
	shown := regexp.MustCompile(`(?m)^rlock: cannot connect .*$`).FindAllString(string(page), -1)
	require.NotEmpty(t, shown)
	for _, line := range shown {
		require.True(t, met[changing.ReplaceAllString(line, "#")], "docs/troubleshooting.md shows %s", line)
	}
	t.Run("ForceSingleClient", func(t *testing.T) { // rueidis returns both a client and an error
		_, err := rlock.OpenWith(rueidis.ClientOption{InitAddress: []string{down.Addr()}, ForceSingleClient: true}, rlock.Options{})
		require.ErrorContains(t, err, start)
	})
	t.Run("no RESP3, with the cure", func(t *testing.T) {
		client := answer(rlock.Open(patiently("redis://"+resp2.Addr()+"?protocol=2"), rlock.Options{})).ok(t)
		client.Close()
	})
	t.Run("no address", func(t *testing.T) {
		answer(rlock.OpenWith(rueidis.ClientOption{}, rlock.Options{})).fails(t, rueidis.ErrNoAddr)
	})
	t.Run("bad Options", func(t *testing.T) { // checked before dialing
		_, err := rlock.Open("redis://"+silent.Addr().String(), rlock.Options{WatchdogTimeout: 1})
		require.ErrorContains(t, err, "WatchdogTimeout")
	})
	redistest.Eventually(t, soon, func() bool { return connections(t, []*redistest.Server{s}) <= before }, "no connection is left")
}

// opened returns a Client that Close disconnects from the server behind a proxy, in the world of the test.
func opened(t *testing.T) (*rlock.Client, *redistest.Proxy) {
	t.Helper()
	proxy := redistest.StartProxy(t, redistest.Start(t).Addr())
	o := rueidis.ClientOption{InitAddress: []string{proxy.Addr()}}
	redistest.Connects(t, &o)
	c := answer(rlock.OpenWith(o, unhurried(t))).ok(t)
	return c, proxy
}

// In the virtual world, an Open that fails leaves no goroutine.
func TestOpenFailsAlone(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		o := rueidis.ClientOption{InitAddress: []string{s.Addr()}}
		redistest.Connects(t, &o)
		s.Stop()
		answer(rlock.OpenWith(o, rlock.Options{})).fails(t, rlock.ErrUnreachable)
	})
}

// Close and Shutdown return once the connections are closed, in concurrent calls too. A later unlock fails at once. The bubble waits for the
// goroutines of the Client and of rueidis.
func TestOpenedIsClosed(t *testing.T) {
	for name, end := range map[string]func(c *rlock.Client){
		"Close": func(c *rlock.Client) { c.Close() },
		"Shutdown": func(c *rlock.Client) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = c.Shutdown(ctx)
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			c, proxy := opened(t)
			ctx, unlock := enter(t, context.Background(), c.Mutex(name))
			require.NotZero(t, proxy.Conns())
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() { end(c) })
			}
			all.Wait()
			redistest.Eventually(t, soon, func() bool { return proxy.Conns() == 0 }, "all connections end")
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
			began := time.Now()
			require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
			requireTook(t, 0, began, time.Now())
		})
	}
}

// Close needs no answer from Redis.
func TestOpenedIsClosedInABlackHole(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy := opened(t)
		_, _, err := c.Mutex("a").Lock(context.Background())
		require.NoError(t, err)
		waits := lockAsync(t, c.Mutex("a"))
		redistest.Eventually(t, testTimeout, func() bool { return c.Stats().Waiting == 1 }, "the caller waits")
		proxy.BlackHole(true)
		began := time.Now()
		c.Close()
		requireTookAtMost(t, 15*time.Second, began, time.Now())
		require.ErrorIs(t, waits.get(t, soon).err, rlock.ErrClosed)
	})
}

// Lock names the cure, too, if a server refuses a new connection later on.
func TestLockNamesTheCure(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	for refusal, row := range map[string]struct {
		cure        string
		unreachable bool
	}{
		"NOPROTO unsupported protocol version":      {"(a server or proxy without RESP3: add ?protocol=2 to the URL, or set AlwaysRESP2)", false},
		"ERR max number of clients reached":         {"(raise the server's maxclients, or find what opens so many connections)", true},
		"DENIED Redis is running in protected mode": {"(its protected mode: set a password there, or a bind address)", false},
	} {
		t.Run(refusal, func(t *testing.T) {
			redistest.Parallel(t)
			proxy := redistest.StartProxy(t, s.Addr())
			c, err := rlock.Open(patiently("redis://"+proxy.Addr()), rlock.Options{})
			require.NoError(t, err)
			defer c.Close()
			proxy.OnRequest(redistest.Each("HELLO", redistest.Fail(refusal)))
			proxy.CutAll()
			_, _, err = c.Mutex("order:42").Lock(t.Context())
			require.Regexp(t, `^rlock: "order:42": [^\n]*\(`, err)
			require.ErrorContains(t, err, strings.TrimPrefix(refusal, "ERR ")+" "+row.cure)
			require.Equal(t, row.unreachable, errors.Is(err, rlock.ErrUnreachable))
		})
	}
}

// So does a Lock that waits, where the server or a proxy has no pub/sub.
func TestWaitNamesTheCure(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	proxy := redistest.StartProxy(t, s.Addr())
	proxy.OnRequest(redistest.Each("SUBSCRIBE", redistest.Fail("ERR unknown command `SUBSCRIBE`, with args beginning with: `channel`, ")))
	a, b := newClient(t, s.Client(t), rlock.Options{}), newClient(t, redistest.Dial(t, proxy.Addr()), rlock.Options{})
	for kind, of := range map[string]func(*rlock.Client) rlock.Locker{
		"plain": func(c *rlock.Client) rlock.Locker { return c.Mutex("plain") },
		"fair":  func(c *rlock.Client) rlock.Locker { return c.FairMutex("fair") },
		"write": func(c *rlock.Client) rlock.Locker { return c.RWMutex("write").Write() },
	} {
		_, unlock, err := of(a).Lock(t.Context())
		require.NoError(t, err, kind)
		t.Cleanup(func() { _ = unlock() })
		_, _, err = of(b).Lock(t.Context())
		require.ErrorContains(t, err, "unknown command `SUBSCRIBE`", kind)
		require.ErrorContains(t, err, "(a Lock that waits needs pub/sub: connect to the server itself, not to a proxy without it)", kind)
	}
}
