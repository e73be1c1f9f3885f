package lua

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"
)

// acquireAndWait sends WAIT behind a script that acquired. Redis counts the replicas that have
// everything which this connection wrote, so both need a connection of their own for as long as it
// lasts.
func acquireAndWait(ctx context.Context, c rueidis.Client, a AcquireArgs) (
	script rueidis.RedisResult, unconfirmed error,
) {
	err := c.Dedicated(func(conn rueidis.DedicatedClient) error {
		script = a.send(ctx, conn)
		if reply, err := granted(script); err != nil || reply.Status != Acquired {
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
