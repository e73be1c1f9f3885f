package older

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// mute is the longest time for which this version may keep a lock while an older version waits.
const mute = 3 * time.Second

// spokenTo tests holders of this version with WithAsked, WithLinger or a ticket against waiters of an older
// version without these options, which see an ordinary holder.
func spokenTo(t *testing.T, f *upgrade) {
	const watchdog = 3 * time.Second
	c, err := rlock.New(redistest.Dial(t, f.addrs[0]), rlock.Options{WatchdogTimeout: watchdog})
	require.NoError(t, err)
	t.Cleanup(c.Close)

	// Every third of the watchdog time, and again a second later, the holder looks for waiters that cannot ask.
	for _, kind := range []string{"plain", "fenced", "fair", "write"} {
		if !f.knows(kind) {
			continue
		}
		t.Run("asked/"+kind, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			m := map[string]func(string, ...rlock.Option) *rlock.Mutex{
				"plain": c.Mutex, "fenced": c.FencedMutex, "fair": c.FairMutex,
				"write": func(name string, o ...rlock.Option) *rlock.Mutex { return c.RWMutex(name, o...).Write() },
			}[kind](name, rlock.WithAsked())
			ctx, unlock, err := m.Lock(t.Context())
			require.NoError(t, err)
			require.Equal(t, "taken", f.olds[0].ask(t, "try", kind, name))
			waiter := f.olds[0].lock(t, kind, name)
			f.awaitListener(t, channel(kind, kind, name))
			began := time.Now()
			select {
			case <-rlock.Asked(ctx):
			case <-time.After(patience):
				require.FailNow(t, "the holder did not learn of the waiter")
			}
			require.Less(t, time.Since(began), watchdog/3+time.Second+wakeUp)
			waiter.requireOut(t)
			require.NoError(t, unlock())
			waiter.in(t)
			again := lock(t, m)
			f.awaitListener(t, channel(kind, kind, name))
			waiter.unlock(t)
			require.NoError(t, (<-again)())
		})
	}

	t.Run("kept", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		m := c.Mutex(name, rlock.WithLinger(mute))
		var last time.Time
		redistest.Eventually(t, patience, func() bool {
			require.NoError(t, m.Do(t.Context(), func(context.Context) error {
				last = time.Now()
				return nil
			}))
			return c.Stats().Idle == 1
		}, "the lock must be kept")
		require.Equal(t, "taken", f.olds[1].ask(t, "try", "plain", name))
		waiter := f.olds[1].lock(t, "plain", name)
		waiter.in(t)
		require.Greater(t, time.Since(last), mute-mute/10, "the older version cannot ask, so it must wait")
		require.Less(t, time.Since(last), mute+wakeUp)
		again := lock(t, m)
		f.awaitListener(t, channel("plain", "plain", name))
		waiter.unlock(t)
		require.NoError(t, (<-again)())
	})

	// A hold moves between two processes of this version while an older one waits.
	t.Run("taken along", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		ctx, unlock, err := c.Mutex(name).Lock(t.Context())
		require.NoError(t, err)
		waiter := f.olds[0].lock(t, "plain", name)
		f.awaitListener(t, channel("plain", "plain", name))
		ticket, err := rlock.Export(ctx, rlock.WithTicketTime(time.Hour))
		require.NoError(t, err)
		require.NoError(t, unlock())
		require.Equal(t, "taken", f.olds[1].ask(t, "try", "plain", name))
		_, unlock, err = c.Adopt(t.Context(), ticket)
		require.NoError(t, err)
		require.Equal(t, "taken", f.olds[1].ask(t, "try", "plain", name))
		waiter.requireOut(t)
		require.NoError(t, unlock())
		waiter.in(t)
		waiter.unlock(t)
	})
}

// lock calls Lock on a goroutine that ends with it. If Lock fails, so does the unlock.
func lock(t *testing.T, m *rlock.Mutex) <-chan rlock.UnlockFunc {
	t.Helper()
	in := make(chan rlock.UnlockFunc, 1)
	go func() {
		_, unlock, err := m.Lock(t.Context())
		if err != nil {
			unlock = func() error { return err }
		}
		in <- unlock
	}()
	return in
}
