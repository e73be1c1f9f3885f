package rlock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// askedFor is a client that notes the caller of each command, as a tracing wrapper would. Commands that a Client sends
// on its own behalf have no caller.
type askedFor struct {
	rueidis.Client
	mu  sync.Mutex // guards the following
	who []any
}

func (a *askedFor) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	a.note(ctx)
	return a.Client.Do(ctx, cmd)
}

func (a *askedFor) DoMulti(ctx context.Context, all ...rueidis.Completed) []rueidis.RedisResult {
	a.note(ctx)
	return a.Client.DoMulti(ctx, all...)
}

func (a *askedFor) note(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if who := ctx.Value(ctxLabel{}); who != nil {
		a.who = append(a.who, who)
	}
}

func (a *askedFor) peek() []any {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.who
}

func (a *askedFor) take() []any {
	a.mu.Lock()
	defer a.mu.Unlock()
	who := a.who
	a.who = nil
	return who
}

// A wrapped rueidis client finds the values of the caller's ctx in the ctx of each command.
func TestCommandsHaveTheValuesOfTheCaller(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		loadScripts(t, b.Client)
		require.NoError(t, rlock.All(b.Mutex(b.name), b.Mutex(b.name+":2")).Do(context.Background(), nothing)) // loads their scripts, too
		rdb := &askedFor{Client: b.rdb}
		c := newClient(t, rdb)
		for _, ends := range []bool{false, true} { // with a ctx that ends, the query runs on another goroutine
			ctx := context.WithValue(context.Background(), ctxLabel{}, "A")
			if ends {
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				t.Cleanup(cancel)
			}
			for name, l := range map[string]rlock.Locker{
				"mutex": c.Mutex(b.name), "all": rlock.All(c.Mutex(b.name), c.Mutex(b.name+":2")),
			} {
				inner, unlock := enter(t, ctx, l)
				require.Equal(t, []any{"A"}, rdb.take(), name)
				require.NoError(t, c.Mutex(b.name, rlock.WithLease(time.Hour)).Do(inner, func(context.Context) error { return nil }))
				require.Equal(t, []any{"A"}, rdb.take(), "%s: re-entry for longer", name)
				redistest.Eventually(t, testTimeout, func() bool { return len(rdb.peek()) > 0 }, "the count follows")
				require.Equal(t, []any{"A"}, rdb.take(), "%s: the count", name)
				require.NoError(t, unlock())
				require.Equal(t, []any{"A"}, rdb.take(), name)
			}
			_, err := c.Mutex(b.name).IsLocked(ctx)
			require.NoError(t, err)
			require.Equal(t, []any{"A"}, rdb.take(), "a query")
		}
	})
}
