package rlock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
)

// The default times of a connection that Open and OpenWith make.
const (
	dialTimeout     = 2 * time.Second // a call that has to dial may take this much longer
	answerTimeout   = 3 * time.Second // a connection that has not answered for this long counts as dead
	keepAlive       = time.Second     // an idle connection is pinged this often
	sentinelRefresh = 5 * time.Second // an announcement of a new master may get lost
)

// Open returns a [Client] with connections of its own to the Redis at a URL, which [Client.Close] and [Client.Shutdown] close:
//
//	redis://user:password@host:6379/0                      a server, or any node of a cluster
//	rediss://host:6380                                     the same with TLS
//	redis://host:7001?addr=host2:7002&addr=host3:7003      several nodes of a cluster: one of them has to answer
//	redis://host:26379?addr=host2:26379&master_set=main    the master that sentinels name; without a password of their own
//	unix:///run/redis.sock?db=0                            a Unix socket
//
// In a user or a password, write %40 %3A %2F %3F %23 %25 for @ : / ? # %. Other parameters are dial_timeout (2s by default), write_timeout (3s:
// how long a connection may be silent before it counts as dead), client_name, protocol=2, and skip_verify, which turns off the check of
// certificates; unknown ones are ignored. A certificate has to be for the URL's host, or for the address of the server that shows it.
//
// Open connects at once, unless [Options].ConnectOnUse is set, and fails if no server answers, or one refuses the user, after at most
// dial_timeout for each server it tries. Its errors contain no password; without an answer from Redis they satisfy [ErrUnreachable]. Later
// failures of a connection are mended, and a server that answers READONLY is dialled anew.
func Open(url string, o Options) (*Client, error) {
	redis, err := rueidis.ParseURL(url)
	if err != nil { // which has the URL, or a part of it
		return nil, errors.New("rlock: not a Redis URL: want redis://user:password@host:6379/0, rediss://… for TLS, or unix:///path, " +
			"with %40 %3A %2F %3F %23 %25 for @ : / ? # % in the password, and times as in dial_timeout=2s")
	}
	if redis.TLSConfig != nil {
		redis.DialCtxFn = calls.DialEither
	}
	return OpenWith(redis, o)
}

// OpenWith is [Open] with the options of the rueidis client it makes, for what a URL cannot express: certificates, sentinels with a password,
// credentials that change, a dialer. It sets unset options as docs/operating.md recommends, always sets DisableCache, and wraps the dialer.
func OpenWith(redis rueidis.ClientOption, o Options) (*Client, error) {
	if _, err := o.validate(); err != nil { // before it connects
		return nil, err
	}
	redis = watch(forLocks(redis))
	if o.ConnectOnUse {
		return openLate(redis, o)
	}
	rdb, err := rueidis.NewClient(redis)
	if err != nil {
		if rdb != nil { // with ForceSingleClient
			rdb.Close()
		}
		return nil, notConnected(redis, err)
	}
	return newOwner(rdb, o)
}

// newOwner returns a Client that closes rdb with itself.
func newOwner(rdb rueidis.Client, o Options) (*Client, error) {
	c, err := New(rdb, o)
	if err != nil {
		rdb.Close()
		return nil, err
	}
	c.closeRedis = sync.OnceFunc(rdb.Close)
	return c, nil
}

func forLocks(o rueidis.ClientOption) rueidis.ClientOption {
	patience := func(d *net.Dialer, timeout, idle time.Duration) {
		d.Timeout, d.KeepAlive = cmp.Or(d.Timeout, timeout), cmp.Or(d.KeepAlive, idle)
	}
	patience(&o.Dialer, dialTimeout, keepAlive)
	if o.ConnWriteTimeout == 0 {
		o.ConnWriteTimeout = answerTimeout
	}
	o.DisableCache = true
	if o.Sentinel.MasterSet == "" {
		return o
	}
	// rueidis gives it none: nothing would end a dial, or notice that a sentinel is dead.
	patience(&o.Sentinel.Dialer, o.Dialer.Timeout, o.Dialer.KeepAlive)
	if o.Sentinel.TLSConfig == nil {
		o.Sentinel.TLSConfig = o.TLSConfig
	}
	if o.Sentinel.TopologyRefreshInterval == 0 {
		o.Sentinel.TopologyRefreshInterval = sentinelRefresh
	}
	return o
}

// notConnected names the addresses, and the reason for the failure.
func notConnected(o rueidis.ClientOption, err error) *openError {
	to := "Redis"
	if o.Sentinel.MasterSet != "" {
		to = fmt.Sprintf("the master %q of the sentinels", o.Sentinel.MasterSet)
	}
	text := fmt.Sprintf("cannot connect to %s at %s: %v", to, strings.Join(o.InitAddress, ","), err)
	return &openError{text, err}
}

// openError satisfies ErrUnreachable if another try may succeed.
type openError struct {
	text  string
	cause error
}

func (e *openError) Error() string { return "rlock: " + e.text + cure(e.cause) }
func (e *openError) Unwrap() error { return e.cause }
func (e *openError) Is(target error) bool {
	return target == ErrUnreachable && calls.IsTransient(e.cause)
}

func cure(err error) string {
	var redisErr *rueidis.RedisError
	var record tls.RecordHeaderError
	var op *net.OpError
	switch {
	case errors.As(err, &redisErr):
		if said := redisErr.Error(); strings.HasPrefix(said, "NOAUTH") || strings.HasPrefix(said, "WRONGPASS") {
			return " (look at the user and the password)"
		}
	case errors.As(err, &record):
		return " (what listens there does not speak TLS)"
	case calls.Cure(err) != "":
	case errors.As(err, &op) && op.Op == "dial":
		return " (start Redis there, or correct the address)"
	case errors.Is(err, context.DeadlineExceeded):
		return " (is it a Redis that speaks TLS, or none?)"
	}
	return calls.Cure(err)
}
