package rlock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

func TestLockUnlock(t *testing.T) {
	b := newBench(t)
	ctx, unlock, err := b.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t, b.name))
	ctx2, unlock2, err := b.Mutex(b.name).Lock(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]int64{rlock.Owner(ctx): 2}, b.fields(t, b.name))
	_ = ctx2
	require.NoError(t, unlock2())
	require.ErrorIs(t, unlock2(), rlock.ErrNotHeld)
	require.NoError(t, unlock())
	require.False(t, b.exists(t, b.name))
}

func TestHammer(t *testing.T) {
	b := newBench(t)
	var n, inside int
	var wg sync.WaitGroup
	start := time.Now()
	for range 20 {
		c := newClient(t, b.rdb)
		for range 5 {
			wg.Go(func() {
				for range 20 {
					err := c.Mutex(b.name).Do(context.Background(), func(ctx context.Context) error {
						inside++
						if inside != 1 {
							t.Error("overlap")
						}
						n++
						inside--
						return c.Mutex(b.name).Do(ctx, func(context.Context) error { return nil })
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	require.Equal(t, 2000, n)
	t.Log(time.Since(start))
}
