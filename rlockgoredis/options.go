package rlockgoredis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

func fromConfig(config any) (none rueidis.ClientOption, err error) {
	switch o := config.(type) {
	case *redis.Options:
		if o != nil {
			return single(o)
		}
	case *redis.FailoverOptions:
		if o != nil {
			return failover(o)
		}
	case *redis.ClusterOptions:
		if o != nil {
			return cluster(o)
		}
	case *redis.UniversalOptions:
		if o != nil {
			return universal(*o)
		}
	}
	return none, errors.New("the options are nil")
}

// universal chooses like redis.NewUniversalClient. Its argument is a copy, which the conversions may complete.
func universal(o redis.UniversalOptions) (rueidis.ClientOption, error) {
	switch {
	case o.MasterName != "":
		return failover(o.Failover())
	case len(o.Addrs) > 1 || o.IsClusterMode:
		return cluster(o.Cluster())
	}
	return single(o.Simple())
}

func single(o *redis.Options) (rueidis.ClientOption, error) {
	addr, network := o.Addr, o.Network
	if addr == "" {
		addr = "localhost:6379" // go-redis's defaults
	}
	if network == "" && strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	to, err := common(o, network)
	to.InitAddress = []string{addr}
	to.ForceSingleClient = true // like go-redis, which does not check for a cluster
	to.SelectDB = o.DB
	return to, err
}

func failover(o *redis.FailoverOptions) (rueidis.ClientOption, error) {
	if o.MasterName == "" {
		return rueidis.ClientOption{}, errors.New("FailoverOptions.MasterName is empty")
	}
	if o.CredentialsProvider != nil || o.CredentialsProviderContext != nil {
		return rueidis.ClientOption{}, errors.New("the sentinels would see CredentialsProvider's credentials: " +
			"use rlock.OpenWith, with an AuthCredentialsFn that tells sentinels from servers by their address")
	}
	to, err := common(&redis.Options{
		Dialer: o.Dialer, DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig,
		Username: o.Username, Password: o.Password, StreamingCredentialsProvider: o.StreamingCredentialsProvider,
		ClientName: o.ClientName, Protocol: o.Protocol, DisableIdentity: o.DisableIdentity || o.DisableIndentity, //nolint:staticcheck // some still set it
	}, "")
	to.InitAddress = slices.Clone(o.SentinelAddrs)
	to.SelectDB = o.DB
	to.Sentinel = rueidis.SentinelOption{
		MasterSet: o.MasterName, Username: user(o.SentinelUsername, o.SentinelPassword), Password: o.SentinelPassword,
		ClientName: to.ClientName, Dialer: to.Dialer, TLSConfig: to.TLSConfig,
	}
	return to, err
}

func cluster(o *redis.ClusterOptions) (rueidis.ClientOption, error) {
	if o.ClusterSlots != nil {
		return rueidis.ClientOption{}, errors.New("ClusterSlots servers are not a cluster, but a lock needs one server: " +
			"pass the options of one of them to OpenOptions, or redis.FailoverOptions")
	}
	to, err := common(&redis.Options{
		Dialer: o.Dialer, DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig,
		Username: o.Username, Password: o.Password, CredentialsProvider: o.CredentialsProvider,
		CredentialsProviderContext: o.CredentialsProviderContext, StreamingCredentialsProvider: o.StreamingCredentialsProvider,
		ClientName: o.ClientName, Protocol: o.Protocol, DisableIdentity: o.DisableIdentity || o.DisableIndentity, //nolint:staticcheck // some still set it
	}, "")
	to.InitAddress = slices.Clone(o.Addrs)
	return to, err
}

// goRedisDialTimeout is go-redis's default. Its clients do not tell whether it was set explicitly.
const goRedisDialTimeout = 5 * time.Second

// common converts the options common to all kinds of client. An empty network means "tcp".
func common(o *redis.Options, network string) (to rueidis.ClientOption, err error) {
	if o.StreamingCredentialsProvider != nil {
		return to, errors.New("rueidis does not support a StreamingCredentialsProvider: use CredentialsProviderContext, or rlock.OpenWith with " +
			"an AuthCredentialsFn that says when to log in again")
	}
	to = rueidis.ClientOption{
		Username: user(o.Username, o.Password), Password: o.Password, ClientName: o.ClientName,
		TLSConfig:   o.TLSConfig,
		AlwaysRESP2: o.Protocol == 2,
	}
	if o.DialTimeout > 0 && o.DialTimeout != goRedisDialTimeout {
		to.Dialer.Timeout = o.DialTimeout
	}
	if o.DisableIdentity || o.DisableIndentity { //nolint:staticcheck // some still set it
		to.ClientSetInfo = rueidis.DisableClientSetInfo
	}
	to.DialCtxFn = dialer(o, network)
	to.AuthCredentialsFn = credentials(o)
	return to, nil
}

// user returns the name with which go-redis logs in: without a password it does not.
func user(name, password string) string {
	if password == "" {
		return ""
	}
	return name
}

// dialer returns nil if rueidis dials as go-redis would.
func dialer(o *redis.Options, network string) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	dial := o.Dialer
	switch {
	case dial != nil:
	case network != "" && network != "tcp":
		dial = redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
	default:
		return nil
	}
	if network == "" {
		network = "tcp"
	}
	return func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, d.Timeout)
		defer cancel()
		return dialWithin(ctx, dial, network, addr)
	}
}

// dialWithin leaves a dial that does not heed its ctx: go-redis's own does not with TLS.
func dialWithin(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), network, addr string) (net.Conn, error) {
	type dialled struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialled)
	go func() { // ends with the dial
		conn, err := dial(ctx, network, addr)
		select {
		case done <- dialled{conn, err}:
		case <-ctx.Done():
			if err == nil {
				_ = conn.Close()
			}
		}
	}()
	select {
	case d := <-done:
		return d.conn, d.err
	case <-ctx.Done():
		err := ctx.Err()
		if errors.Is(err, context.DeadlineExceeded) {
			err = os.ErrDeadlineExceeded // it is no caller's
		}
		return nil, &net.OpError{Op: "dial", Net: network, Addr: address(addr), Err: err}
	}
}

// address is a net.Addr as it was given.
type address string

func (address) Network() string  { return "" }
func (a address) String() string { return string(a) }

// credentials returns a function that rueidis calls for each connection, as go-redis does.
func credentials(o *redis.Options) func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
	timeout := o.DialTimeout
	if timeout <= 0 {
		timeout = goRedisDialTimeout
	}
	switch plain, ask := o.CredentialsProvider, o.CredentialsProviderContext; {
	case ask != nil:
		return func(rueidis.AuthCredentialsContext) (c rueidis.AuthCredentials, err error) {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			if c.Username, c.Password, err = ask(ctx); err != nil {
				err = fmt.Errorf("CredentialsProviderContext: %w", err)
			}
			c.Username = user(c.Username, c.Password)
			return c, err
		}
	case plain != nil:
		return func(rueidis.AuthCredentialsContext) (c rueidis.AuthCredentials, err error) {
			c.Username, c.Password = plain()
			c.Username = user(c.Username, c.Password)
			return c, nil
		}
	}
	return nil
}
