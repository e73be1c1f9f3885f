package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/examples/internal/program"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Two processes move goods while one takes stock: nothing is lost, and each count sees all goods.
func TestHierarchy(t *testing.T) {
	t.Parallel()
	p := program.Build(t, redistest.Start(t).Addr())
	require.Zero(t, p.Start("-fill", "100").Wait())
	var all []*program.Process
	for _, name := range []string{"a", "b"} {
		all = append(all, p.Start("-name", name, "-moves", "500"))
	}
	all = append(all, p.Start("-name", "clerk", "-counts", "50"))
	for _, one := range all {
		require.Zero(t, one.Wait())
	}
	require.Zero(t, p.Start("-name", "last", "-counts", "1").Wait())
	said := p.Rest()
	require.Equal(t, "last: counts 500", said[len(said)-1])
	want := []string{"a: has moved goods 500 times", "b: has moved goods 500 times"}
	for range 50 {
		want = append(want, "clerk: counts 500")
	}
	slices.Sort(said)
	require.Equal(t, append(want, "last: counts 500"), said)
}

// A move needs only its two shelves, and the whole for reading: it is not blocked by moves at other shelves, but waits for a stocktaking.
func TestMoveBesideOthers(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client, err := rlock.New(s.Client(t), rlock.Options{})
	require.NoError(t, err)
	defer client.Close()
	w := warehouse{client: client, shelves: 3}
	p := program.Build(t, s.Addr())
	require.Zero(t, p.Start("-shelves", "3", "-fill", "100").Wait())
	require.NoError(t, rlock.All(w.whole().Read(), w.shelf(2)).Do(t.Context(), func(context.Context) error {
		require.Zero(t, p.Start("-name", "a", "-shelves", "2", "-moves", "1").Wait())
		require.Equal(t, "a: has moved goods 1 times", p.Line())
		return nil
	}))
	var mover *program.Process
	require.NoError(t, w.whole().Write().Do(t.Context(), func(ctx context.Context) error {
		mover = p.Start("-name", "b", "-shelves", "2", "-moves", "1")
		redistest.Eventually(t, time.Minute, func() bool {
			info, err := w.whole().Write().Info(ctx)
			return err == nil && info.Listening == 1
		}, "it waits")
		return nil
	}))
	require.Zero(t, mover.Wait())
	require.Equal(t, []string{"b: has moved goods 1 times"}, p.Rest())
}

func TestHierarchyWithoutRedis(t *testing.T) {
	t.Parallel()
	program.WithoutRedis(t)
}

// A mover that was killed, or that a restart of Redis has ended or not, keeps nobody out for good.
func TestHierarchyUnderFaults(t *testing.T) {
	t.Parallel()
	program.Faults(t, func(t *testing.T, f *program.Fault) {
		require.Zero(t, f.Start("-fill", "100").Wait())
		mover := f.Start("-name", "a", "-moves", "1000000")
		client, err := rlock.New(f.Server.Client(t), rlock.Options{})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		w := warehouse{client: client}
		redistest.Eventually(t, time.Minute, func() bool {
			locked, err := w.whole().Read().IsLocked(t.Context())
			require.NoError(t, err)
			return locked
		}, "it moves goods")
		f.Strike(mover)
		require.Zero(t, f.Start("-fill", "100").Wait())
		require.Zero(t, f.Start("-name", "clerk", "-counts", "1").Wait())
		f.Await("clerk: counts 500")
	})
}
