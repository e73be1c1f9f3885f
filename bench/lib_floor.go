package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// dial connects with the defaults of rueidis.
func dial(addr string) (rueidis.Client, error) {
	return rueidis.NewClient(counted(rueidis.ClientOption{InitAddress: []string{addr}}))
}

// The minimum for a lock on one key, a script each: no re-entry, no wake-up.
const (
	floorAcquire = `return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])`
	floorRelease = `if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0`
)

// The minimum for readers is a count. A writer would leave a value that INCR refuses.
const (
	floorRead       = `redis.call('incr', KEYS[1]) return redis.call('pexpire', KEYS[1], ARGV[2])`
	floorReadUnlock = `if redis.call('decr', KEYS[1]) == 0 then return redis.call('del', KEYS[1]) end return 1`
)

// The minimum for many keys: check them all at once, then set each.
const (
	floorAll = `
if redis.call('exists', unpack(KEYS)) > 0 then return nil end
for _, key in ipairs(KEYS) do
	redis.call('set', key, ARGV[1], 'PX', ARGV[2])
end
return 1`
	floorAllUnlock = `
local mine = 0
for _, value in ipairs(redis.call('mget', unpack(KEYS))) do
	mine = mine + (value == ARGV[1] and 1 or 0)
end
if mine < #KEYS then return 0 end
redis.call('del', unpack(KEYS))
return 1`
)

// script is a loaded script, called by its hash.
type script struct {
	rdb rueidis.Client
	sha string
}

func loadScript(rdb rueidis.Client, text string) (script, error) {
	sha, err := rdb.Do(context.Background(), rdb.B().ScriptLoad().Script(text).Build()).ToString()
	if err != nil {
		return script{}, fmt.Errorf("load script: %w", err)
	}
	return script{rdb: rdb, sha: sha}, nil
}

// call is a single EVALSHA.
func (s script) call(ctx context.Context, key string, args ...string) rueidis.RedisResult {
	return s.callAll(ctx, []string{key}, args...)
}

func (s script) callAll(ctx context.Context, keys []string, args ...string) rueidis.RedisResult {
	return s.rdb.Do(ctx, s.rdb.B().Evalsha().Sha1(s.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
}

func loadScripts(rdb rueidis.Client, texts ...string) ([]script, error) {
	scripts := make([]script, len(texts))
	for i, text := range texts {
		s, err := loadScript(rdb, text)
		if err != nil {
			return nil, err
		}
		scripts[i] = s
	}
	return scripts, nil
}

var (
	errFloorWaits = errors.New("the floor has nothing to wait with, and the lock is held")
	errFloorLost  = errors.New("the floor did not hold the lock")
)

// openFloor makes two bare calls on rueidis.
func openFloor(o openOptions) (*client, error) {
	rdb, err := dial(o.addr)
	if err != nil {
		return nil, err
	}
	scripts, err := loadScripts(rdb, floorAcquire, floorRelease, floorRead, floorReadUnlock, floorAll, floorAllUnlock)
	if err != nil {
		rdb.Close()
		return nil, err
	}
	lease := millis(o.lease)
	return &client{
		mutex: func(name string) lockFunc { return twoCalls(scripts[0], scripts[1], []string{name}, lease) },
		read:  func(name string) lockFunc { return twoCalls(scripts[2], scripts[3], []string{name}, lease) },
		all:   func(names []string) lockFunc { return twoCalls(scripts[4], scripts[5], names, lease) },
		close: rdb.Close,
	}, nil
}

// twoCalls locks with a script that returns nil if the lock is held, and unlocks with a script that returns 1.
func twoCalls(acquire, release script, keys []string, lease string) lockFunc {
	const owner = "floor"
	return func(ctx context.Context) (func() error, error) {
		if err := acquire.callAll(ctx, keys, owner, lease).Error(); err != nil {
			if rueidis.IsRedisNil(err) {
				err = errFloorWaits
			}
			return nil, err
		}
		return func() error {
			n, err := release.callAll(ctx, keys, owner).AsInt64()
			if err == nil && n != 1 {
				err = errFloorLost
			}
			return err
		}, nil
	}
}

// openScripts calls rlock's scripts, which re-enter and wake, without rlock's Go code. The difference to the
// floor is the cost of the scripts' features; the difference to rlock is the cost of the Go code.
func openScripts(o openOptions) (*client, error) {
	rdb, err := dial(o.addr)
	if err != nil {
		return nil, err
	}
	const owner = "00000000-0000-0000-0000-000000000000:1"
	return &client{
		mutex: func(name string) lockFunc {
			acquire := lua.AcquireArgs{Name: name, Owner: owner, Lease: o.lease, Count: 1}
			release := lua.ReleaseArgs{Name: name, Owner: owner, Lease: o.lease, Publish: lua.Publish{Name: "unlocked:" + name}}
			return func(ctx context.Context) (func() error, error) {
				reply, err := lua.Acquire(ctx, rdb, acquire)
				switch {
				case err != nil:
					return nil, err
				case reply.Status != lua.Acquired:
					return nil, errFloorWaits
				}
				return func() error {
					reply, err := lua.Release(ctx, rdb, release)
					if err == nil && reply.Status != lua.Freed {
						err = errFloorLost
					}
					return err
				}, nil
			}
		},
		close: rdb.Close,
	}, nil
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
