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
var Write = writer("write", nil, holdKeys, FencedWrite)

// FencedWrite is Write with a fencing token, which Redisson's write lock does not have. It uses the counter of Fenced.
var FencedWrite = writer("fenced write", Fenced.Fence, Fenced.Extra, nil)

func writer(name string, fence, extra func(string) string, fenced *Kind) *Kind {
	return &Kind{
		Name:     name,
		Channel:  prefixed("redisson_rwlock"),
		Queue:    Own("rlock_writers"),
		Queueing: LeavesMark,
		Fence:    fence,
		Extra:    extra,
		Side:     lua.Writer,
		Exports:  true,
		Fenced:   fenced,
		suffix:   WriterSuffix,
		Renew:    lua.Renew, Force: forceSide(lua.Writer), IsLocked: sideIsLocked(lua.Writer),
	}
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
