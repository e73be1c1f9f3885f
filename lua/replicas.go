package lua

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/redis/rueidis"
)

// acquireSHA names the script where [rueidis.Lua], which knows it, can not be used: it does not let
// a second command follow on the same connection.
var acquireSHA = func() string {
	sum := sha1.Sum([]byte(acquireText))
	return hex.EncodeToString(sum[:])
}()

// acquireAndWait sends WAIT behind a script that acquired. Redis counts the replicas that have
// everything which this connection wrote, so both need a connection of their own for as long as it
// lasts.
func acquireAndWait(ctx context.Context, c rueidis.Client, keys, args []string, a AcquireArgs) (
	script rueidis.RedisResult, unconfirmed error,
) {
	err := c.Dedicated(func(conn rueidis.DedicatedClient) error {
		numkeys := int64(len(keys))
		script = conn.Do(ctx, conn.B().Evalsha().Sha1(acquireSHA).Numkeys(numkeys).Key(keys...).Arg(args...).Build())
		var redisErr *rueidis.RedisError
		if errors.As(script.Error(), &redisErr) && redisErr.IsNoScript() {
			script = conn.Do(ctx, conn.B().Eval().Script(acquireText).Numkeys(numkeys).Key(keys...).Arg(args...).Build())
		}
		if reply, err := pair(script); err != nil || reply[0] != 1 {
			return nil //nolint:nilerr // the caller reads the script's result itself
		}
		n, err := conn.Do(ctx,
			conn.B().Wait().Numreplicas(int64(a.Replicas)).Timeout(a.ReplicaWait.Milliseconds()).Build()).AsInt64()
		if err == nil && n < int64(a.Replicas) {
			err = fmt.Errorf("%d of %d replicas within %v", n, a.Replicas, a.ReplicaWait)
		}
		return err
	})
	return script, err
}
