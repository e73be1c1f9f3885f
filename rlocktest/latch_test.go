package rlocktest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// await starts a wait for a latch.
func await(ctx context.Context, l *rlock.CountDownLatch) <-chan error {
	result := make(chan error, 1)
	go func() { result <- l.Await(ctx) }() // ends with the wait
	return result
}

func TestCountDownElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t)
		l := c.CountDownLatch("parts")
		set, err := l.TrySetCount(t.Context(), 2)
		require.NoError(t, err)
		require.True(t, set)
		waits := await(t.Context(), l)
		c.CountDownElsewhere("parts")
		time.Sleep(10 * time.Minute)
		require.Empty(t, waits)
		c.CountDownElsewhere("parts")
		require.NoError(t, <-waits)
	})
}

func TestCountDownElsewhereOfNothing(t *testing.T) {
	r := &recorder{TB: t}
	New(r).CountDownElsewhere("parts")
	require.Equal(t, []string{`rlocktest: CountDownElsewhere("parts"): the latch has no count`}, r.end())
}

// Deletion by hand and eviction publish nothing: waiters poll once a minute, and when the key expires.
func TestLatchGoesWithoutAWord(t *testing.T) {
	for name, row := range map[string]struct {
		expiry, notBefore, atMost time.Duration
	}{
		"deleted":              {0, 0, time.Minute},
		"deleted, with expiry": {time.Hour, 0, time.Minute},
		"expired":              {20 * time.Second, 19 * time.Second, 21 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(t)
				l := c.CountDownLatch("parts")
				_, err := l.TrySetCount(t.Context(), 2)
				require.NoError(t, err)
				if row.expiry > 0 {
					c.server.SetTTL("parts", row.expiry)
				}
				began := time.Now()
				waits := await(t.Context(), l)
				synctest.Wait()
				if row.notBefore == 0 {
					require.True(t, c.server.Del("parts"))
				}
				require.NoError(t, <-waits)
				require.LessOrEqual(t, time.Since(began), row.atMost+time.Second)
				require.GreaterOrEqual(t, time.Since(began), row.notBefore)
			})
		})
	}
}

// While Redis is silent, Await ends with its ctx, and CountDown continues in the background.
func TestLatchWhileRedisIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t)
		l, there := c.CountDownLatch("parts"), c.Elsewhere().CountDownLatch("parts")
		_, err := l.TrySetCount(t.Context(), 2)
		require.NoError(t, err)
		restore := c.FailRedis()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = l.Await(ctx)
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		again, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = l.CountDown(again)
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(10 * time.Second)
		restore()
		time.Sleep(10 * time.Second)
		n, err := there.Count(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(1), n)
	})
}

func TestLatchesThatAreStillWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		c := New(r)
		l := c.CountDownLatch("parts")
		_, err := l.TrySetCount(t.Context(), 1)
		require.NoError(t, err)
		waits := await(t.Context(), l)
		synctest.Wait()
		said := r.end()
		require.Len(t, said, 1)
		require.Contains(t, said[0], `rlocktest: at the end of the test "parts" is still waited for by `)
		require.ErrorIs(t, <-waits, rlock.ErrClosed)
	})
}

func TestHoldPermitsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		c := New(r)
		s := c.Semaphore("gpus")
		_, err := s.TrySetPermits(t.Context(), 2)
		require.NoError(t, err)
		release := c.HoldPermitsElsewhere("gpus", 2)
		got := make(chan error, 1)
		go func() { got <- s.Acquire(t.Context(), 1) }() // ends with the permits
		time.Sleep(10 * time.Minute)
		require.Empty(t, got)
		release()
		release()
		require.NoError(t, <-got)
		c.HoldPermitsElsewhere("gpus", 2)
		waits := make(chan error, 1)
		go func() { waits <- s.Acquire(t.Context(), 5) }() // ends with the Client
		synctest.Wait()
		said := r.end()
		require.Len(t, said, 2)
		require.Contains(t, said[0], `rlocktest: HoldPermitsElsewhere: rlock: "gpus": not acquired: 1 free of 2 wanted`)
		require.Contains(t, said[1], `"gpus" is still waited for by `)
		require.ErrorIs(t, <-waits, rlock.ErrClosed)
	})
}
