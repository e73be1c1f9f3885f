package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

type order struct {
	ID      string `json:"id"`
	Charged bool   `json:"charged"`
	Shipped bool   `json:"shipped"`
}

// repository is the data layer, also in Redis to keep the example short.
type repository struct {
	rdb   rueidis.Client
	locks *rlock.Client
	wait  time.Duration
}

// locked runs fn while it holds the order. Its wait is bounded.
func (r *repository) locked(ctx context.Context, id string, fn func(ctx context.Context) error) error {
	return r.locks.Mutex("order:"+id).TryDo(ctx, r.wait, fn)
}

// dataKey never equals a lock's name, whatever the id.
func dataKey(id string) string { return "data:order:" + id }

func (r *repository) get(ctx context.Context, id string) (order, error) {
	o := order{ID: id}
	err := r.rdb.Do(ctx, r.rdb.B().Get().Key(dataKey(id)).Build()).DecodeJSON(&o)
	if rueidis.IsRedisNil(err) {
		err = nil // a new one
	}
	return o, err
}

// update reads, changes and writes, so it must not run concurrently. It takes the lock itself, and need not trust its callers.
func (r *repository) update(ctx context.Context, id string, change func(*order)) (o order, err error) {
	err = r.locked(ctx, id, func(ctx context.Context) error {
		if o, err = r.get(ctx, id); err != nil {
			return err
		}
		change(&o)
		return r.rdb.Do(ctx, r.rdb.B().Set().Key(dataKey(id)).Value(rueidis.JSON(o)).Build()).Error()
	})
	return o, err
}
