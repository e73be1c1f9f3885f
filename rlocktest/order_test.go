package rlocktest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// nest takes locks inside each other with Lock, and releases them.
func nest(ctx context.Context, t *testing.T, locks ...rlock.Locker) {
	t.Helper()
	if len(locks) == 0 {
		return
	}
	ctx, unlock, err := locks[0].Lock(ctx)
	require.NoError(t, err)
	nest(ctx, t, locks[1:]...)
	require.NoError(t, unlock())
}

// tries is a lock whose Lock does not wait.
type tries struct{ *rlock.Mutex }

func (l tries) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return l.TryLock(ctx, 0)
}

// orderCase is a use of locks, and the report about it.
type orderCase struct {
	takes func(ctx context.Context, t *testing.T, c *Client)
	group func(string) string
	want  []string // parts of the report; nil: none
}

func testOrders(t *testing.T, cases map[string]orderCase) {
	t.Helper()
	for name, row := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &recorder{TB: t}
				c := New(r)
				c.LockOrder(row.group)
				row.takes(t.Context(), t, c)
				said := r.end()
				if row.want == nil {
					require.Empty(t, said)
					return
				}
				require.Len(t, said, 1)
				for _, part := range row.want {
					require.Contains(t, said[0], part)
				}
			})
		})
	}
}

// Orders that could deadlock are reported, even if taken one after the other, and no others are.
func TestLockOrder(t *testing.T) {
	testOrders(t, map[string]orderCase{
		"one order": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("a"), c.Mutex("b"), c.Mutex("c"))
			nest(ctx, t, c.Mutex("a"), c.Mutex("c"))
			nest(ctx, t, c.Mutex("b"), c.Mutex("c"))
			nest(ctx, t, c.Mutex("b"))
			nest(ctx, t, c.Mutex("a"))
		}},
		"both orders": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("a"), c.FencedMutex("b"))
			nest(ctx, t, c.FairMutex("b"), c.Mutex("a"))
		}, want: []string{`"b" under "a" (order_test.go:`, `, and "a" under "b" (order_test.go:`}},
		"of two processes": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			other := c.Elsewhere()
			nest(ctx, t, c.Mutex("a"), c.Mutex("b"))
			nest(ctx, t, other.Mutex("b"), other.Mutex("a"))
		}, want: []string{`"b" under "a"`, `"a" under "b"`}},
		"a circle of three": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("a"), c.Mutex("b"))
			nest(ctx, t, c.Mutex("b"), c.Mutex("c"))
			nest(ctx, t, c.Mutex("c"), c.Mutex("a"))
		}, want: []string{`"b" under "a"`, `"c" under "b"`, `"a" under "c"`}},
		"one before it began": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("a"), c.Mutex("b"))
			c.LockOrder(nil)
			nest(ctx, t, c.Mutex("b"), c.Mutex("a"))
		}},
		"a re-entry under the other one": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("a"), c.Mutex("b"), c.Mutex("a"), c.Mutex("b"))
			nest(ctx, t, c.Mutex("a"), c.Mutex("b"), rlock.All(c.Mutex("a"), c.Mutex("c")))
		}},
		"All": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, rlock.All(c.Mutex("a"), c.Mutex("b")))
			nest(ctx, t, rlock.All(c.Mutex("b"), c.FairMutex("a")))
			nest(ctx, t, c.Mutex("a"), c.Mutex("b"))
		}},
		"All against one": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, rlock.All(c.Mutex("a"), c.Mutex("b")), c.Mutex("c"))
			nest(ctx, t, c.Mutex("c"), rlock.All(c.Mutex("b"), c.Mutex("d")))
		}, want: []string{`"c" under "b"`, `"b" under "c"`}},
		"one that does not wait": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("a"), c.Mutex("b"))
			nest(ctx, t, c.Mutex("b"), tries{c.Mutex("a")})
		}},
		"under one that did not wait": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("a"), c.Mutex("b"))
			nest(ctx, t, tries{c.Mutex("b")}, c.Mutex("a"))
		}, want: []string{`"b" under "a"`, `"a" under "b"`}},
	})
}

// Two orders cannot deadlock while both are taken under one lock that excludes the other.
func TestLockOrderUnderAGate(t *testing.T) {
	testOrders(t, map[string]orderCase{
		"under one gate": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("gate"), c.Mutex("a"), c.Mutex("b"))
			nest(ctx, t, c.Mutex("gate"), c.Mutex("b"), c.Mutex("a"))
		}},
		"one of them under a gate": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("gate"), c.Mutex("a"), c.Mutex("b"))
			nest(ctx, t, c.Mutex("b"), c.Mutex("a"))
		}, want: []string{`"b" under "a"`, `"a" under "b"`}},
		"a gate for readers": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.RWMutex("gate").Read(), c.Mutex("a"), c.Mutex("b"))
			nest(ctx, t, c.RWMutex("gate").Read(), c.Mutex("b"), c.Mutex("a"))
		}, want: []string{`"b" under "a"`, `"a" under "b"`}},
		"a gate that one reads": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.RWMutex("gate").Read(), c.Mutex("a"), c.Mutex("b"))
			nest(ctx, t, c.RWMutex("gate").Write(), c.Mutex("b"), c.Mutex("a"))
		}},
	})
}

// Readers alone cannot deadlock.
func TestLockOrderOfReaders(t *testing.T) {
	testOrders(t, map[string]orderCase{
		"readers alone": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.RWMutex("a").Read(), c.RWMutex("b").Read())
			nest(ctx, t, c.RWMutex("b").Read(), c.RWMutex("a").Read())
		}},
		"readers beside a writer of each": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.RWMutex("a").Read(), c.RWMutex("b").Read())
			nest(ctx, t, c.RWMutex("b").Read(), c.RWMutex("a").Read())
			nest(ctx, t, c.RWMutex("a").Write())
			nest(ctx, t, c.RWMutex("b").Write())
		}, want: []string{`"b" under "a"`, `"a" under "b"`}},
		"a reader inside of the writer": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.RWMutex("a").Write(), c.Mutex("b"), c.RWMutex("a").Read())
		}},
		"an upgrade": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			up := c.RWMutex("a").Upgradeable()
			inner, unlock, err := up.Lock(ctx)
			require.NoError(t, err)
			b, unlockB, err := c.Mutex("b").Lock(inner)
			require.NoError(t, err)
			_, unlockUp, err := up.Upgrade(b)
			require.NoError(t, err)
			require.NoError(t, unlockUp())
			require.NoError(t, unlockB())
			require.NoError(t, unlock())
		}, want: []string{`"b" under "a"`, `"a" under "b"`}},
	})
}

// With groups, orders are compared by group, and by lock within a group.
func TestLockOrderOfGroups(t *testing.T) {
	testOrders(t, map[string]orderCase{
		"groups": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("order:1"), c.Mutex("stock:7"))
			nest(ctx, t, c.Mutex("stock:3"), c.Mutex("order:2"))
		}, group: ByPrefix, want: []string{`"stock:7" under "order:1"`, `"order:2" under "stock:3"`}},
		"without groups": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("order:1"), c.Mutex("stock:7"))
			nest(ctx, t, c.Mutex("stock:3"), c.Mutex("order:2"))
		}},
		"one order in a group": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("order:1"), c.Mutex("order:2"), c.Mutex("order:3"))
			nest(ctx, t, c.Mutex("order:4"), c.Mutex("order:7"))
		}, group: ByPrefix},
		"both orders in a group": {takes: func(ctx context.Context, t *testing.T, c *Client) {
			nest(ctx, t, c.Mutex("order:1"), c.Mutex("order:2"))
			nest(ctx, t, c.Mutex("order:7"), c.Mutex("order:4"))
		}, group: ByPrefix, want: []string{`"order:2" under "order:1"`, `"order:4" under "order:7"`}},
	})
}

// Without LockOrder nothing is reported. The test's Trace is called in any case.
func TestLockOrderUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, acquired := &recorder{TB: t}, 0
		c := NewWith(r, rlock.Options{Trace: &rlock.Trace{Acquired: func(context.Context, rlock.AcquiredInfo) { acquired++ }}})
		nest(t.Context(), t, c.Mutex("a"), c.Mutex("b"))
		nest(t.Context(), t, c.Mutex("b"), c.Mutex("a"))
		require.Empty(t, r.end())
		require.Equal(t, 4, acquired)
	})
}

// An Acquire waits outside of its caller's section, so it is under nothing. docs/features.md says so of Options.Deadlock.
func TestAcquireIsUnderNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		locks := NewWith(r, rlock.Options{Deadlock: rlock.Deadlock{After: time.Second, Action: rlock.DeadlockFail}})
		locks.LockOrder(nil)
		ended := make(chan error)
		both := func(a, b string) {
			ended <- locks.Mutex(a).Do(t.Context(), func(ctx context.Context) error {
				time.Sleep(10 * time.Second)
				hold, err := rlock.TryAcquire(ctx, locks.Mutex(b), time.Minute)
				if err == nil {
					err = hold.Unlock()
				}
				return err
			})
		}
		go both("a", "b")
		time.Sleep(5 * time.Second)
		go both("b", "a")
		err := <-ended
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.NotErrorIs(t, err, rlock.ErrDeadlock)
		require.NoError(t, <-ended)
		require.Empty(t, r.end())
	})
}
