package lua

import (
	"context"
	"crypto/sha1" //nolint:gosec // what EVALSHA takes
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/redis/rueidis"
)

// acquireSHA names the script where [rueidis.Lua], which knows it, can not be used: it does not let
// a second command follow on the same connection.
var acquireSHA = func() string {
	sum := sha1.Sum([]byte(acquireText)) //nolint:gosec // see above
	return hex.EncodeToString(sum[:])
}()

// acquireAndWait sends WAIT behind the script. Redis counts the replicas that have everything
// which this connection wrote, so both need a connection of their own for as long as it lasts.
func acquireAndWait(ctx context.Context, c rueidis.Client, keys, args []string, a AcquireArgs) (
	script rueidis.RedisResult, unconfirmed error,
) {
	err := c.Dedicated(func(conn rueidis.DedicatedClient) error {
		wait := func() rueidis.Completed {
			return conn.B().Wait().Numreplicas(int64(a.Replicas)).Timeout(a.ReplicaWait.Milliseconds()).Build()
		}
		numkeys := int64(len(keys))
		results := conn.DoMulti(ctx,
			conn.B().Evalsha().Sha1(acquireSHA).Numkeys(numkeys).Key(keys...).Arg(args...).Build(), wait())
		var redisErr *rueidis.RedisError
		if errors.As(results[0].Error(), &redisErr) && redisErr.IsNoScript() {
			results = conn.DoMulti(ctx,
				conn.B().Eval().Script(acquireText).Numkeys(numkeys).Key(keys...).Arg(args...).Build(), wait())
		}
		script = results[0]
		n, err := results[1].AsInt64()
		if err == nil && n < int64(a.Replicas) {
			err = fmt.Errorf("%d of %d replicas within %v", n, a.Replicas, a.ReplicaWait)
		}
		return err
	})
	return script, err
}
