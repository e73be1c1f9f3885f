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

// scene is a server with a Client, and a lock.
type scene struct {
	*redistest.Server
	c *rlock.Client
	m *rlock.Mutex
}

// docs/troubleshooting.md shows only errors that the library returns, and every error met here.
func TestTroubleshootingShowsTheErrors(t *testing.T) {
	page := answer(os.ReadFile("../docs/troubleshooting.md")).ok(t)
	shown := make(map[string]bool)
	for _, line := range regexp.MustCompile(`(?m)^rlock: "order:42": .*$`).FindAllString(string(page), -1) {
		shown[changing.ReplaceAllString(line, "#")] = true
	}

	var mu sync.Mutex // guards met
	met := make(map[string]bool)
	t.Run("errors", func(t *testing.T) {
		meet := func(t *testing.T, fail func(t *testing.T, b scene) error, options []rlock.Option) {
			t.Helper()
			b := scene{Server: redistest.Start(t)}
			b.c = newClient(t, b.Client(t))
			b.m = b.c.Mutex("order:42", options...)
			err := fail(t, b)
			require.Error(t, err)
			mu.Lock()
			defer mu.Unlock()
			met[changing.ReplaceAllString(err.Error(), "#")] = true
			assert.True(t, shown[changing.ReplaceAllString(err.Error(), "#")], "docs/troubleshooting.md does not show %s", err)
		}
		try := func(what string, fail func(t *testing.T, b scene) error, options ...rlock.Option) {
			redistest.RunVirtual(t, what, func(t *testing.T) { meet(t, fail, options) })
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

		try("itself", func(t *testing.T, b scene) error {
			take(t, b.m)
			_, _, err := b.m.Lock(short(t, 5*time.Second))
			return err
		})
		try("another", func(t *testing.T, b scene) error {
			take(t, newClient(t, b.Client(t)).Mutex("order:42"))
			_, _, err := b.m.Lock(short(t, 5*time.Second))
			return err
		})
		try("at once", func(t *testing.T, b scene) error {
			take(t, newClient(t, b.Client(t)).Mutex("order:42"))
			_, _, err := b.m.TryLock(t.Context(), 0)
			var refusal *rlock.NotAcquiredError
			require.ErrorAs(t, err, &refusal)
			refusal.Waited = 0 // a quick attempt shows no time
			return refusal
		})
		try("exported", func(t *testing.T, b scene) error {
			takenAlong(t, b.m, rlock.WithTicketTime(time.Minute))
			_, _, err := b.m.TryLock(t.Context(), 0)
			var refusal *rlock.NotAcquiredError
			require.ErrorAs(t, err, &refusal)
			refusal.Waited = 0 // as above
			return refusal
		})
		try("used ticket", func(t *testing.T, b scene) error {
			ticket := takenAlong(t, b.m)
			_, unlock, err := b.c.Adopt(t.Context(), ticket)
			require.NoError(t, err)
			require.NoError(t, unlock())
			_, _, err = b.c.Adopt(t.Context(), ticket)
			return err
		})
		try("two levels", func(t *testing.T, b scene) error {
			ctx, _ := take(t, b.m)
			_, unlock := enter(t, ctx, b.m)
			t.Cleanup(func() { _ = unlock() })
			_, err := rlock.Export(ctx)
			return err
		})
		try("deleted", func(t *testing.T, b scene) error {
			ctx, unlock := take(t, b.m)
			answer(b.m.ForceUnlock(t.Context())).ok(t)
			require.Error(t, unlock())
			return lost(ctx) //rlockvet:ignore its end is what is looked at
		})
		try("fixed lease", func(t *testing.T, b scene) error {
			ctx, _ := take(t, b.m)
			return lost(ctx)
		}, rlock.WithLease(time.Second))
		try("longest hold", func(t *testing.T, b scene) error {
			ctx, _ := take(t, b.m)
			return lost(ctx)
		}, rlock.WithMaxHold(time.Second))
		try("not renewed", func(t *testing.T, b scene) error {
			gone := redistest.Start(t)
			m := newClient(t, gone.Client(t), rlock.Options{WatchdogTimeout: shortWatchdog}).Mutex("order:42") // long enough for a second try
			ctx, _ := take(t, m)
			gone.Stop()
			return lost(ctx)
		})
		try("down", func(t *testing.T, b scene) error {
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
			try(what, func(t *testing.T, b scene) error {
				p := redistest.StartProxy(t, b.Addr())
				m := newClient(t, b.Client(t, redistest.Via(p), redistest.Single)).Mutex("order:42")
				p.OnRequest(redistest.Each("EVALSHA", redistest.Fail(says)))
				_, _, err := m.Lock(t.Context())
				return err
			})
		}
		try("no channel", func(t *testing.T, b scene) error {
			p := redistest.StartProxy(t, b.Addr())
			take(t, newClient(t, b.Client(t)).Mutex("order:42"))
			m := newClient(t, b.Client(t, redistest.Via(p), redistest.Single)).Mutex("order:42")
			p.OnRequest(redistest.Each("SUBSCRIBE", redistest.Fail("NOPERM No permissions to access a channel")))
			_, _, err := m.Lock(t.Context())
			return err
		})
		try("silent", func(t *testing.T, b scene) error {
			p := redistest.StartProxy(t, b.Addr())
			m := newClient(t, b.Client(t, redistest.Via(p))).Mutex("order:42")
			p.BlackHole(true)
			t.Cleanup(func() { p.BlackHole(false) })
			_, _, err := m.Lock(short(t, time.Second))
			return err
		})
		try("hung up", func(t *testing.T, b scene) error {
			p := redistest.StartProxy(t, b.Addr())
			m := newClient(t, b.Client(t, redistest.Via(p))).Mutex("order:42")
			p.OnRequest(redistest.Each("EVALSHA", redistest.Cut))
			_, _, err := m.Lock(t.Context())
			return err
		})
		t.Run("replicas", func(t *testing.T) { // in memory there are as many as wanted
			meet(t, func(t *testing.T, b scene) error {
				rdb := b.Client(t)
				connectDedicated(t, rdb)
				_, _, err := newClient(t, rdb, rlock.Options{Replicas: 1}).Mutex("order:42").Lock(t.Context())
				return err
			}, nil)
		})
		for what, cmd := range map[string][]string{"text": {"SET", "x"}, "data": {"HSET", "customer", "17"}} {
			try(what, func(t *testing.T, b scene) error {
				rdb := b.Client(t)
				require.NoError(t, rdb.Do(t.Context(), rdb.B().Arbitrary(cmd[0]).Keys("order:42").Args(cmd[1:]...).Build()).Error())
				_, _, err := b.m.Lock(t.Context())
				return err
			})
		}
		try("closed", func(t *testing.T, b scene) error {
			b.c.Close()
			_, _, err := b.m.Lock(t.Context())
			return err
		})
		try("twice", func(t *testing.T, b scene) error {
			_, unlock := take(t, b.m)
			require.NoError(t, unlock())
			return unlock()
		})
		try("no permits", func(t *testing.T, b scene) error {
			semaphore := b.c.Semaphore("order:42")
			answer(semaphore.TrySetPermits(t.Context(), 1)).ok(t)
			return semaphore.Acquire(short(t, 5*time.Second), 2)
		})
		try("never set", func(t *testing.T, b scene) error {
			return b.c.Semaphore("order:42").Acquire(short(t, 5*time.Second), 1)
		})
		try("too few", func(t *testing.T, b scene) error {
			return b.c.Semaphore("order:42").Acquire(t.Context(), -1)
		})
		try("not open", func(t *testing.T, b scene) error {
			latch := b.c.CountDownLatch("order:42")
			answer(latch.TrySetCount(t.Context(), 3)).ok(t)
			return latch.Await(short(t, 5*time.Second))
		})
		for what, act := range map[string]func(context.Context, *rlock.Client) error{
			"text for a latch": func(ctx context.Context, c *rlock.Client) error { return c.CountDownLatch("order:42").CountDown(ctx) },
			"text for permits": func(ctx context.Context, c *rlock.Client) error { return c.Semaphore("order:42").Acquire(ctx, 1) },
		} {
			try(what, func(t *testing.T, b scene) error {
				rdb := b.Client(t)
				require.NoError(t, rdb.Do(t.Context(), rdb.B().Set().Key("order:42").Value("x").Build()).Error())
				return act(t.Context(), b.c)
			})
		}
		try("silent to a count down", func(t *testing.T, b scene) error {
			p := redistest.StartProxy(t, b.Addr())
			latch := newClient(t, b.Client(t, redistest.Via(p))).CountDownLatch("order:42")
			p.BlackHole(true)
			t.Cleanup(func() { p.BlackHole(false) })
			return latch.CountDown(short(t, time.Second))
		})
		try("no re-entry", func(t *testing.T, b scene) error {
			ctx, _ := take(t, b.m)
			_, _, err := b.m.Lock(ctx)
			return err
		}, rlock.WithoutReentry())
	})
	for line := range shown {
		assert.True(t, met[line], "docs/troubleshooting.md shows %s, which this test has not met", strings.TrimSpace(line))
	}
}
