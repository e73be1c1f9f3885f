package rlockgoredis_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
	"github.com/go-rlock/rlock/rlockgoredis"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// tlsOf returns a configuration that trusts the certificate in a file.
func tlsOf(t *testing.T, ca string) *tls.Config {
	t.Helper()
	pem, err := os.ReadFile(ca)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(pem))
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// For every server and user of go-redis, the Client's lock is a key visible to the go-redis client, and closing the Client does not affect
// go-redis's connections.
func TestOpen(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	s := redistest.Start(t, "--unixsocket", socket, "--user", "shop", "on", ">secret", "~*", "&*", "+@all", "--requirepass", "default")
	secure, ca := redistest.StartTLS(t, s.Addr())
	cluster := redistest.StartCluster(t, 3, 0)
	shop := func(context.Context) (string, string, error) { return "shop", "secret", nil }
	for name, rdb := range map[string]redis.UniversalClient{
		"password":    redis.NewClient(&redis.Options{Addr: s.Addr(), Password: "default"}),
		"a user":      redis.NewClient(&redis.Options{Addr: s.Addr(), Username: "shop", Password: "secret"}),
		"provider":    redis.NewClient(&redis.Options{Addr: s.Addr(), CredentialsProviderContext: shop}),
		"database":    redis.NewClient(&redis.Options{Addr: s.Addr(), Password: "default", DB: 3}),
		"RESP2":       redis.NewClient(&redis.Options{Addr: s.Addr(), Password: "default", Protocol: 2}),
		"TLS":         redis.NewClient(&redis.Options{Addr: secure, Password: "default", TLSConfig: tlsOf(t, ca)}),
		"socket":      redis.NewClient(&redis.Options{Addr: socket, Password: "default"}),
		"dialer":      redis.NewClient(&redis.Options{Addr: "redis.example:1", Password: "default", Dialer: to(s.Addr())}),
		"a universal": redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{s.Addr()}, Password: "default"}),
		"cluster":     redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()}),
		"mapped":      redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()[:1], Dialer: (&net.Dialer{}).DialContext}),
	} {
		t.Run(name, func(t *testing.T) {
			defer func() { _ = rdb.Close() }()
			client, err := rlockgoredis.Open(rdb, rlock.Options{})
			require.NoError(t, err)
			requireLocks(t, client, rdb)
		})
	}
}

// go-redis logs in only with a password. So must the Client, or a Redis without one refuses a user that go-redis never mentions.
func TestUserWithoutPassword(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	nobody := func() (string, string) { return "nobody", "" }
	for name, o := range map[string]*redis.Options{
		"fixed":    {Addr: s.Addr(), Username: "nobody"},
		"RESP2":    {Addr: s.Addr(), Username: "nobody", Protocol: 2},
		"provider": {Addr: s.Addr(), CredentialsProvider: nobody},
		"with ctx": {Addr: s.Addr(), CredentialsProviderContext: func(context.Context) (string, string, error) { return "nobody", "", nil }},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewClient(o)
			defer func() { _ = rdb.Close() }()
			require.NoError(t, rdb.Ping(t.Context()).Err())
			client, err := rlockgoredis.Open(rdb, rlock.Options{})
			require.NoError(t, err)
			requireLocks(t, client, rdb)
		})
	}
	sentinel := redistest.StartSentinel(t)
	options := redis.FailoverOptions{
		MasterName: redistest.MasterSet, SentinelAddrs: sentinel.Addrs(), Username: "nobody", SentinelUsername: "nobody",
	}
	rdb := redis.NewFailoverClient(&options)
	defer func() { _ = rdb.Close() }()
	require.NoError(t, rdb.Ping(t.Context()).Err())
	client, err := rlockgoredis.OpenOptions(&options, rlock.Options{})
	require.NoError(t, err)
	requireLocks(t, client, rdb)
}

// to is a dialer that always connects to one server.
func to(addr string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
}

func requireLocks(t *testing.T, client *rlock.Client, rdb redis.UniversalClient) {
	t.Helper()
	require.NoError(t, client.Mutex("order:42").Do(t.Context(), func(ctx context.Context) error {
		n, err := rdb.HLen(ctx, "order:42").Result()
		require.EqualValues(t, 1, n)
		return err
	}))
	require.Zero(t, rdb.Exists(t.Context(), "order:42").Val())
	client.Close()
	require.NoError(t, rdb.Set(t.Context(), "data", 1, 0).Err())
}

// With sentinels only options work. The Client follows the master as a user of the servers, unknown to the sentinels.
func TestOpenSentinels(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, "--user", "shop", "on", ">secret", "~*", "&*", "+@all")
	for _, addr := range s.Addrs() {
		sentinel := redis.NewClient(&redis.Options{Addr: addr})
		require.NoError(t, sentinel.Do(t.Context(), "ACL", "SETUSER", "guard", "on", ">sesame", "allchannels", "+@all").Err())
		_ = sentinel.Close()
	}
	options := redis.FailoverOptions{
		MasterName: redistest.MasterSet, SentinelAddrs: s.Addrs(), Username: "shop", Password: "secret", SentinelUsername: "guard", SentinelPassword: "sesame",
	}
	before := options
	client, err := rlockgoredis.OpenOptions(&options, rlock.Options{})
	require.NoError(t, err)
	require.Equal(t, before, options)
	rdb := redis.NewFailoverClient(&options)
	defer func() { _ = rdb.Close() }()
	requireLocks(t, client, rdb)

	universal := redis.UniversalOptions{
		MasterName: redistest.MasterSet, Addrs: s.Addrs(), Username: "shop", Password: "secret", SentinelUsername: "guard", SentinelPassword: "sesame",
	}
	client, err = rlockgoredis.OpenOptions(&universal, rlock.Options{})
	require.NoError(t, err)
	requireLocks(t, client, rdb)

	options.SentinelPassword = "wrong"
	_, err = rlockgoredis.OpenOptions(&options, rlock.Options{})
	require.ErrorContains(t, err, "WRONGPASS")
}

// Credentials are requested for each connection.
func TestCredentialsChange(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "p0")
	admin := redis.NewClient(&redis.Options{Addr: s.Addr(), Password: "p0", MaxRetries: -1})
	defer func() { _ = admin.Close() }()
	asked := make(chan int, 1)
	asked <- 0
	client, err := rlockgoredis.OpenOptions(&redis.Options{Addr: s.Addr(), CredentialsProvider: func() (string, string) {
		n := <-asked
		defer func() { asked <- n }()
		return "default", "p" + strconv.Itoa(n)
	}}, rlock.Options{})
	require.NoError(t, err)
	defer client.Close()
	work := func() error {
		return client.Mutex("a").Do(t.Context(), func(context.Context) error { return nil })
	}
	require.NoError(t, work())
	<-asked
	asked <- 1
	require.NoError(t, admin.ConfigSet(t.Context(), "requirepass", "p1").Err())
	require.NoError(t, admin.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err())
	require.NoError(t, work())
}

// Errors say what to do, without a password.
func TestOpenFails(t *testing.T) {
	t.Parallel()
	const password = "hush-hush"
	down := redistest.Start(t)
	down.Stop()
	shards := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": down.Addr()}})
	fail := func(o *redis.FailoverOptions) redis.UniversalClient { return redis.NewFailoverClient(o) }
	open := func(rdb redis.UniversalClient) func() (*rlock.Client, error) {
		return func() (*rlock.Client, error) {
			if rdb, ok := rdb.(interface{ Close() error }); ok && rdb != (*redis.Client)(nil) && rdb != (*redis.ClusterClient)(nil) {
				defer func() { _ = rdb.Close() }()
			}
			return rlockgoredis.Open(rdb, rlock.Options{})
		}
	}
	provider := func() (string, string) { return "", password }
	for name, c := range map[string]struct {
		open func() (*rlock.Client, error)
		says string
	}{
		"down":            {open(redis.NewClient(&redis.Options{Addr: down.Addr(), Password: password})), "rlock: cannot connect to Redis at " + down.Addr()},
		"nothing":         {open(nil), "rlockgoredis: the redis client is nil"},
		"no client":       {open((*redis.Client)(nil)), "rlockgoredis: the redis client is nil"},
		"no cluster":      {open((*redis.ClusterClient)(nil)), "rlockgoredis: the redis client is nil"},
		"a ring":          {open(shards), "rlockgoredis: a redis.Ring has its keys on independent servers"},
		"a wrapper":       {open(struct{ *redis.Client }{redis.NewClient(&redis.Options{})}), "pass its options to OpenOptions"},
		"failover client": {open(fail(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{down.Addr()}})), "pass its redis.FailoverOptions to OpenOptions"},
		"failover cluster client": {
			open(redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{down.Addr()}})),
			"ClusterSlots",
		},
		"streaming": {open(redis.NewClient(&redis.Options{StreamingCredentialsProvider: streaming{}})), "CredentialsProviderContext"},
		"no options": {func() (*rlock.Client, error) {
			return rlockgoredis.OpenOptions((*redis.Options)(nil), rlock.Options{})
		}, "rlockgoredis: the options are nil"},
		"no master": {func() (*rlock.Client, error) {
			return rlockgoredis.OpenOptions(&redis.FailoverOptions{}, rlock.Options{})
		}, "rlockgoredis: FailoverOptions.MasterName is empty"},
		"sentinels and a provider": {func() (*rlock.Client, error) {
			return rlockgoredis.OpenOptions(&redis.FailoverOptions{MasterName: "m", CredentialsProvider: provider}, rlock.Options{})
		}, "AuthCredentialsFn"},
		"bad Options": {func() (*rlock.Client, error) {
			return rlockgoredis.OpenOptions(&redis.Options{Addr: down.Addr()}, rlock.Options{WatchdogTimeout: time.Nanosecond})
		}, "WatchdogTimeout"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.open()
			require.ErrorContains(t, err, c.says)
			require.Regexp(t, `^rlock(goredis)?: [^\n]*$`, err)
			require.NotContains(t, err.Error(), password)
		})
	}
}

type streaming struct {
	auth.StreamingCredentialsProvider
}
