package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// openBsm polls every 100 ms, as its documentation shows; by default it does not wait at all. Without a deadline it gives up after the
// lease time, so the harness calls again.
func openBsm(o openOptions) (*client, error) {
	rdb := redis.NewClient(&redis.Options{Addr: o.addr})
	locker := redislock.New(rdb)
	return &client{
		mutex: func(name string) lockFunc {
			return func(ctx context.Context) (func() error, error) {
				for {
					lock, err := locker.Obtain(ctx, name, o.lease, &redislock.Options{
						RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond),
					})
					if err == nil {
						return func() error { return lock.Release(ctx) }, nil
					}
					if ctx.Err() != nil || !errors.Is(err, redislock.ErrNotObtained) && !errors.Is(err, context.DeadlineExceeded) {
						return nil, err
					}
				}
			}
		},
		close: func() { rdb.Close() },
	}, nil
}
