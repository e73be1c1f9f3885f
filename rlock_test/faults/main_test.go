// Package faults tests the lock's promises under faults of the network, Redis, the process and the clock. It is a separate
// module, so that the lock does not depend on its dependencies. See docs/internals/testing.md for the tests and how to replay a run.
package faults

import (
	"context"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// roles are the main functions of the processes that tests start from this test binary. The environment variable roleEnv
// names the role, and the process's arguments are passed to it.
var roles = map[string]func(args []string) int{
	"peer":    peerMain,
	"history": historyRole,
	"family":  familyRole,
}

const roleEnv = "RLOCK_FAULTS_ROLE"

func TestMain(m *testing.M) { runRoleOrTests(m) }

// newClient returns a lock client that is closed before rdb.
func newClient(t testing.TB, rdb rueidis.Client, o rlock.Options) *rlock.Client {
	t.Helper()
	c, err := rlock.New(rdb, o)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func do(t testing.TB, rdb rueidis.Client, cmd ...string) rueidis.RedisResult {
	t.Helper()
	return rdb.Do(context.Background(), rdb.B().Arbitrary(cmd...).Build())
}

func exists(t testing.TB, rdb rueidis.Client, name string) bool {
	t.Helper()
	n, err := do(t, rdb, "EXISTS", name).AsInt64()
	require.NoError(t, err)
	return n == 1
}
