package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func openRlock(o openOptions) (*client, error) { return openRlockWith(o, rlock.HandOff{}) }

// openLinger is openRlock with WithLinger.
func openLinger(o openOptions) (*client, error) {
	return openRlockWith(o, rlock.HandOff{}, rlock.WithLinger(time.Minute))
}

// openHandOffs is openRlock with another limit of consecutive hand-offs; a negative limit turns them off.
func openHandOffs(most int) func(openOptions) (*client, error) {
	return func(o openOptions) (*client, error) { return openRlockWith(o, rlock.HandOff{Most: most}) }
}

func openRlockWith(o openOptions, handOff rlock.HandOff, mutex ...rlock.Option) (*client, error) {
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
		mutex: func(name string) lockFunc { return locking(c.Mutex(name, mutex...)) },
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
		semaphore: func(name string, permits int64) lockFunc {
			s := c.Semaphore(name)
			if _, err := s.TrySetPermits(context.Background(), permits); err != nil {
				return failing(err)
			}
			return func(ctx context.Context) (func() error, error) {
				return func() error { return s.Release(ctx, 1) }, s.Acquire(ctx, 1)
			}
		},
		permits: func(name string, permits int64) lockFunc {
			s := c.PermitSemaphore(name)
			if _, err := s.TrySetPermits(context.Background(), permits); err != nil {
				return failing(err)
			}
			return func(ctx context.Context) (func() error, error) {
				_, p, err := s.Acquire(ctx)
				if err != nil {
					return nil, err
				}
				return p.Release, nil
			}
		},
		latch: func(name string) latch {
			l := c.CountDownLatch(name)
			return latch{
				set: func(ctx context.Context) error {
					_, err := l.TrySetCount(ctx, 1)
					return err
				},
				countDown: l.CountDown,
				await:     l.Await,
			}
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

// layered locks inside its own sections.
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
