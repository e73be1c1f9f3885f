package rlock

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// A chain of ended sections costs nothing: Lock drops sections in its ctx that have already ended. Sections open at the Lock stay
// reachable, even after they end.
func TestEndedSectionsAreLeftOut(t *testing.T) {
	rdb := redistest.Dial(t, redistest.Shared(t))
	c, err := New(rdb, Options{})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	var members []Locker
	for range 3 {
		member, err := New(redistest.Start(t).Client(t), Options{})
		require.NoError(t, err)
		t.Cleanup(member.Close)
		members = append(members, member.Mutex("a"))
	}
	name := redistest.Name(t)
	rw := c.RWMutex(name + ":rw")
	walk := func(ctx context.Context) (n int) {
		for s := tenure.SectionOf(ctx); s != nil; s = s.Around() {
			n++
		}
		return n
	}
	for kind, row := range map[string]struct {
		Locker
		most int // levels of one section
	}{
		"mutex": {c.Mutex(name), 1}, "fenced": {c.FencedMutex(name), 1}, "fair": {c.FairMutex(name), 1}, "read": {rw.Read(), 1},
		"write": {rw.Write(), 1}, "upgradeable": {rw.Upgradeable(), 2}, "all": {All(c.Mutex(name), c.Mutex(name+":2")), 2},
		"quorum": {Quorum(members...), 1},
	} {
		ctx := context.Background()
		for range 20 {
			section, unlock, err := row.Lock(context.WithoutCancel(ctx))
			require.NoError(t, err)
			inner, unlockInner, err := row.Lock(section)
			require.NoError(t, err)
			require.LessOrEqual(t, walk(inner), 2*row.most, kind)
			require.NoError(t, unlockInner())
			require.NoError(t, unlock())
			ctx = inner // already ended
		}
	}

	ctx := context.Background()
	for range 20 { // a Downgrade's ctx also carries all previous levels
		writer, _, err := rw.Write().Lock(ctx)
		require.NoError(t, err)
		reader, unlock, err := rw.Downgrade(writer)
		require.NoError(t, err)
		require.LessOrEqual(t, walk(reader), 2)
		require.NoError(t, unlock())
		ctx = context.WithoutCancel(reader)
	}

	fenced := c.FencedMutex(name)
	outer, unlock, err := fenced.Lock(context.Background())
	require.NoError(t, err)
	other, unlockOther, err := c.Mutex(name + ":2").Lock(outer)
	require.NoError(t, err)
	require.NoError(t, unlock())
	want, _ := fenced.FencingToken(outer)
	got, ok := fenced.FencingToken(other)
	require.True(t, ok)
	require.Equal(t, want, got)
	require.NoError(t, unlockOther())
	last, unlock, err := c.Mutex(name + ":2").Lock(context.WithoutCancel(other))
	require.NoError(t, err)
	_, ok = fenced.FencingToken(last)
	require.False(t, ok, "it began when that had ended")
	require.NoError(t, unlock())
}

// merged is a ctx with the values of two contexts, as some programs build.
type merged struct {
	context.Context

	other context.Context
}

func (m merged) Value(key any) any {
	if v := m.Context.Value(key); v != nil {
		return v
	}
	return m.other.Value(key)
}

// A detached ctx carries no holds, even when merged with another ctx.
func TestDetachedAndMerged(t *testing.T) {
	c, err := New(redistest.Start(t).Client(t), Options{})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	m := c.Mutex(redistest.Name(t))
	ctx, unlock, err := m.Lock(t.Context())
	require.NoError(t, err)
	n, err := m.HoldCount(merged{Detach(ctx), ctx})
	require.NoError(t, err)
	require.Equal(t, 0, n)
	require.NoError(t, unlock())
}

// Handles not made by a Client, and Clients not made by New, panic with a message that says so.
func TestHandlesThatNobodyMade(t *testing.T) {
	for name, f := range map[string]func(){
		"Name": func() { (&Mutex{}).Name() }, "Lock": func() { _, _, _ = (&Mutex{}).Lock(t.Context()) },
		"TTL": func() { _, _ = (&Mutex{}).TTL(t.Context()) }, "IsLocked": func() { _, _ = (*Mutex)(nil).IsLocked(t.Context()) },
		"ID": func() { (&Client{}).ID() }, "Stats": func() { (&Client{}).Stats() }, "Mutex": func() { (*Client)(nil).Mutex("a") },
		"Close": func() { (&Client{}).Close() }, "Shutdown": func() { _ = (*Client)(nil).Shutdown(t.Context()) },
	} {
		said := func() (v any) {
			defer func() { v = recover() }()
			f()
			return nil
		}()
		text, _ := said.(string)
		require.Contains(t, text, "rlock: a ", name)
	}
}
