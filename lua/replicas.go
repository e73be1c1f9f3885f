package lua

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/rueidis"
)

// maxRedirections is how many MOVED or ASK in a row an acquire with replicas follows while a slot moves.
const maxRedirections = 3

// acquireAndWait sends WAIT behind a script that acquired. Redis counts the replicas that have everything which this
// connection wrote, so both use a dedicated connection until the end. Such connections do not follow MOVED and ASK by
// themselves.
func acquireAndWait(ctx context.Context, c rueidis.Client, a AcquireArgs) (
	script rueidis.RedisResult, unconfirmed error,
) {
	connections := a.Connections
	if connections == nil {
		connections = new(Connections)
	}
	at := node{Client: c}
	for redirections := 0; ; redirections++ {
		conn, err := connections.take(ctx, at, a.Name, a.ReplicaWait)
		if err != nil {
			return rueidis.NewErrorResult(err), nil
		}
		script, unconfirmed = acquireAt(ctx, conn, at.ask, a)
		conn.end()
		next, ok := redirected(c, script)
		if !ok || redirections == maxRedirections {
			return script, unconfirmed
		}
		at = next
	}
}

// acquireAt is acquireAndWait at one node. If ctx ends, the reply counts as lost even if it came: the caller does not
// ask again.
func acquireAt(ctx context.Context, conn *connection, ask bool, a AcquireArgs) (
	script rueidis.RedisResult, unconfirmed error,
) {
	if ask {
		script = a.send(ctx, asking{conn})
	} else {
		script = a.send(ctx, conn)
	}
	if cutShort(ctx, script) {
		return rueidis.NewErrorResult(ctx.Err()), nil // rather than the error from closing the connection
	}
	if reply, err := granted(script); err != nil || reply.Status != Acquired {
		return script, nil //nolint:nilerr // the caller reads the script's result itself
	}
	wait := conn.Do(ctx, conn.B().Wait().Numreplicas(int64(a.Replicas)).Timeout(a.ReplicaWait.Milliseconds()).Build())
	if cutShort(ctx, wait) {
		return rueidis.NewErrorResult(ctx.Err()), nil
	}
	n, err := wait.AsInt64()
	if err == nil && n < int64(a.Replicas) {
		err = fmt.Errorf("%d of %d replicas within %v", n, a.Replicas, a.ReplicaWait)
	}
	return script, err
}

// cutShort reports whether a command got no answer because ctx ended.
func cutShort(ctx context.Context, r rueidis.RedisResult) bool {
	return r.NonRedisError() != nil && ctx.Err() != nil
}

// redirected returns the node named by a MOVED or ASK, if rueidis knows it.
func redirected(c rueidis.Client, script rueidis.RedisResult) (node, bool) {
	var said *rueidis.RedisError
	if !errors.As(script.Error(), &said) {
		return node{}, false
	}
	addr, ask := said.IsAsk()
	if !ask {
		var moved bool
		if addr, moved = said.IsMoved(); !moved {
			return node{}, false
		}
	}
	client, known := c.Nodes()[addr]
	return node{client, addr, ask}, known
}

// asking sends ASKING before each command.
type asking struct{ *connection }

func (c asking) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return c.DoMulti(ctx, c.B().Asking().Build(), cmd)[1]
}
