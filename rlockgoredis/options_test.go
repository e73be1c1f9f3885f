package rlockgoredis

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/go-redis/v9/push"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// Every field of go-redis's options must be in one of these lists.
var (
	taken = strings.Fields(`
		Network Addr Addrs SentinelAddrs MasterName IsClusterMode DB Dialer TLSConfig DialTimeout
		Username Password SentinelUsername SentinelPassword CredentialsProvider CredentialsProviderContext
		ClientName Protocol DisableIdentity DisableIndentity`)

	refused = strings.Fields(`StreamingCredentialsProvider ClusterSlots`)

	// Options of connections other than ours.
	without = strings.Fields(`
		NodeAddress OnConnect NewClient Limiter IdentitySuffix UnstableResp3 PushNotificationProcessor MaintNotificationsConfig
		MaxRetries MinRetryBackoff MaxRetryBackoff DialerRetries DialerRetryTimeout DialerRetryBackoff
		ReadTimeout WriteTimeout ContextTimeoutEnabled
		ReadBufferSize WriteBufferSize PipelineReadBufferSize PipelineWriteBufferSize PipelinePoolSize AutoPipelineOptions
		PoolFIFO PoolSize MaxConcurrentDials PoolTimeout MinIdleConns MaxIdleConns MaxActiveConns
		ConnMaxIdleTime ConnMaxLifetime ConnMaxLifetimeJitter
		MaxRedirects ReadOnly ReplicaOnly RouteByLatency RouteByLatencyTolerance RouteRandomly UseDisconnectedReplicas DisableRoutingPolicies
		FailingTimeoutSeconds ShardPicker ClusterStateReloadInterval
		ClientSideCacheConfig ClientSideCache ClientSideCacheStrategy ClientSideCacheRefreshOnInvalidate ClientSideCacheCoalesceMisses
		ClientSideCacheInvalidationBatchWindow`)
)

// Each field is copied, refused, or known not to concern locks. New fields of a new go-redis version must be added here, and perhaps in
// options.go. The package documentation must agree.
func TestEachField(t *testing.T) {
	for _, base := range []any{
		&redis.Options{Password: "p"}, &redis.ClusterOptions{Password: "p"}, // without a password a user has no effect
		&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{"a:1"}, Password: "p", SentinelPassword: "p"},
		&redis.UniversalOptions{Password: "p"}, &redis.UniversalOptions{MasterName: "main", Password: "p", SentinelPassword: "p"},
		&redis.UniversalOptions{IsClusterMode: true, Password: "p"},
	} {
		kind := reflect.TypeOf(base).Elem()
		before, err := fromConfig(base)
		require.NoError(t, err)
		for i := range kind.NumField() {
			field := kind.Field(i)
			if !field.IsExported() {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", kind.Name(), field.Name), func(t *testing.T) {
				changed := reflect.New(kind)
				changed.Elem().Set(reflect.ValueOf(base).Elem())
				changed.Elem().Field(i).Set(sample(t, field))
				after, err := fromConfig(changed.Interface())
				switch {
				case slices.Contains(refused, field.Name):
					require.Error(t, err)
				case before.Sentinel.MasterSet != "" && strings.HasPrefix(field.Name, "CredentialsProvider"):
					require.ErrorContains(t, err, "AuthCredentialsFn")
				case hasNoUse(before, field.Name), slices.Contains(without, field.Name):
					require.NoError(t, err)
					require.Equal(t, seen(before), seen(after), "it is taken over")
				case slices.Contains(taken, field.Name):
					require.NoError(t, err)
					require.NotEqual(t, seen(before), seen(after), "it is not taken over")
				default:
					require.Fail(t, "add this field to one of the lists")
				}
			})
		}
	}
}

// hasNoUse reports whether UniversalOptions have the field only for other deployments.
func hasNoUse(o rueidis.ClientOption, field string) bool {
	switch field {
	case "SentinelUsername", "SentinelPassword":
		return o.Sentinel.MasterSet == ""
	case "DB":
		return o.Sentinel.MasterSet == "" && !o.ForceSingleClient
	case "IsClusterMode": // go-redis then routes reads to replicas, which is not for locks
		return o.Sentinel.MasterSet != "" || !o.ForceSingleClient
	}
	return false
}

// seen returns the comparable part of options: functions cannot be compared.
func seen(o rueidis.ClientOption) any {
	dials, asks := o.DialCtxFn != nil, o.AuthCredentialsFn != nil
	o.DialCtxFn, o.AuthCredentialsFn = nil, nil
	return struct {
		rueidis.ClientOption
		dials, asks bool
	}{o, dials, asks}
}

// sample returns a value other than the zero value and the base's.
func sample(t *testing.T, field reflect.StructField) reflect.Value {
	t.Helper()
	switch field.Name {
	case "Network":
		return reflect.ValueOf("unix")
	case "Protocol":
		return reflect.ValueOf(2)
	case "ShardPicker": // whose type is internal
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
		defer func() { _ = rdb.Close() }()
		return reflect.ValueOf(rdb.Options().ShardPicker)
	}
	for _, v := range []any{struct{ redis.Limiter }{}, struct{ redis.Cache }{}, struct{ push.NotificationProcessor }{}, &streaming{}} {
		if field.Type.Kind() == reflect.Interface && reflect.TypeOf(v).Implements(field.Type) {
			return reflect.ValueOf(v)
		}
	}
	v := reflect.New(field.Type).Elem()
	switch field.Type.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(7 * time.Second))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(field.Type.Elem()))
	case reflect.Slice:
		v.Set(reflect.ValueOf([]string{"x:1"}))
	case reflect.Func:
		v.Set(reflect.MakeFunc(field.Type, func([]reflect.Value) []reflect.Value { panic("not called") }))
	default:
		require.Fail(t, "no sample", "%s %s", field.Name, field.Type)
	}
	return v
}

type streaming struct {
	auth.StreamingCredentialsProvider
}

// The options have the same meaning as in go-redis.
func TestConversion(t *testing.T) {
	secure := &tls.Config{ServerName: "x", MinVersion: tls.VersionTLS12}
	for name, c := range map[string]struct {
		from any
		want rueidis.ClientOption
	}{
		"nothing": {&redis.Options{}, rueidis.ClientOption{InitAddress: []string{"localhost:6379"}, ForceSingleClient: true}},
		"a server": {
			&redis.Options{Addr: "a:1", Username: "u", Password: "p", DB: 3, ClientName: "shop", Protocol: 2, TLSConfig: secure, DialTimeout: time.Second},
			rueidis.ClientOption{
				InitAddress: []string{"a:1"}, Username: "u", Password: "p", SelectDB: 3, ClientName: "shop", AlwaysRESP2: true, TLSConfig: secure,
				Dialer: net.Dialer{Timeout: time.Second}, ForceSingleClient: true,
			},
		},
		"time-out by default": {&redis.Options{Addr: "a:1", DialTimeout: 5 * time.Second}, rueidis.ClientOption{InitAddress: []string{"a:1"}, ForceSingleClient: true}},
		"no identity":         {&redis.Options{Addr: "a:1", DisableIdentity: true}, rueidis.ClientOption{InitAddress: []string{"a:1"}, ForceSingleClient: true, ClientSetInfo: []string{}}},
		"a cluster": {
			&redis.ClusterOptions{Addrs: []string{"a:1", "b:2"}, Username: "u", Password: "p"},
			rueidis.ClientOption{InitAddress: []string{"a:1", "b:2"}, Username: "u", Password: "p"},
		},
		"sentinels": {
			&redis.FailoverOptions{
				MasterName: "main", SentinelAddrs: []string{"a:1", "b:2"}, SentinelUsername: "su", SentinelPassword: "sp",
				Username: "u", Password: "p", DB: 3, TLSConfig: secure, DialTimeout: time.Second, ClientName: "shop",
			},
			rueidis.ClientOption{
				InitAddress: []string{"a:1", "b:2"}, Username: "u", Password: "p", SelectDB: 3, TLSConfig: secure, ClientName: "shop",
				Dialer: net.Dialer{Timeout: time.Second},
				Sentinel: rueidis.SentinelOption{
					MasterSet: "main", Username: "su", Password: "sp", TLSConfig: secure, ClientName: "shop", Dialer: net.Dialer{Timeout: time.Second},
				},
			},
		},
		"universal, nothing":   {&redis.UniversalOptions{}, rueidis.ClientOption{InitAddress: []string{"127.0.0.1:6379"}, ForceSingleClient: true}},
		"universal, a server":  {&redis.UniversalOptions{Addrs: []string{"a:1"}, DB: 3}, rueidis.ClientOption{InitAddress: []string{"a:1"}, SelectDB: 3, ForceSingleClient: true}},
		"universal, cluster":   {&redis.UniversalOptions{Addrs: []string{"a:1", "b:2"}}, rueidis.ClientOption{InitAddress: []string{"a:1", "b:2"}}},
		"universal, a node":    {&redis.UniversalOptions{Addrs: []string{"a:1"}, IsClusterMode: true}, rueidis.ClientOption{InitAddress: []string{"a:1"}}},
		"universal, sentinels": {&redis.UniversalOptions{Addrs: []string{"a:1"}, MasterName: "main"}, rueidis.ClientOption{InitAddress: []string{"a:1"}, Sentinel: rueidis.SentinelOption{MasterSet: "main"}}},
	} {
		t.Run(name, func(t *testing.T) {
			is, err := fromConfig(c.from)
			require.NoError(t, err)
			require.Equal(t, c.want, is)
		})
	}
}

// A dialer gets the network, the address and the time-out.
func TestDialer(t *testing.T) {
	type call struct{ network, addr string }
	for want, o := range map[call]*redis.Options{
		{"tcp", "a:1"}:  {Addr: "a:1"},
		{"unix", "/s"}:  {Addr: "/s"},
		{"tcp6", "a:2"}: {Addr: "a:2", Network: "tcp6"},
	} {
		var is call
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			end, ok := ctx.Deadline()
			require.True(t, ok)
			require.LessOrEqual(t, time.Until(end), time.Second)
			is = call{network, addr}
			return nil, context.Canceled
		}
		to, err := fromConfig(o)
		require.NoError(t, err)
		_, err = to.DialCtxFn(t.Context(), to.InitAddress[0], &net.Dialer{Timeout: time.Second}, nil)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, want, is)
	}
}

// A dial ends with its ctx. go-redis's own does not with TLS, nor need that of a user: its connection, which comes too late, is closed.
func TestDialEndsWithItsContext(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0") // accepts, and says nothing
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	secure := redis.NewClient(&redis.Options{Addr: listener.Addr().String(), DialTimeout: time.Hour, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12}})
	defer func() { _ = secure.Close() }()
	near, far := net.Pipe()
	late := make(chan bool)
	slow := &redis.Options{Addr: "a:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
		<-late
		return near, nil
	}}
	for name, o := range map[string]*redis.Options{"TLS": secure.Options(), "its own": slow} {
		t.Run(name, func(t *testing.T) {
			to, err := fromConfig(o)
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() { // ends with the dial
				_, err := to.DialCtxFn(t.Context(), o.Addr, &net.Dialer{Timeout: time.Millisecond}, nil)
				ended <- err
			}()
			require.EqualError(t, redistest.Within(t, 20*time.Second, ended, "the dial ends"), "dial tcp "+o.Addr+": i/o timeout")
		})
	}
	close(late)
	closed := make(chan error, 1)
	go func() { // ends with the connection
		_, err := far.Read(make([]byte, 1))
		closed <- err
	}()
	require.ErrorIs(t, redistest.Within(t, 20*time.Second, closed, "it is closed"), io.EOF)
}

// The function with a ctx has priority, as in go-redis.
func TestCredentials(t *testing.T) {
	plain := func() (string, string) { return "u", "p" }
	for name, c := range map[string]struct {
		with func(context.Context) (string, string, error)
		want rueidis.AuthCredentials
		says string
	}{
		"without a ctx": {nil, rueidis.AuthCredentials{Username: "u", Password: "p"}, ""},
		"with one": {func(ctx context.Context) (string, string, error) {
			_, ok := ctx.Deadline()
			return fmt.Sprint("ends ", ok), "q", nil
		}, rueidis.AuthCredentials{Username: "ends true", Password: "q"}, ""},
		"error": {func(context.Context) (string, string, error) { return "", "", context.Canceled }, rueidis.AuthCredentials{}, "CredentialsProviderContext: context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			to, err := fromConfig(&redis.ClusterOptions{CredentialsProvider: plain, CredentialsProviderContext: c.with})
			require.NoError(t, err)
			is, err := to.AuthCredentialsFn(rueidis.AuthCredentialsContext{})
			if c.says != "" {
				require.EqualError(t, err, c.says)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, is)
		})
	}
}
