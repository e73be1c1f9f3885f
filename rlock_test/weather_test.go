package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// soon is the extra time that a call may take on a loaded machine. A waiter that slept through an unlock would look again only when the
// default lease ends, at least 20 s after it.
const soon = 15 * time.Second

// longestPeriod returns the longest time between two renewals: a third of the watchdog time, times 19/18, see lease/schedule.go.
func longestPeriod(watchdog time.Duration) time.Duration { return watchdog * 19 / 54 }

func TestRedisDownAtNewAndAtLock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		s.Stop()
		_, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}})
		require.Error(t, err, "rueidis fails at once")
		rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, ForceSingleClient: true})
		require.Error(t, err)
		t.Cleanup(rdb.Close)

		c := newClient(t, rdb) // sends nothing
		began := time.Now()
		_, _, err = c.Mutex("down").Lock(context.Background())
		require.ErrorContains(t, err, "connection refused")
		require.ErrorContains(t, err, `rlock: "down": Redis not reached: `)
		require.NotErrorIs(t, err, rlock.ErrNotAcquired)
		requireTookAtMost(t, 3*time.Second, began, time.Now()) // Lock gives up, although its ctx never ends

		const most = 2 * time.Second
		ctx, cancel := context.WithTimeout(context.Background(), most)
		defer cancel()
		began = time.Now()
		_, _, err = c.Mutex("down").Lock(ctx)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "connection refused", "says why")
		requireTookAtMost(t, most, began, time.Now())

		_, err = c.Mutex("down").IsLocked(context.Background())
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		// rueidis retries read-only commands until the call's time is up, which may end the last dialling.
		require.ErrorContains(t, err, `rlock: "down": Redis not reached: dial tcp `)
	})
}

// Local waiters do not try one after the other. A waiter that joins during the first one's try takes at most twice its
// time, however many there are.
func TestRedisDownForManyWaiters(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newClient(t, s.Client(t))
		s.Stop()
		began := time.Now()
		var waiters []pendingLock
		for range 8 {
			waiters = append(waiters, lockAsync(t, c.Mutex("down")))
		}
		for _, w := range waiters {
			got := w.get(t, testTimeout)
			require.ErrorContains(t, got.err, "connection refused")
			requireTookAtMost(t, 2*3*time.Second, began, got.at)
		}
	})
}

func TestRedisComesBackDuringLock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newClient(t, s.Client(t))
		s.Stop()
		p := lockAsync(t, c.Mutex("back"))
		s.Restart()
		p.getAndUnlock(t, 3*time.Second+soon)
	})
}

func TestRedisDownAtUnlock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newClient(t, s.Client(t))
		ctx, unlock := enter(t, context.Background(), c.Mutex("unlock"))
		s.Stop()
		began := time.Now()
		err := unlock()
		require.ErrorContains(t, err, "connection refused")
		require.ErrorContains(t, err, `rlock: "unlock": may take effect (do not repeat it): Redis not reached: `)
		requireTookAtMost(t, 3*time.Second, began, time.Now())
		require.Error(t, ctx.Err())
	})
}

func TestWrongPassword(t *testing.T) {
	s := redistest.Start(t, "--requirepass", "right")
	_, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, Password: "wrong"})
	require.ErrorContains(t, err, "WRONGPASS")
	rdb, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{s.Addr()}, Password: "wrong", ForceSingleClient: true,
	})
	require.Error(t, err)
	t.Cleanup(rdb.Close)
	c := newClient(t, rdb)
	began := time.Now()
	_, _, err = c.Mutex("password").Lock(context.Background())
	require.ErrorContains(t, err, "WRONGPASS")
	require.Less(t, redistest.Ran(t, began, time.Now()), soon, "Lock does not retry, since that would not help")
}

// Redis runs the second attempt and then the first, which was long on its way. The caller has gone, or
// unlocked. Each of the two takes the lock, and each is taken off again, though the first release found
// something.
func TestFirstAttemptArrivesAfterTheSecondWasTakenOff(t *testing.T) {
	for _, what := range []string{"answered, caller gone", "not answered, caller gone", "unlocked", "unlock failed"} {
		redistest.RunVirtual(t, what, func(t *testing.T) {
			_, far, b := behindProxy(t, anyWay)         // holds the first request back
			near := redistest.StartProxy(t, far.Addr()) // holds back the reply to the second request
			c := newClient(t, redistest.Dial(t, near.Addr()))
			loadScripts(t, c)
			far.OnRequest(redistest.Nth(1, "EVALSHA", redistest.Hold))
			near.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
			p := lockAsync(t, c.Mutex(b.name))
			redistest.Eventually(t, 5*time.Second, func() bool { return far.Held() == 1 }, "the first attempt is on its way")
			near.CutAll()
			redistest.Eventually(t, 5*time.Second, func() bool { return near.Held() == 1 }, "the second one is granted")
			require.True(t, b.exists(t, b.name))
			switch what {
			case "answered, caller gone":
				p.cancel()
				require.ErrorIs(t, p.get(t, 5*time.Second).err, rlock.ErrNotAcquired)
				near.Release()
			case "not answered, caller gone":
				p.cancel()
				require.ErrorIs(t, p.get(t, 5*time.Second).err, rlock.ErrNotAcquired)
				near.CutAll()
			case "unlocked":
				near.Release()
				got := p.gets(t, 5*time.Second)
				require.NoError(t, got.unlock())
			case "unlock failed":
				near.Release()
				got := p.gets(t, 5*time.Second)
				near.Refuse(true)
				near.CutAll()
				require.Error(t, got.unlock())
				near.Refuse(false)
			}
			redistest.Eventually(t, 5*time.Second, func() bool { return !b.exists(t, b.name) }, "taken off")

			before := redistest.Commands(t, b.rdb)["hincrby"] // called by scripts that take a lock
			far.Release()
			redistest.Eventually(t, 5*time.Second, func() bool {
				return redistest.Commands(t, b.rdb)["hincrby"] > before
			}, "the first attempt takes the lock for nobody")
			redistest.Eventually(t, 10*time.Second, func() bool { return !b.exists(t, b.name) }, "well before the lease ends")
		})
	}
}

func TestScriptsForgottenBeforeEveryCall(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		b := fixture{Client: newClient(t, s.Client(t)), rdb: s.Client(t), name: "flush"}
		flush := func() { require.NoError(t, b.do(t, "SCRIPT", "FLUSH").Error()) }
		m := b.Mutex(b.name)
		for range 3 {
			flush()
			ctx, unlock := enter(t, context.Background(), m)
			flush()
			_, unlockInner := enter(t, ctx, m)
			flush()
			require.NoError(t, unlockInner())
			flush()
			require.NoError(t, unlock())
			flush()
			answer(m.ForceUnlock(context.Background())).ok(t)
		}
	})
}

// G4, G5: a server that is briefly a replica, as in a failover, is retried until it is the master. Redis 6.2 words this
// error differently.
func TestServerIsAReplicaForAMoment(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	b := fixture{Client: newClient(t, s.Client(t)), rdb: s.Client(t), name: "order:42"}
	require.NoError(t, b.do(t, "REPLICAOF", "127.0.0.1", "1").Error()) // its master does not exist
	p := lockAsync(t, b.Mutex(b.name, rlock.WithWaitForRedis()))       // the test may take longer than the others wait
	redistest.Eventually(t, soon, func() bool { return redistest.Commands(t, b.rdb)["evalsha"] > 2 }, "the call is retried")
	require.NoError(t, b.do(t, "REPLICAOF", "NO", "ONE").Error())
	p.getAndUnlock(t, testTimeout)
}
