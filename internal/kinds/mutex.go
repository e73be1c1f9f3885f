package kinds

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// Mutex is Redisson's RLock.
var Mutex = mutex("mutex", nil, Fenced)

// Fenced is Redisson's RFencedLock.
var Fenced = mutex("fenced", prefixed("redisson_lock_token"), nil)

func mutex(name string, fence func(string) string, fenced *Kind) *Kind {
	return &Kind{
		Name:         name,
		Channel:      prefixed("redisson_lock__channel"),
		Queue:        Own("rlock_queue"),
		PlainScripts: true,
		Exports:      true,
		Fence:        fence,
		Extra:        fence,
		Fenced:       fenced,
		Renew:        lua.Renew, Force: forceHash, IsLocked: exists,
	}
}

func forceHash(ctx context.Context, rdb rueidis.Client, key string, _ lua.Fair, p lua.Publish, owners ...string) (bool, error) {
	return lua.Force(ctx, rdb, key, p, owners...)
}

func exists(ctx context.Context, rdb rueidis.Client, key string) (bool, error) {
	n, err := rdb.Do(ctx, rdb.B().Exists().Key(key).Build()).AsInt64()
	return n == 1, err
}
