package main

import (
	"context"
	"errors"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	syncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis/rueidiscompat"
)

// openRedsync is redsync on go-redis, the first pool in its documentation.
func openRedsync(o openOptions) (*client, error) {
	rdb := redis.NewClient(&redis.Options{Addr: o.addr})
	return redsyncOn(goredis.NewPool(rdb), o, func() { rdb.Close() }), nil
}

// openRedsyncRueidis is redsync on rlock's Redis client.
func openRedsyncRueidis(o openOptions) (*client, error) {
	rdb, err := dial(o.addr)
	if err != nil {
		return nil, err
	}
	return redsyncOn(syncrueidis.NewPool(rueidiscompat.NewAdapter(rdb)), o, rdb.Close), nil
}

// redsyncOn polls as redsync does by default: 32 times with pauses of 50 to 250 ms. Then its Lock gives up, and the harness calls again. A
// redsync Mutex is for one holder, so each call has its own.
func redsyncOn(pool syncredis.Pool, o openOptions, closeAll func()) *client {
	rs := redsync.New(pool)
	return &client{
		mutex: func(name string) lockFunc {
			return func(ctx context.Context) (func() error, error) {
				m := rs.NewMutex(name, redsync.WithExpiry(o.lease))
				for {
					err := m.LockContext(ctx)
					if err == nil {
						break
					}
					var taken *redsync.ErrTaken
					if ctx.Err() != nil || !errors.As(err, &taken) && !errors.Is(err, redsync.ErrFailed) {
						return nil, err
					}
				}
				return func() error {
					_, err := m.UnlockContext(ctx)
					return err
				}, nil
			}
		},
		close: closeAll,
	}
}
