package rlock_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// changing matches the parts of an error that differ each time: owners, addresses and times.
var changing = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+|127\.0\.0\.1:\d+|(\d+[hm])*\d[\d.]*(ms|s)\b`)

// docs/troubleshooting.md shows only errors that the library returns, and every error met here.
func TestTroubleshootingShowsTheErrors(t *testing.T) {
	redistest.Parallel(t)
	page := answer(os.ReadFile("../docs/troubleshooting.md")).ok(t)
	shown := make(map[string]bool)
	for _, line := range regexp.MustCompile(`(?m)^rlock: "order:42": .*$`).FindAllString(string(page), -1) {
		shown[changing.ReplaceAllString(line, "#")] = true
	}

	s := redistest.Start(t)
	var mu sync.Mutex // guards met
	met := make(map[string]bool)
	t.Run("errors", func(t *testing.T) {
		try := func(what string, fail func(t *testing.T, c *rlock.Client, m *rlock.Mutex) error, options ...rlock.Option) {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				c := newClient(t, s.Client(t), rlock.Options{Prefix: what + ":"})
				err := fail(t, c, c.Mutex("order:42", options...))
				require.Error(t, err)
				mu.Lock()
				defer mu.Unlock()
				met[changing.ReplaceAllString(err.Error(), "#")] = true
				assert.True(t, shown[changing.ReplaceAllString(err.Error(), "#")], "docs/troubleshooting.md does not show %s", err)
			})
		}
		short := func(t *testing.T, d time.Duration) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return ctx
		}
		take := func(t *testing.T, m *rlock.Mutex) (context.Context, rlock.UnlockFunc) {
			ctx, unlock := enter(t, t.Context(), m)
			t.Cleanup(func() { _ = unlock() })
			return ctx, unlock
		}
		lost := func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}

		try("itself", func(t *testing.T, _ *rlock.Client, m *rlock.Mutex) error {
			take(t, m)
			_, _, err := m.Lock(short(t, time.Second))
			return err
		})
		try("another", func(t *testing.T, _ *rlock.Client, m *rlock.Mutex) error {
			take(t, newClient(t, s.Client(t), rlock.Options{Prefix: "another:"}).Mutex("order:42"))
			_, _, err := m.Lock(short(t, time.Second))
			return err
		})
		try("at once", func(t *testing.T, _ *rlock.Client, m *rlock.Mutex) error {
			take(t, newClient(t, s.Client(t), rlock.Options{Prefix: "at once:"}).Mutex("order:42"))
			_, _, err := m.TryLock(t.Context(), 0)
			var refusal *rlock.NotAcquiredError
			require.ErrorAs(t, err, &refusal)
			refusal.Waited = 0 // a quick attempt shows no time
			return refusal
		})
		try("exported", func(t *testing.T, _ *rlock.Client, m *rlock.Mutex) error {
			takenAlong(t, m, rlock.WithTicketTime(time.Minute))
			_, _, err := m.TryLock(t.Context(), 0)
			var refusal *rlock.NotAcquiredError
			require.ErrorAs(t, err, &refusal)
			refusal.Waited = 0 // as above
			return refusal
		})
		try("used ticket", func(t *testing.T, c *rlock.Client, m *rlock.Mutex) error {
			ticket := takenAlong(t, m)
			_, unlock, err := c.Adopt(t.Context(), ticket)
			require.NoError(t, err)
			require.NoError(t, unlock())
			_, _, err = c.Adopt(t.Context(), ticket)
			return err
		})
		try("two levels", func(t *testing.T, _ *rlock.Client, m *rlock.Mutex) error {
			ctx, _ := take(t, m)
			_, unlock := enter(t, ctx, m)
			t.Cleanup(func() { _ = unlock() })
			_, err := rlock.Export(ctx)
			return err
		})
		try("deleted", func(t *testing.T, _ *rlock.Client, m *rlock.Mutex) error {
			ctx, unlock := take(t, m)
			answer(m.ForceUnlock(t.Context())).ok(t)
			require.Error(t, unlock())
			return lost(ctx) //rlockvet:ignore its end is what is looked at
		})
		try("fixed lease", func(t *testing.T, _ *rlock.Client, m *rlock.Mutex) error {
			ctx, _ := take(t, m)
			return lost(ctx)
		}, rlock.WithLease(time.Second))
		try("longest hold", func(t *testing.T, _ *rlock.Client, m *rlock.Mutex) error {
			ctx, _ := take(t, m)
			return lost(ctx)
		}, rlock.WithMaxHold(time.Second))
		try("not renewed", func(t *testing.T, _ *rlock.Client, _ *rlock.Mutex) error {
			gone := redistest.Start(t)
			m := newClient(t, gone.Client(t), rlock.Options{WatchdogTimeout: shortWatchdog}).Mutex("order:42") // long enough for a second try
			ctx, _ := take(t, m)
			gone.Stop()
			return lost(ctx)
		})
		try("down", func(t *testing.T, _ *rlock.Client, _ *rlock.Mutex) error {
			gone := redistest.Start(t)
			m := newClient(t, gone.Client(t)).Mutex("order:42")
			gone.Stop()
			_, _, err := m.Lock(t.Context())
			return err
		})
		for what, says := range map[string]string{
			"loading": "LOADING Redis is loading the dataset in memory",
			"replica": "READONLY You can't write against a read only replica.",
			"no slot": "CLUSTERDOWN Hash slot not served",
			"moved":   "MOVED 3999 127.0.0.1:6381",
			"no key":  "NOPERM No permissions to access a key",
			"memory":  "OOM command not allowed when used memory > 'maxmemory'.",
		} {
			try(what, func(t *testing.T, _ *rlock.Client, _ *rlock.Mutex) error {
				p := redistest.StartProxy(t, s.Addr())
				m := newClient(t, s.Client(t, redistest.Via(p), redistest.Single)).Mutex("order:42")
				p.OnRequest(redistest.Each("EVALSHA", redistest.Fail(says)))
				_, _, err := m.Lock(t.Context())
				return err
			})
		}
		try("no channel", func(t *testing.T, _ *rlock.Client, _ *rlock.Mutex) error {
			p := redistest.StartProxy(t, s.Addr())
			take(t, newClient(t, s.Client(t)).Mutex("order:42"))
			m := newClient(t, s.Client(t, redistest.Via(p), redistest.Single)).Mutex("order:42")
			p.OnRequest(redistest.Each("SUBSCRIBE", redistest.Fail("NOPERM No permissions to access a channel")))
			_, _, err := m.Lock(t.Context())
			return err
		})
		try("silent", func(t *testing.T, _ *rlock.Client, _ *rlock.Mutex) error {
			p := redistest.StartProxy(t, s.Addr())
			m := newClient(t, s.Client(t, redistest.Via(p))).Mutex("order:42")
			p.BlackHole(true)
			t.Cleanup(func() { p.BlackHole(false) })
			_, _, err := m.Lock(short(t, time.Second))
			return err
		})
		try("hung up", func(t *testing.T, _ *rlock.Client, _ *rlock.Mutex) error {
			p := redistest.StartProxy(t, s.Addr())
			m := newClient(t, s.Client(t, redistest.Via(p))).Mutex("order:42")
			p.OnRequest(redistest.Each("EVALSHA", redistest.Cut))
			_, _, err := m.Lock(t.Context())
			return err
		})
		try("replicas", func(t *testing.T, _ *rlock.Client, _ *rlock.Mutex) error {
			m := newClient(t, s.Client(t), rlock.Options{Replicas: 1, Prefix: "replicas:"}).Mutex("order:42")
			_, _, err := m.Lock(t.Context())
			return err
		})
		for what, cmd := range map[string][]string{"text": {"SET", "x"}, "data": {"HSET", "customer", "17"}} {
			try(what, func(t *testing.T, _ *rlock.Client, m *rlock.Mutex) error {
				rdb := s.Client(t)
				require.NoError(t, rdb.Do(t.Context(), rdb.B().Arbitrary(cmd[0]).Keys(what+":order:42").Args(cmd[1:]...).Build()).Error())
				_, _, err := m.Lock(t.Context())
				return err
			})
		}
		try("closed", func(t *testing.T, c *rlock.Client, m *rlock.Mutex) error {
			c.Close()
			_, _, err := m.Lock(t.Context())
			return err
		})
		try("twice", func(t *testing.T, _ *rlock.Client, m *rlock.Mutex) error {
			_, unlock := take(t, m)
			require.NoError(t, unlock())
			return unlock()
		})
		try("no permits", func(t *testing.T, c *rlock.Client, _ *rlock.Mutex) error {
			semaphore := c.Semaphore("order:42")
			answer(semaphore.TrySetPermits(t.Context(), 1)).ok(t)
			return semaphore.Acquire(short(t, time.Second), 2)
		})
		try("never set", func(t *testing.T, c *rlock.Client, _ *rlock.Mutex) error {
			return c.Semaphore("order:42").Acquire(short(t, time.Second), 1)
		})
		try("too few", func(t *testing.T, c *rlock.Client, _ *rlock.Mutex) error {
			return c.Semaphore("order:42").Acquire(t.Context(), -1)
		})
		try("not open", func(t *testing.T, c *rlock.Client, _ *rlock.Mutex) error {
			latch := c.CountDownLatch("order:42")
			answer(latch.TrySetCount(t.Context(), 3)).ok(t)
			return latch.Await(short(t, time.Second))
		})
		for what, act := range map[string]func(context.Context, *rlock.Client) error{
			"text for a latch": func(ctx context.Context, c *rlock.Client) error { return c.CountDownLatch("order:42").CountDown(ctx) },
			"text for permits": func(ctx context.Context, c *rlock.Client) error { return c.Semaphore("order:42").Acquire(ctx, 1) },
		} {
			try(what, func(t *testing.T, c *rlock.Client, _ *rlock.Mutex) error {
				rdb := s.Client(t)
				require.NoError(t, rdb.Do(t.Context(), rdb.B().Set().Key(what+":order:42").Value("x").Build()).Error())
				return act(t.Context(), c)
			})
		}
		try("silent to a count down", func(t *testing.T, _ *rlock.Client, _ *rlock.Mutex) error {
			p := redistest.StartProxy(t, s.Addr())
			latch := newClient(t, s.Client(t, redistest.Via(p))).CountDownLatch("order:42")
			p.BlackHole(true)
			t.Cleanup(func() { p.BlackHole(false) })
			return latch.CountDown(short(t, time.Second))
		})
		try("no re-entry", func(t *testing.T, _ *rlock.Client, m *rlock.Mutex) error {
			ctx, _ := take(t, m)
			_, _, err := m.Lock(ctx)
			return err
		}, rlock.WithoutReentry())
	})
	for line := range shown {
		assert.True(t, met[line], "docs/troubleshooting.md shows %s, which this test has not met", strings.TrimSpace(line))
	}
}
