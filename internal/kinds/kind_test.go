package kinds

import (
	"testing"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// An owner field is Redisson's owner field plus a part that identifies this library.
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

// Exactly the kinds with a place per waiter have a time per waiter.
func TestTimeouts(t *testing.T) {
	for _, k := range []*Kind{Mutex, Fenced, Fair, Read, Write, FencedWrite} {
		require.Equal(t, k.Queueing == PerWaiter, k.Timeouts != nil, k.Name)
	}
}

// For every kind, the owner field identifies a ticket.
func TestOfTicket(t *testing.T) {
	for _, k := range []*Kind{Mutex, Fenced, Write, FencedWrite} {
		got := k.OfTicket("id", "42")
		require.Equal(t, "id:00042"+k.suffix, got)
		require.True(t, IsTicket(got))
		require.True(t, IsOf("id", got))
		require.False(t, IsPlaceholder(got))
	}
}
