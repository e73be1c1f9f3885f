package main

import (
	"context"
	"errors"

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
		mutex: func(name string) lockFunc { return locking(c.Mutex(name)) },
		fair:  func(name string) lockFunc { return locking(c.FairMutex(name)) },
		read:  func(name string) lockFunc { return locking(c.RWMutex(name).Read()) },
		write: func(name string) lockFunc { return locking(c.RWMutex(name).Write()) },
		all: func(names []string) lockFunc {
			lockers := make([]rlock.Locker, len(names))
			for i, name := range names {
				lockers[i] = c.Mutex(name)
			}
			return locking(rlock.All(lockers...))
		},
		layers: func(name string, n int) lockFunc { return layered(c.Mutex(name), n) },
		close: func() {
			c.Close()
			rdb.Close()
		},
	}, nil
}

func locking(l rlock.Locker) lockFunc {
	return func(ctx context.Context) (func() error, error) {
		_, unlock, err := l.Lock(ctx)
		return unlock, err
	}
}

// layered locks inside of what it has locked.
func layered(l rlock.Locker, n int) lockFunc {
	return func(ctx context.Context) (func() error, error) {
		ctx, unlock, err := l.Lock(ctx)
		if err != nil || n == 1 {
			return unlock, err
		}
		inner, err := layered(l, n-1)(ctx)
		if err != nil {
			return nil, errors.Join(err, unlock())
		}
		return func() error { return errors.Join(inner(), unlock()) }, nil
	}
}
