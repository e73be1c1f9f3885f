package redistest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// StartPair starts a master with a replica, and returns when the replica is in step.
func StartPair(tb testing.TB) (master, replica *Server) {
	tb.Helper()
	fast := []string{"--repl-diskless-sync-delay", "0"}
	master = Start(tb, fast...)
	replica = Start(tb, append(fast, "--replicaof", "127.0.0.1", master.Addr()[len("127.0.0.1:"):])...)
	rdb := master.Client(tb)
	Eventually(tb, 20*time.Second, func() bool {
		var n int64
		err := rdb.Dedicated(func(c rueidis.DedicatedClient) (err error) { // WAIT counts only writes of its own connection
			ctx := context.Background()
			if err := c.Do(ctx, c.B().Incr().Key("in-step").Build()).Error(); err != nil {
				return err
			}
			n, err = c.Do(ctx, c.B().Wait().Numreplicas(1).Timeout(100).Build()).AsInt64()
			return err
		})
		return err == nil && n == 1
	}, "the replica is in step")
	if err := rdb.Do(context.Background(), rdb.B().Del().Key("in-step").Build()).Error(); err != nil {
		tb.Fatal(err)
	}
	return master, replica
}

// Split is a client whose subscriptions are at another server than its commands, as behind a proxy of a cluster, or when a master and its
// replica have changed roles. If that server is a replica, PUBLISH delivers to them, but does not count them.
type Split struct {
	rueidis.Client
	Messages rueidis.Client
}

// Dedicate returns a connection to the server with the subscriptions.
func (s Split) Dedicate() (rueidis.DedicatedClient, func()) { return s.Messages.Dedicate() }
