package rlockgoredis_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
	"github.com/go-rlock/rlock/rlockgoredis"
)

// A service keeps its data in Redis with go-redis, and locks around its read and write.
func ExampleOpen() {
	addr, stop := redistest.ForExample()
	defer stop()

	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	locks, err := rlockgoredis.Open(rdb, rlock.Options{})
	if err != nil {
		panic(err)
	}
	defer locks.Close()

	sell := func(ctx context.Context) error {
		return locks.Mutex("stock:lock").Do(ctx, func(ctx context.Context) error {
			left, err := rdb.Get(ctx, "stock").Int()
			if err != nil || left == 0 {
				return err
			}
			return rdb.Set(ctx, "stock", left-1, 0).Err()
		})
	}

	ctx := context.Background()
	fmt.Println(rdb.Set(ctx, "stock", 50, 0).Err())
	var buyers sync.WaitGroup
	for range 20 {
		buyers.Go(func() {
			if err := sell(ctx); err != nil {
				fmt.Println(err)
			}
		})
	}
	buyers.Wait()
	fmt.Println(rdb.Get(ctx, "stock").Val(), "are left")
	// Output:
	// <nil>
	// 30 are left
}
