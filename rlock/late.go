package rlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/tenure"
)

// lateRedis is the rueidis client of a Client with Options.ConnectOnUse. Package rueidis makes no client without a connection: only the
// connection shows whether there is a cluster. So the engine asks for it when it learns of the Redis (tenure.Topology), before it does
// anything else. Calls that the engine makes without that, after Close, get an error.
type lateRedis struct {
	rueidis.Client // cannot connect; it has the methods that nobody here calls
	option         rueidis.ClientOption
	now            atomic.Pointer[rueidis.Client] // never nil; one that cannot connect until connected is set

	mu        sync.Mutex // guards the following; no other lock is taken under it
	attempt   *connecting
	connected bool
	closed    bool
}

var _ tenure.Late = (*lateRedis)(nil)

type connecting struct {
	over chan struct{} // closed when err is set
	err  error
}

// openLate makes a Client that connects when it is first used.
func openLate(option rueidis.ClientOption, o Options) (*Client, error) {
	if len(option.InitAddress) == 0 {
		return nil, errors.New("rlock: there is no address of a Redis to connect to (set InitAddress)")
	}
	option.InitAddress = slices.Clone(option.InitAddress) // each attempt may shuffle them
	none, err := unconnected(option)
	if none != nil {
		none.Close()
	}
	if !errors.Is(err, errNotConnected) { // no attempt could do better
		return nil, fmt.Errorf("rlock: the options of rueidis: %w", err)
	}
	none, _ = unconnected(rueidis.ClientOption{ // which returns a client beside the error
		InitAddress: option.InitAddress[:1], ForceSingleClient: true, DisableCache: true, DisableRetry: true,
	})
	rdb := &lateRedis{Client: none, option: option}
	rdb.now.Store(&none)
	return newOwner(rdb, o)
}

// unconnected makes a client that cannot dial. The error is errNotConnected, or about the options.
func unconnected(option rueidis.ClientOption) (rueidis.Client, error) {
	option.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) { return nil, errNotConnected }
	return rueidis.NewClient(option)
}

var errNotConnected = errors.New("not connected")

// Connect returns when there is a connection, or the error of an attempt. Whoever makes it goes on after its caller has left.
func (l *lateRedis) Connect() error {
	l.mu.Lock()
	if l.connected {
		l.mu.Unlock()
		return nil
	}
	a := l.attempt
	first := a == nil
	if first {
		a = &connecting{over: make(chan struct{})}
		l.attempt = a
	}
	l.mu.Unlock()
	if !first {
		<-a.over
		return a.err
	}
	rdb, err := rueidis.NewClient(l.option)
	if err != nil {
		if rdb != nil { // with ForceSingleClient
			rdb.Close()
		}
		a.err = &lateError{notConnected(l.option, err)}
	}
	l.mu.Lock()
	l.attempt = nil
	late := err == nil && l.closed
	if err == nil && !l.closed {
		none := *l.now.Swap(&rdb)
		l.connected = true
		defer none.Close()
	}
	l.mu.Unlock()
	if late { // Close has not waited for it
		rdb.Close()
		a.err = errNotConnected
	}
	close(a.over)
	return a.err
}

// lateError is that of an attempt, within the error of a call on a lock, which adds the cures that all calls have.
type lateError struct{ *openError }

func (e *lateError) Error() string {
	if calls.Cure(e.cause) != "" {
		return e.text
	}
	return e.text + cure(e.cause)
}

// MayRepeat is for package calls.
func (l *lateRedis) MayRepeat() bool { return l.option.ConnLifetime > 0 }

func (l *lateRedis) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	(*l.now.Load()).Close()
}

func (l *lateRedis) B() rueidis.Builder { return (*l.now.Load()).B() }

func (l *lateRedis) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return (*l.now.Load()).Do(ctx, cmd)
}

func (l *lateRedis) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	return (*l.now.Load()).DoMulti(ctx, multi...)
}

func (l *lateRedis) Dedicate() (rueidis.DedicatedClient, func()) { return (*l.now.Load()).Dedicate() }

func (l *lateRedis) Nodes() map[string]rueidis.Client { return (*l.now.Load()).Nodes() }

func (l *lateRedis) Mode() rueidis.ClientMode { return (*l.now.Load()).Mode() }
