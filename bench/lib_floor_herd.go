package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/redis/rueidis"
)

// A queue in Redis: a client that finds the lock taken joins it, and a release moves the lock to its head and notifies only that client.
// Nothing more: no re-entry, no meaningful lease, no crashes or cancellations.
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

// A semaphore with the queue of a herd: a release moves a permit to the first waiter, or else adds it.
const (
	poolAcquire = `
if tonumber(redis.call('get', KEYS[1])) > 0 then
	redis.call('decrby', KEYS[1], 1)
	return 1
end
redis.call('rpush', KEYS[1] .. ':queue', ARGV[1])
return 0`
	poolRelease = `
local next = redis.call('lpop', KEYS[1] .. ':queue')
if next then
	redis.call('publish', next, '1')
else
	redis.call('incrby', KEYS[1], 1)
end
return 1`
)

// openHerd calls these scripts. The client is one owner: at most one goroutine may wait for a lock, as in a herd; a semaphore's permit may
// go to any.
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
	scripts, err := loadScripts(rdb, herdAcquire, herdRelease, poolAcquire, poolRelease)
	if err != nil {
		return nil, err
	}
	owner := fmt.Sprintf("herd:%x", rand.Uint64()) // and its channel
	granted, broken, err := subscribe(ctx, rdb, owner)
	if err != nil {
		return nil, err
	}
	queued := func(name string, acquire, release script) lockFunc {
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
	mutex := func(name string) lockFunc { return queued(name, scripts[0], scripts[1]) }
	return &client{
		mutex: mutex, fair: mutex,
		semaphore: func(name string, permits int64) lockFunc {
			err := rdb.Do(ctx, rdb.B().Set().Key(name).Value(strconv.FormatInt(permits, 10)).Nx().Build()).Error()
			if err != nil && !rueidis.IsRedisNil(err) {
				return failing(err)
			}
			return queued(name, scripts[2], scripts[3])
		},
		close: rdb.Close,
	}, nil
}
