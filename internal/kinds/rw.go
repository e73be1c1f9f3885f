package kinds

import (
	"context"
	"strings"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// Read is the read lock of Redisson's RReadWriteLock.
var Read = &Kind{
	Name:     "read",
	Channel:  prefixed("redisson_rwlock"),
	Queue:    Own("rlock_writers"),
	Queueing: HeedsMarks,
	Extra:    holdKeys,
	Side:     lua.Reader,
	Shares:   true,
	Renew:    lua.RenewReaders, Force: forceSide(lua.Reader), IsLocked: sideIsLocked(lua.Reader),
}

// Write is the write lock of Redisson's RReadWriteLock.
var Write = &Kind{
	Name:     "write",
	Channel:  prefixed("redisson_rwlock"),
	Queue:    Own("rlock_writers"),
	Queueing: LeavesMark,
	Extra:    holdKeys,
	Side:     lua.Writer,
	Exports:  true,
	Fenced:   FencedWrite,
	suffix:   WriterSuffix,
	Renew:    lua.Renew, Force: forceSide(lua.Writer), IsLocked: sideIsLocked(lua.Writer),
}

// FencedWrite is Write with a fencing token, which Redisson's write lock does not have. It uses the counter of Fenced.
var FencedWrite = &Kind{
	Name:     "fenced write",
	Channel:  prefixed("redisson_rwlock"),
	Queue:    Own("rlock_writers"),
	Queueing: LeavesMark,
	Fence:    Fenced.Fence,
	Extra:    Fenced.Extra,
	Side:     lua.Writer,
	Exports:  true,
	suffix:   WriterSuffix,
	Renew:    lua.Renew, Force: forceSide(lua.Writer), IsLocked: sideIsLocked(lua.Writer),
}

func forceSide(s lua.Side) func(context.Context, rueidis.Client, string, lua.Fair, lua.Publish, ...string) (bool, error) {
	return func(ctx context.Context, rdb rueidis.Client, key string, _ lua.Fair, p lua.Publish, owners ...string) (bool, error) {
		return lua.ForceSide(ctx, rdb, key, s, p, owners...)
	}
}

func sideIsLocked(s lua.Side) func(context.Context, rueidis.Client, string) (bool, error) {
	return func(ctx context.Context, rdb rueidis.Client, key string) (bool, error) {
		return lua.IsLocked(ctx, rdb, key, s)
	}
}

// holdKeys returns the prefix of readers' hold keys, see read_acquire.lua.
func holdKeys(name string) string {
	if strings.Contains(name, "{") {
		return name + ":"
	}
	return "{" + name + "}:"
}

// WriterSuffix distinguishes a writer's owner from a reader's.
const WriterSuffix = ":write"
