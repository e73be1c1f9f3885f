package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/redis/rueidis"
)

// A queue in Redis: whoever finds the lock taken joins it, and a release moves the lock to the first in it and tells that one
// alone. Nothing more: no re-entry, no lease that matters, nobody who dies or leaves.
const (
	herdAcquire = `
if redis.call('exists', KEYS[1]) == 0 then
	redis.call('hset', KEYS[1], ARGV[1], 1)
	redis.call('pexpire', KEYS[1], ARGV[2])
	return 1
end
redis.call('rpush', KEYS[1] .. ':queue', ARGV[1])
return 0`
	herdRelease = `
if redis.call('hdel', KEYS[1], ARGV[1]) == 0 then return 0 end
local next = redis.call('lpop', KEYS[1] .. ':queue')
if next then
	redis.call('hset', KEYS[1], next, 1)
	redis.call('pexpire', KEYS[1], ARGV[2])
	redis.call('publish', next, '1')
end
return 1`
)

// openHerd calls these scripts. The client is one owner, so it may have one goroutine that waits, as in a herd.
func openHerd(o openOptions) (*client, error) {
	rdb, err := dial(o.addr)
	if err != nil {
		return nil, err
	}
	c, err := herdOn(rdb, o)
	if err != nil {
		rdb.Close()
	}
	return c, err
}

func herdOn(rdb rueidis.Client, o openOptions) (*client, error) {
	ctx, lease := context.Background(), millis(o.lease)
	scripts, err := loadScripts(rdb, herdAcquire, herdRelease)
	if err != nil {
		return nil, err
	}
	acquire, release := scripts[0], scripts[1]
	owner := fmt.Sprintf("herd:%x", rand.Uint64()) // and its channel
	granted, broken, err := subscribe(ctx, rdb, owner)
	if err != nil {
		return nil, err
	}
	queued := func(name string) lockFunc {
		return func(ctx context.Context) (func() error, error) {
			n, err := acquire.call(ctx, name, owner, lease).AsInt64()
			if err != nil {
				return nil, err
			}
			if n == 0 {
				select {
				case <-granted:
				case err := <-broken:
					return nil, fmt.Errorf("subscription: %w", err)
				}
			}
			return func() error {
				n, err := release.call(ctx, name, owner, lease).AsInt64()
				if err == nil && n != 1 {
					err = errFloorLost
				}
				return err
			}, nil
		}
	}
	return &client{mutex: queued, fair: queued, close: rdb.Close}, nil
}
