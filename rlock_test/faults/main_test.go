// Package faults tests the lock on bad days: what must hold when the network, Redis, the process or
// the clock misbehave. It is a module of its own so that what it needs does not reach those who
// import the lock. docs/testing.md says what is tested where, and how to replay a run.
package faults

import (
	"context"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// roles are the programs that this test binary is when a test starts it again as a process of its
// own: the environment variable roleEnv names the role, its arguments are the role's.
var roles = map[string]func(args []string) int{
	"peer":    peerMain,
	"history": historyRole,
	"family":  familyRole,
}

const roleEnv = "RLOCK_FAULTS_ROLE"

func TestMain(m *testing.M) { runRoleOrTests(m) }

// newClient returns a lock client that is closed before rdb is.
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
