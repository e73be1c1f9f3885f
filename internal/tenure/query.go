package tenure

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
)

// Query asks Redis without changing anything.
func Query[T any](ctx context.Context, m *Lock, command func(context.Context) (T, error)) (value T, err error) {
	return Ask(ctx, m, false, command)
}

// Ask runs a command for a caller that may leave early. rueidis itself retries read-only commands until calls.Timeout. changes: the
// command changes something, and its error says whether it may have.
func Ask[T any](ctx context.Context, m *Lock, changes bool, command func(context.Context) (T, error)) (value T, err error) {
	return ask(ctx, m, changes, func() error { return nil }, command)
}

// AskKeys is Ask for a command with several keys, which a cluster may not have.
func AskKeys[T any](ctx context.Context, m *Lock, changes bool, command func(context.Context) (T, error)) (value T, err error) {
	return ask(ctx, m, changes, m.Fits, command)
}

func ask[T any](
	ctx context.Context, m *Lock, changes bool, fits func() error, command func(context.Context) (T, error),
) (value T, err error) {
	if err := m.StartCall(); err != nil {
		return value, err
	}
	c := m.Client
	defer c.Calls.Ended()
	pending := false
	if ctx.Err() != nil {
		if changes {
			return value, m.Fail(ErrNotSent, ctx.Err())
		}
		return value, m.Fail(ctx.Err())
	}
	known, err := c.Cluster.Learn(ctx, time.Time{}, m)
	left := !known
	if err := fits(); err != nil && !left {
		return value, m.Fail(err)
	}
	if !left {
		value, left, err = Leavable(ctx, m, time.Time{}, func(<-chan struct{}) (T, error) {
			return command(c.Calls.Context(ctx))
		}, nil)
		pending = changes && !errors.Is(err, calls.ErrSilent) && (left || calls.MayHaveRun(err)) // not if admission was all it waited for
	}
	switch {
	case err == nil && !left:
		return value, nil
	case c.Calls.IsClosed():
		err = c.Errors.Closed
	case left && ctx.Err() != nil:
		err = ctx.Err()
	default:
		err = c.Errors.Unreachable(err)
	}
	if pending {
		return value, m.Fail(c.Errors.Pending, err)
	}
	return value, m.Fail(err)
}

// IsLocked reports whether anybody has the lock.
func (m *Lock) IsLocked(ctx context.Context) (bool, error) {
	return Query(ctx, m, func(ctx context.Context) (bool, error) { return m.Kind.IsLocked(ctx, m.Client.RDB, m.Key) })
}

// HoldCount returns how many open levels the hold in ctx has; 0 if ctx carries none, or the hold is gone from Redis.
func (m *Lock) HoldCount(ctx context.Context) (int, error) {
	l := m.LevelIn(ctx)
	if l == nil {
		return 0, m.Invalid
	}
	rdb := m.Client.RDB
	held, err := Query(ctx, m, func(ctx context.Context) (bool, error) {
		held, err := rdb.Do(ctx, rdb.B().Hexists().Key(m.Key).Field(l.Hold.Tenure.Field()).Build()).AsBool()
		return held, lua.OfKey(err)
	})
	if !held {
		return 0, err
	}
	return l.Hold.Depth(), nil
}

// PTTL returns Redis's PTTL of the lock's key.
func (m *Lock) PTTL(ctx context.Context) (int64, error) {
	rdb := m.Client.RDB
	return Query(ctx, m, func(ctx context.Context) (int64, error) {
		return rdb.Do(ctx, rdb.B().Pttl().Key(m.Key).Build()).AsInt64()
	})
}

// Force frees the lock, regardless of its owner, and reports whether it was held. With owners, it frees a lock only if nobody else holds it.
func (m *Lock) Force(ctx context.Context, owners ...string) (bool, error) {
	forced, err := AskKeys(ctx, m, true, func(ctx context.Context) (bool, error) {
		return m.Kind.Force(ctx, m.Client.RDB, m.Key, m.Fair(), lua.Publish(m.Client.KnownChannel(m)), owners...)
	})
	if len(owners) > 0 && !forced {
		return forced, err // the process may keep it for another owner
	}
	if forced {
		m.looksIn(m.Client.PlaceLease, "")
	}
	m.Client.FreeKept(m.Key) // Force freed it, or the next call would find it missing
	return forced, err
}

// Inspect returns the lock's state in Redis.
func (m *Lock) Inspect(ctx context.Context) (info lua.Info, err error) {
	c := m.Client
	return AskKeys(ctx, m, false, func(ctx context.Context) (lua.Info, error) {
		queue := m.Queue
		if c.Cluster.IsOne() && c.slot(queue) != c.slot(m.Key) { // nobody can queue there
			queue = ""
		}
		return lua.Look(ctx, c.RDB, lua.InfoArgs{
			Name: m.Key, Queue: queue, List: m.Kind.Queueing == kinds.PerWaiter, Fence: m.Fence, Publish: lua.Publish(c.KnownChannel(m)),
		})
	})
}
