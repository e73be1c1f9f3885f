package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
)

// query runs a command for a caller who may leave. rueidis itself retries read-only commands until calls.Timeout.
func query[T any](ctx context.Context, m *spec, command func(context.Context) (T, error)) (value T, err error) {
	if m.invalid != nil {
		return value, m.invalid
	}
	c := m.engine
	if !c.calls.Start() {
		return value, m.closed()
	}
	defer c.calls.Ended()
	if ctx.Err() != nil {
		return value, m.fail(ctx.Err())
	}
	left := false
	if c.cluster.isUnknown() {
		var known bool
		known, err = c.cluster.learn(ctx, time.Time{}, m)
		left = !known
	}
	if !left {
		value, left, err = leavable(ctx, m, time.Time{}, func(<-chan struct{}) (T, error) {
			return command(c.calls.Context(ctx, time.Now(), 0))
		}, nil)
	}
	switch {
	case err == nil && !left:
		return value, nil
	case c.calls.IsClosed():
		err = c.errs.Closed
	case left && ctx.Err() != nil:
		err = ctx.Err()
	default:
		err = c.errs.Unreachable(err)
	}
	return value, m.fail(err)
}

// isLocked reports whether anybody has the lock.
func (m *spec) isLocked(ctx context.Context) (bool, error) {
	return query(ctx, m, func(ctx context.Context) (bool, error) { return m.kind.IsLocked(ctx, m.engine.rdb, m.key) })
}

// holdCount is how many open levels the hold has that ctx carries; 0 if there is none, or Redis does not have it.
func (m *spec) holdCount(ctx context.Context) (int, error) {
	l := m.levelIn(ctx)
	if l == nil {
		return 0, m.invalid
	}
	rdb := m.engine.rdb
	held, err := query(ctx, m, func(ctx context.Context) (bool, error) {
		return rdb.Do(ctx, rdb.B().Hexists().Key(m.key).Field(l.hold.tenure.field()).Build()).AsBool()
	})
	if !held {
		return 0, err
	}
	return l.hold.depth(), nil
}

// pttl is what PTTL says of the lock.
func (m *spec) pttl(ctx context.Context) (int64, error) {
	rdb := m.engine.rdb
	return query(ctx, m, func(ctx context.Context) (int64, error) {
		return rdb.Do(ctx, rdb.B().Pttl().Key(m.key).Build()).AsInt64()
	})
}

// force frees the lock whoever has it, and reports whether somebody had it.
func (m *spec) force(ctx context.Context) (bool, error) {
	if err := m.fits(); err != nil && m.invalid == nil {
		return false, m.fail(err)
	}
	return query(ctx, m, func(ctx context.Context) (bool, error) {
		return m.kind.Force(ctx, m.engine.rdb, m.key, m.fair(), lua.Publish(m.engine.knownChannel(m)))
	})
}

// look is what Redis knows of the lock.
func (m *spec) look(ctx context.Context) (info lua.Info, err error) {
	if err := m.fits(); err != nil && m.invalid == nil {
		return info, m.fail(err)
	}
	c, queue := m.engine, m.queue
	if c.cluster != nil && c.slot(queue) != c.slot(m.key) { // then nobody stands in it
		queue = ""
	}
	return query(ctx, m, func(ctx context.Context) (lua.Info, error) {
		return lua.Look(ctx, c.rdb, lua.InfoArgs{
			Name: m.key, Queue: queue, List: m.kind.Queueing == kinds.PerWaiter, Fence: m.fenceOf(), Publish: lua.Publish(c.knownChannel(m)),
		})
	})
}
