package faults

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/rlock"
)

// redisFixture is a lock client of a server that does something only a real one does, beside another client.
type redisFixture struct {
	server      *redistest.Server
	lock, other *rlock.Client
	direct      rueidis.Client // of other
	name        string
}

// newRedisFixture connects lock through mod.
func newRedisFixture(t *testing.T, s *redistest.Server, o rlock.Options, mod ...func(*rueidis.ClientOption)) *redisFixture {
	t.Helper()
	b := &redisFixture{server: s, direct: s.Client(t), name: redistest.Name(t)}
	b.lock, b.other = newClient(t, s.Client(t, mod...), o), newClient(t, b.direct, o)
	for _, script := range []string{"acquire", "release", "renew"} { // no later call is repeated because of NOSCRIPT
		require.NoError(t, do(t, b.direct, "SCRIPT", "LOAD", lua.Text(script)).Error())
	}
	require.NoError(t, b.lock.Mutex(b.name+":warm").Do(context.Background(), nothing)) // connects
	t.Cleanup(func() {                                                                 // before both clients are closed
		none := func(what ...string) bool {
			list, err := do(t, b.direct, append(what, "*"+b.name+"*")...).AsStrSlice()
			return err == nil && len(list) == 0
		}
		if !t.Failed() {
			redistest.Eventually(t, patience, func() bool { return none("KEYS") && none("PUBSUB", "CHANNELS") }, "G5: no key or channel may be left")
		}
	})
	return b
}

func nothing(context.Context) error { return nil }

// patience bounds what takes seconds at most, but for a machine that stands still. A waiter that slept through an unlock looks again when the
// lease ends, which is at least 20 s later by default.
const patience = 15 * time.Second

func (b *redisFixture) locks(t testing.TB, name string, o ...rlock.Option) (context.Context, rlock.UnlockFunc) {
	t.Helper()
	ctx, unlock, err := b.lock.Mutex(name, o...).Lock(context.Background())
	require.NoError(t, err)
	return ctx, unlock
}

// has requires that the hold's count in Redis follows its levels, and that others don't get the lock (G1).
func (b *redisFixture) has(t testing.TB, hold context.Context, levels int64) {
	t.Helper()
	want := map[string]int64{rlock.Owner(hold): levels}
	redistest.Eventually(t, patience, func() bool { return maps.Equal(owners(t, b.direct, b.name), want) }, "the count in Redis")
	_, _, err := b.other.Mutex(b.name).TryLock(context.Background(), 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.NoError(t, hold.Err())
}

// becomesFree requires that another client gets a lock, long before a default lease ends (G5).
func (b *redisFixture) becomesFree(t testing.TB, name string) {
	t.Helper()
	require.NoError(t, b.other.Mutex(name).TryDo(context.Background(), patience, nothing))
}

// expiry returns the time at which Redis expires the key, to the millisecond. Test and server share a wall clock.
func (b *redisFixture) expiry(t testing.TB) time.Time {
	t.Helper()
	ms, err := do(t, b.direct, "PEXPIRETIME", b.name).AsInt64()
	require.NoError(t, err)
	require.Positive(t, ms)
	return time.UnixMilli(ms + 1)
}

// info returns a field of INFO.
func (b *redisFixture) info(t testing.TB, field string) string {
	t.Helper()
	info, err := do(t, b.direct, "INFO").ToString()
	require.NoError(t, err)
	_, value, found := strings.Cut(info, "\n"+field+":")
	require.True(t, found, field)
	value, _, _ = strings.Cut(value, "\r")
	return value
}
