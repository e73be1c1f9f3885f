package rlocktest

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// A holder learns of another process's wait or request on the in-memory server, too.
func TestAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here := New(t)
		there := here.Elsewhere()
		ctx, unlock, err := here.Mutex("job", rlock.WithAsked()).Lock(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		got := make(chan error, 1)
		go func() { got <- there.Mutex("job").Do(t.Context(), func(context.Context) error { return nil }) }()
		<-rlock.Asked(ctx)
		require.NoError(t, unlock())
		require.NoError(t, <-got)

		ctx, unlock, err = here.Mutex("job", rlock.WithAsked()).Lock(t.Context())
		require.NoError(t, err)
		heard, err := there.Ask(t.Context(), "job")
		require.NoError(t, err)
		require.True(t, heard)
		<-rlock.Asked(ctx)
		require.NoError(t, unlock())
	})
}
