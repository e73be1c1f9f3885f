package main

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// shop ships parcels of orders, under the same locks as Shop.java.
type shop struct {
	locks *rlock.Client
	redis rueidis.Client
}

// shipAll ships parcels of one order, with a pause before each.
func (s shop) shipAll(ctx context.Context, order string, number int, pause, work time.Duration) error {
	for range number {
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		if err := s.ship(ctx, order, work); err != nil {
			return err
		}
	}
	return nil
}

func (s shop) ship(ctx context.Context, order string, work time.Duration) error {
	return s.locks.Mutex(order).Do(ctx, func(ctx context.Context) error {
		if err := s.write(ctx, order, "in", 0, 0); err != nil {
			return err
		}
		if err := sleep(ctx, work); err != nil {
			return err
		}
		return s.count(ctx, order)
	})
}

// count adds a parcel to an order. It takes the lock as well: inside ship that is a second level.
func (s shop) count(ctx context.Context, order string) error {
	lock := s.locks.Mutex(order)
	return lock.Do(ctx, func(ctx context.Context) error {
		parcel, err := s.redis.Do(ctx, s.redis.B().Hget().Key(parcelsKey).Field(order).Build()).AsInt64()
		if err != nil && !rueidis.IsRedisNil(err) {
			return err
		}
		parcel++
		after := s.redis.B().Hset().Key(parcelsKey).FieldValue().FieldValue(order, strconv.FormatInt(parcel, 10)).Build()
		if err := s.redis.Do(ctx, after).Error(); err != nil {
			return err
		}
		levels, err := lock.HoldCount(ctx)
		if err != nil {
			return err
		}
		return s.write(ctx, order, "out", parcel, levels)
	})
}

// write adds a journal entry to a stream: Redis orders the entries of both sides, and adds the time.
func (s shop) write(ctx context.Context, order, event string, parcel int64, levels int) error {
	entry := s.redis.B().Xadd().Key(journalKey).Id("*").FieldValue().
		FieldValue("order", order).FieldValue("side", "go").FieldValue("owner", rlock.Owner(ctx)).FieldValue("event", event).
		FieldValue("parcel", strconv.FormatInt(parcel, 10)).FieldValue("levels", strconv.Itoa(levels)).Build()
	return s.redis.Do(ctx, entry).Error()
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
