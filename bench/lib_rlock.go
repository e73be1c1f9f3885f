package main

import (
	"context"

	"github.com/go-rlock/rlock/rlock"
)

func openRlock(o openOptions) (*client, error) { return openRlockWith(o, rlock.HandOff{}) }

// openHandOffs is openRlock with another bound for the hand-offs in a row; a negative one turns them off.
func openHandOffs(most int) func(openOptions) (*client, error) {
	return func(o openOptions) (*client, error) { return openRlockWith(o, rlock.HandOff{Most: most}) }
}

func openRlockWith(o openOptions, handOff rlock.HandOff) (*client, error) {
	rdb, err := dial(o.addr)
	if err != nil {
		return nil, err
	}
	c, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: o.lease, HandOff: handOff})
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
