package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/rueidis"
)

const (
	roleSentinel = "sentinel"
	roleMaster   = "master"
)

// refusal is the reason why a server behind sentinels, or a sentinel, cannot be used.
type refusal struct {
	addr, role string
	err        error
}

func (e refusal) Error() string { return e.addr + " (" + e.role + "): " + e.err.Error() }
func (e refusal) Unwrap() error { return e.err }

// blame finds out who caused an error of rueidis.NewClient behind sentinels, which have passwords of their own: it does not say. It returns
// the error as it is if that does not show.
func blame(o rueidis.ClientOption, failed error) error {
	if o.Sentinel.MasterSet == "" {
		return failed
	}
	var refused error
	began := time.Now()
	for _, addr := range o.InitAddress {
		if time.Since(began) > nodeTime {
			break
		}
		master, err := askSentinel(o, addr)
		var said *rueidis.RedisError
		switch {
		case err == nil:
			if err = askMaster(o, master); err != nil {
				return refusal{master, roleMaster, err}
			}
			return failed
		case refused == nil && errors.As(err, &said):
			refused = refusal{addr, roleSentinel, err}
		}
	}
	return cmp.Or(refused, failed)
}

// askSentinel asks one sentinel what rueidis asks it.
func askSentinel(o rueidis.ClientOption, addr string) (master string, err error) {
	o.Username, o.Password, o.TLSConfig, o.SelectDB = o.Sentinel.Username, o.Sentinel.Password, o.Sentinel.TLSConfig, 0
	err = askOne(o, addr, func(ctx context.Context, c rueidis.Client) error {
		if err := c.Do(ctx, c.B().SentinelSentinels().Master(o.Sentinel.MasterSet).Build()).Error(); err != nil {
			return err
		}
		at, err := c.Do(ctx, c.B().SentinelGetMasterAddrByName().Master(o.Sentinel.MasterSet).Build()).AsStrSlice()
		if err == nil && len(at) == 2 {
			master = net.JoinHostPort(at[0], at[1])
		}
		return err
	})
	return master, err
}

// askMaster asks the master what rueidis asks it.
func askMaster(o rueidis.ClientOption, addr string) error {
	return askOne(o, addr, func(ctx context.Context, c rueidis.Client) error {
		return c.Do(ctx, c.B().Role().Build()).Error()
	})
}

// askOne connects to one server only, for a moment.
func askOne(o rueidis.ClientOption, addr string, ask func(context.Context, rueidis.Client) error) error {
	o.InitAddress, o.Sentinel, o.ForceSingleClient = []string{addr}, rueidis.SentinelOption{}, true
	o.Dialer.Timeout = nodeTime
	c, err := rueidis.NewClient(o)
	if c != nil {
		defer c.Close()
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), nodeTime)
	defer cancel()
	return ask(ctx, c)
}
