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

// dial connects as a user of rueidis does who changes nothing.
func dial(addr string) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
}

// The least that a lock on one key can do in a script each: no re-entry, no wake-up.
const (
	floorAcquire = `return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])`
	floorRelease = `if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0`
)

// script is a script that the server knows, called by its hash.
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

// call is one EVALSHA and nothing else.
func (s script) call(ctx context.Context, key string, args ...string) rueidis.RedisResult {
	return s.rdb.Do(ctx, s.rdb.B().Evalsha().Sha1(s.sha).Numkeys(1).Key(key).Arg(args...).Build())
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

var errFloorWaits = errors.New("the floor has nothing to wait with, and the lock is held")

// openFloor is two bare calls on rueidis.
func openFloor(o openOptions) (*client, error) {
	rdb, err := dial(o.addr)
	if err != nil {
		return nil, err
	}
	scripts, err := loadScripts(rdb, floorAcquire, floorRelease)
	if err != nil {
		rdb.Close()
		return nil, err
	}
	acquire, release := scripts[0], scripts[1]
	const owner = "floor"
	lease := millis(o.lease)
	return &client{
		mutex: func(name string) lockFunc {
			return func(ctx context.Context) (func() error, error) {
				if err := acquire.call(ctx, name, owner, lease).Error(); err != nil {
					if rueidis.IsRedisNil(err) {
						return nil, errFloorWaits
					}
					return nil, err
				}
				return func() error {
					n, err := release.call(ctx, name, owner).AsInt64()
					if err == nil && n != 1 {
						err = errors.New("the floor did not hold the lock")
					}
					return err
				}, nil
			}
		},
		close: rdb.Close,
	}, nil
}

// openScripts calls the scripts of rlock, which re-enter and wake, without the rest of it: what lies
// between it and the floor is the price of what the scripts do, what lies between it and rlock is the price of
// the Go code.
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
						err = errors.New("the floor did not hold the lock")
					}
					return err
				}, nil
			}
		},
		close: rdb.Close,
	}, nil
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
