package main

import (
	"context"

	"github.com/go-rlock/rlock/rlock"
)

func openRlock(o openOptions) (*client, error) {
	rdb, err := dial(o.addr)
	if err != nil {
		return nil, err
	}
	c, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: o.lease})
	if err != nil {
		rdb.Close()
		return nil, err
	}
	return &client{
		mutex: func(name string) lockFunc {
			m := c.Mutex(name)
			return func(ctx context.Context) (func() error, error) {
				_, unlock, err := m.Lock(ctx)
				return unlock, err
			}
		},
		close: func() {
			c.Close()
			rdb.Close()
		},
	}, nil
}
