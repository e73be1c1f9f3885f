package faults

import (
	"context"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/rlock"
)

// durable are the arguments of a server that keeps all its data when it is killed.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

func (b *redisFixture) restart(t *testing.T) {
	t.Helper()
	b.server.Restart()
	redistest.Eventually(t, patience, func() bool { return do(t, b.direct, "PING").Error() == nil }, "connected again")
}

// Fault 3 (kill -9 and restart with AOF, appendfsync always), G1, G2, G4: Redis keeps its data. Holds survive several crashes and exclude
// others; the waiter gets the lock right after the unlock.
func TestRedisKilledWithAOF(t *testing.T) {
	t.Parallel()
	b := newRedisFixture(t, redistest.Start(t, durable...), rlock.Options{})
	ctx, unlock := b.locks(t, b.name)
	fixed, unlockFixed := b.locks(t, b.name+":fixed", rlock.WithLease(time.Minute))
	waiter := startLock(context.Background(), b.other.Mutex(b.name))
	awaitSubscribers(t, b.direct, b.name, false, 1, patience)
	for range 3 {
		b.server.Kill()
		b.restart(t)
		b.has(t, ctx, 1)
		require.NoError(t, fixed.Err())
		waiter.waits(t)
	}
	awaitSubscribers(t, b.direct, b.name, false, 1, patience)
	_, unlockInner, err := b.lock.Mutex(b.name).Lock(ctx)
	require.NoError(t, err)
	b.has(t, ctx, 2)
	b.server.Kill()
	b.restart(t)
	b.has(t, ctx, 2)
	require.NoError(t, unlockInner())
	require.NoError(t, unlock())
	require.NoError(t, waiter.gets(t, patience, "woken by the unlock").unlock())
	require.NoError(t, unlockFixed())
}

// Fault 3 (-LOADING), G1, G2, G4, G6: the server was killed, and needs a moment to load its data. Calls made meanwhile succeed.
func TestRedisLoadsForAWhile(t *testing.T) {
	t.Parallel()
	b := newRedisFixture(t, redistest.Start(t, append(durable, "--key-load-delay", "150")...), rlock.Options{UnlockTimeout: patience})
	// The server answers after every thousand keys. Each takes about 0.2 ms, or more if the CPU is busy.
	const fill = "for i = 1, 2100 do redis.call('hset', KEYS[1], i, i) end return 1"
	require.NoError(t, do(t, b.direct, "EVAL", fill, "1", "much").Error())
	ctx, unlock := b.locks(t, b.name)
	_, unlockNow := b.locks(t, b.name+":now")
	waits := startLock(context.Background(), b.other.Mutex(b.name))
	awaitSubscribers(t, b.direct, b.name, false, 1, patience)
	b.server.Kill()
	over, stop := context.WithTimeout(context.Background(), 2*patience)
	defer stop()
	unlocked := call(func() error {
		for over.Err() == nil { // the server listens before it loads
			conn, err := net.Dial("tcp4", b.server.Addr())
			if err == nil {
				_ = conn.Close()
				break
			}
			sleep(time.Millisecond)
		}
		return unlockNow()
	})
	b.restart(t)
	require.NoError(t, returned(t, unlocked, patience))
	require.NotEmpty(t, b.info(t, "errorstat_LOADING"), "it was said")
	b.has(t, ctx, 1)
	waits.waits(t)
	require.NoError(t, unlock())
	require.NoError(t, waits.gets(t, patience, "woken by the unlock").unlock())
}

// Fault 3 (-BUSY), G1, G2, G4: a foreign script blocks the server for less than the lease. All calls made meanwhile complete afterwards, and
// no ctx is cancelled.
func TestRedisBusyWithAScript(t *testing.T) {
	t.Parallel()
	for name, block := range map[string][]string{
		"script":      {"EVAL", "local t = redis.call('time') repeat local n = redis.call('time') until n[1] - t[1] > 1 return 1", "0"},
		"debug sleep": {"DEBUG", "SLEEP", "1.5"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newRedisFixture(t, redistest.Start(t, "--lua-time-limit", "50", "--enable-debug-command", "yes"), rlock.Options{UnlockTimeout: patience})
			blocker := b.server.Client(t)
			during := func(calls func()) {
				blocked := call(func() error { return do(t, blocker, block...).Error() })
				redistest.Eventually(t, patience, func() bool { return !b.server.Answers() }, "the server is busy")
				calls()
				require.NoError(t, returned(t, blocked, patience))
			}
			ctx, unlock := b.locks(t, b.name)
			for range 2 {
				_, unlockInner, err := b.lock.Mutex(b.name).Lock(ctx)
				require.NoError(t, err)
				cancelled, cancel := context.WithCancel(context.Background())
				var waits waiter
				during(func() {
					require.NoError(t, unlockInner())
					waits = startLock(cancelled, b.other.Mutex(b.name))
				})
				awaitSubscribers(t, b.direct, b.name, false, 1, patience)
				waits.waits(t)
				cancel()
				require.ErrorIs(t, waits.within(t, patience).err, context.Canceled)
				awaitSubscribers(t, b.direct, b.name, false, 0, patience) // otherwise this server's BUSY may answer an UNSUBSCRIBE: pubsub/send.go
			}
			b.has(t, ctx, 1)
			waits := startLock(context.Background(), b.lock.Mutex(b.name))
			awaitSubscribers(t, b.direct, b.name, false, 1, patience)
			during(func() { require.NoError(t, returned(t, call(unlock), patience)) })
			require.NoError(t, waits.gets(t, patience, "woken by the unlock").unlock())
		})
	}
}

// Fault 3 (-OOM), G2, G6: the server is out of memory and may evict nothing. Lock, and a re-entry with a longer lease, fail at once with that
// reason. Existing holds are still renewed, and unlocked level by level.
func TestRedisOutOfMemory(t *testing.T) {
	t.Parallel()
	const watchdog = 6 * time.Second
	for kind, o := range map[string][]rlock.Option{"watchdog": nil, "lease": {rlock.WithLease(time.Minute)}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newRedisFixture(t, redistest.Start(t), rlock.Options{WatchdogTimeout: watchdog})
			ctx, unlock := b.locks(t, b.name, o...)
			_, unlockInner, err := b.lock.Mutex(b.name, o...).Lock(ctx)
			require.NoError(t, err)
			b.has(t, ctx, 2)
			waiter := startLock(context.Background(), b.other.Mutex(b.name))
			awaitQueued(t, b.direct, b.name, 1)
			require.NoError(t, do(t, b.direct, "CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1mb").Error())
			for _, refused := range []struct {
				ctx  context.Context
				lock *rlock.Mutex
			}{
				{context.Background(), b.lock.Mutex(b.name + ":new")}, {context.Background(), b.lock.FencedMutex(b.name + ":new")},
				{ctx, b.lock.Mutex(b.name, rlock.WithLease(time.Hour))},
			} {
				got := startLock(refused.ctx, refused.lock).within(t, patience)
				require.ErrorContains(t, got.err, "OOM command not allowed")
				require.NotErrorIs(t, got.err, rlock.ErrNotAcquired)
				require.ErrorIs(t, got.unlock(), rlock.ErrNotHeld)
			}
			require.NoError(t, b.lock.Mutex(b.name, rlock.WithLease(time.Second)).Do(ctx, nothing), "a re-entry without a command")
			sleep(watchdog + watchdog/2)
			require.NoError(t, ctx.Err())
			require.NoError(t, unlockInner())
			redistest.Eventually(t, patience, func() bool { return owners(t, b.direct, b.name)[rlock.Owner(ctx)] == 1 }, "the count follows")
			waiter.waits(t)
			require.NoError(t, unlock())
			require.NoError(t, waiter.gets(t, patience, "it had its place before, and a release needs no memory").unlock())
			require.NoError(t, do(t, b.direct, "CONFIG", "SET", "maxmemory", "0").Error())
			b.becomesFree(t, b.name)
		})
	}
}

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
