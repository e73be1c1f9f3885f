package kinds

import (
	"testing"

	"github.com/go-rlock/rlock/internal/require"
)

// Owner fields are as Redisson writes them, but for what tells this library's apart.
func TestOwner(t *testing.T) {
	for _, row := range []struct {
		kind  *Kind
		short bool
		want  string
	}{
		{Mutex, false, "id:7"},
		{Mutex, true, "id:7"},
		{Fenced, false, "id:7"},
		{Fair, false, "id:07"},
		{Fair, true, "id:007"},
		{Read, false, "id:7"},
		{Write, false, "id:7:write"},
		{FencedWrite, false, "id:7:write"},
	} {
		got := row.kind.Owner("id", 7, row.short)
		require.Equal(t, row.want, got, row.kind.Name)
		require.True(t, IsOf("id", got))
		require.False(t, IsOf("i", got))
		require.False(t, IsPlaceholder(got))
		require.False(t, IsTicket(got))
	}
	require.True(t, IsPlaceholder(Mutex.Placeholder("id")))
	require.False(t, IsTicket(Mutex.Placeholder("id")))
	require.False(t, IsOf("id", "id"))
}

// Each waiter has a time where each has a place, and nowhere else.
func TestTimeouts(t *testing.T) {
	for _, k := range []*Kind{Mutex, Fenced, Fair, Read, Write, FencedWrite} {
		require.Equal(t, k.Queueing == PerWaiter, k.Timeouts != nil, k.Name)
	}
}

// A ticket is known by its owner field, of whichever kind.
func TestOfTicket(t *testing.T) {
	for _, k := range []*Kind{Mutex, Fenced, Write, FencedWrite} {
		got := k.OfTicket("id", "42")
		require.Equal(t, "id:00042"+k.suffix, got)
		require.True(t, IsTicket(got))
		require.True(t, IsOf("id", got))
		require.False(t, IsPlaceholder(got))
	}
}
