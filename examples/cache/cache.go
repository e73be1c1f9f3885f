package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// cache is one value in Redis that takes long to build.
type cache struct {
	rdb   rueidis.Client
	key   string
	ttl   time.Duration
	lock  *rlock.RWMutex
	build func(ctx context.Context) (string, error)
}

var errMiss = errors.New("the value is not there")

// get returns the value. If it is missing, one caller among all processes builds it, and the others wait for that.
func (c *cache) get(ctx context.Context) (string, error) {
	value, err := c.look(ctx)
	if !errors.Is(err, errMiss) {
		return value, err
	}
	fill := func(ctx context.Context) (err error) {
		if value, err = c.look(ctx); !errors.Is(err, errMiss) {
			return err // another process has just built it
		}
		if value, err = c.build(ctx); err != nil {
			return err
		}
		return c.rdb.Do(ctx, c.rdb.B().Set().Key(c.key).Value(value).Px(c.ttl).Build()).Error()
	}
	err = c.lock.Write().TryDo(ctx, 0, fill)
	if errors.Is(err, rlock.ErrNotRun) && rlock.IsBusy(err) {
		// Another process is building it. Readers wait for the writer and not for each other: once it is done, all enter together.
		value, err = rlock.DoValue(ctx, c.lock.Read(), c.look)
	}
	if errors.Is(err, errMiss) {
		err = c.lock.Write().Do(ctx, fill) // it failed or crashed: queue for the write lock
	}
	return value, err
}

func (c *cache) look(ctx context.Context) (string, error) {
	value, err := c.rdb.Do(ctx, c.rdb.B().Get().Key(c.key).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		err = errMiss
	}
	return value, err
}
