package rlock_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// docsACL returns the ACL SETUSER command of docs/operating.md as words, without redis-cli.
func docsACL(t *testing.T) []string {
	t.Helper()
	text := answer(os.ReadFile("../docs/operating.md")).ok(t)
	_, command, ok := strings.Cut(strings.ReplaceAll(string(text), "\\\n", " "), "redis-cli ACL SETUSER")
	require.True(t, ok, "docs/operating.md has an ACL")
	command, _, _ = strings.Cut(command, "\n")
	return append([]string{"ACL", "SETUSER"}, strings.Fields(strings.ReplaceAll(command, "'", ""))...)
}

// The rights in docs/operating.md suffice for all kinds of lock, for waiting and for queries, and open no other key or channel.
func TestReadmeACL(t *testing.T) {
	redistest.Parallel(t)
	type dialer func(testing.TB, ...func(*rueidis.ClientOption)) rueidis.Client
	for name, start := range map[string]func(*testing.T) (dial dialer, admins []*redistest.Server){
		"standalone": func(t *testing.T) (dialer, []*redistest.Server) {
			s := redistest.Start(t)
			return s.Client, []*redistest.Server{s}
		},
		"sentinels": func(t *testing.T) (dialer, []*redistest.Server) {
			s := redistest.StartSentinel(t)
			return s.Client, s.Nodes()
		},
		"cluster": func(t *testing.T) (dialer, []*redistest.Server) {
			c := redistest.StartCluster(t, 3, 0)
			return c.Client, c.Nodes()
		},
	} {
		t.Run(name, func(t *testing.T) {
			dial, servers := start(t)
			command := docsACL(t)
			var admins []rueidis.Client
			for _, s := range servers {
				node := s.Client(t, redistest.Single)
				require.NoError(t, node.Do(t.Context(), node.B().Arbitrary(command...).Build()).Error())
				admins = append(admins, node)
			}
			shop := func() rueidis.Client {
				return dial(t, func(o *rueidis.ClientOption) { o.Username, o.Password = command[2], "secret" })
			}
			named := rlock.Options{Prefix: "shop:"}
			useAllKinds(t, newClient(t, shop(), named), newClient(t, shop(), named))
			for _, node := range admins {
				refused := answer(node.Do(t.Context(), node.B().Arbitrary("ACL", "LOG").Build()).ToArray()).ok(t)
				require.Empty(t, refused, "Redis refused a command, even if the lock works without it")
			}
			rdb := shop()
			_, _, err := newClient(t, rdb).Mutex("invoice:1").Lock(t.Context())
			require.ErrorContains(t, err, "NOPERM")
			require.ErrorContains(t, rdb.Do(t.Context(), rdb.B().Flushall().Build()).Error(), "NOPERM")
			b := rdb.B()
			for _, cmd := range []rueidis.Completed{
				b.Del().Key("redisson_lock_token:{invoice:1}").Build(), b.Get().Key("redisson_lock_token:{invoice:1}").Build(),
				b.Del().Key("rlock_queue:{invoice:1}").Build(), b.Lpop().Key("redisson_lock_queue:{invoice:1}").Build(),
				b.Publish().Channel("redisson_lock__channel:{invoice:1}").Message("0").Build(),
			} {
				what := strings.Join(cmd.Commands(), " ")
				require.ErrorContains(t, rdb.Do(t.Context(), cmd).Error(), "NOPERM", what)
			}
		})
	}
}

// useAllKinds locks a lock of each kind, named order:…, waits for it, and runs every query.
func useAllKinds(t *testing.T, one, two *rlock.Client) {
	ctx := t.Context()
	for _, pair := range [][2]rlock.Locker{
		{one.Mutex("order:1"), two.Mutex("order:1")},
		{one.FencedMutex("order:2"), two.FencedMutex("order:2")},
		{one.FairMutex("order:3"), two.FairMutex("order:3")},
		{one.RWMutex("order:4").Write(), two.RWMutex("order:4").Read()},
		{one.RWMutex("order:5").Read(), two.RWMutex("order:5").Write()},
		{one.RWMutex("order:6").Upgradeable(), two.RWMutex("order:6").Upgradeable()},
		{rlock.All(one.Mutex("order:7"), one.Mutex("order:8")), rlock.All(two.Mutex("order:7"), two.Mutex("order:8"))},
	} {
		held, unlock := enter(t, ctx, pair[0])
		next := lockAsync(t, pair[1])
		redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, pair[0].Name()+" is waited for")
		if m, ok := pair[0].(*rlock.Mutex); ok {
			answer(m.Info(ctx)).ok(t)
			answer(m.IsLocked(ctx)).ok(t)
			answer(m.HoldCount(held)).ok(t)
		}
		require.NoError(t, unlock())
		got := next.gets(t, testTimeout)
		if m, ok := pair[1].(*rlock.Mutex); ok {
			answer(m.ForceUnlock(ctx)).ok(t)
			require.ErrorIs(t, got.unlock(), rlock.ErrLost)
		} else if err := got.unlock(); err != nil { // a busy machine takes longer than a grant lease
			require.ErrorIs(t, err, rlock.ErrLost)
		}
	}
	semaphore := one.Semaphore("order:11")
	answer(semaphore.TrySetPermits(ctx, 0)).ok(t)
	gets := async(func() error { return two.Semaphore("order:11").Acquire(ctx, 2) })
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "permits are waited for")
	require.NoError(t, semaphore.Release(ctx, 2))
	require.NoError(t, within(t, gets, testTimeout))
	answer(semaphore.Drain(ctx)).ok(t)
	answer(semaphore.Available(ctx)).ok(t)
	permits := one.PermitSemaphore("order:12")
	require.NoError(t, permits.SetPermits(ctx, 1))
	_, permit, err := permits.Acquire(ctx)
	require.NoError(t, err)
	gets = async(func() error { _, _, err := two.PermitSemaphore("order:12").Acquire(ctx); return err })
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "a permit is waited for")
	require.NoError(t, permits.UpdateLease(ctx, permit.ID(), time.Minute))
	answer(permits.LeaseTime(ctx, permit.ID())).ok(t)
	require.NoError(t, permit.Release())
	require.NoError(t, within(t, gets, testTimeout))
	latch := one.CountDownLatch("order:10")
	answer(latch.TrySetCount(ctx, 1)).ok(t)
	waits := async(func() error { return two.CountDownLatch("order:10").Await(ctx) })
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "the latch is waited for")
	require.NoError(t, latch.CountDown(ctx))
	require.NoError(t, within(t, waits, testTimeout))
	answer(latch.Delete(ctx)).ok(t)
	answer(latch.Count(ctx)).ok(t)

	cache := one.RWMutex("order:9")
	require.NoError(t, cache.Upgradeable().Do(ctx, func(ctx context.Context) error {
		return cache.Upgradeable().UpgradeDo(ctx, func(context.Context) error { return nil })
	}))
	writer, _ := enter(t, ctx, cache.Write())
	_, unlock, err := cache.Downgrade(writer)
	require.NoError(t, err)
	require.NoError(t, unlock())
}
