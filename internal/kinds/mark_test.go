package kinds

import (
	"math"
	"strconv"
	"testing"

	"github.com/go-rlock/rlock/internal/require"
)

// A mark is read from the owner of each kind, and says nothing else than what was written.
func TestMarks(t *testing.T) {
	const id = "9b1f0c1e-6a57-4c0e-8f7d-2f0d8c3b5a41"
	for _, k := range []*Kind{Mutex, Fenced, Fair, Read, Write, FencedWrite} {
		for _, m := range []Mark{HasEar, WantsAsked, Lingers, WantsAsked.With(Lingers)} {
			for _, short := range []bool{false, true} {
				field := k.Owner(id, m.Marked(7), short)
				got, client, tag := MarkOf(field)
				require.Equal(t, m, got, field)
				require.Equal(t, id, client)
				require.Equal(t, m.Marked(7), tag)
				require.Equal(t, uint64(7), Unmarked(tag))
				require.True(t, got.Wants(HasEar))
				require.Equal(t, m == WantsAsked || m == WantsAsked.With(Lingers), got.Wants(WantsAsked))
				require.Equal(t, m != HasEar && m != WantsAsked, got.Wants(Lingers))
				require.False(t, IsPlaceholder(field))
			}
		}
		got, _, _ := MarkOf(k.Owner(id, 7, false))
		require.Zero(t, got)
		require.False(t, got.Wants(HasEar))
	}
}

// A thread id of Redisson or of an older version is not taken for a mark.
func TestNoMarks(t *testing.T) {
	const id = "9b1f0c1e-6a57-4c0e-8f7d-2f0d8c3b5a41"
	for _, field := range []string{
		"", id, id + ":", id + ":1", id + ":00", id + ":" + strconv.FormatInt(math.MaxInt64, 10), id + ":" + strconv.FormatInt(math.MinInt64, 10),
		id + ":18446744073709551615", id + ":99999999999999999999", id + ":1000000000000000000x", "x:11000000000000000001", id + "x11000000000000000001",
	} {
		m, _, _ := MarkOf(field)
		require.Zero(t, m, field)
	}
	require.Zero(t, MarkOfTag(7))
	require.Equal(t, Lingers, Mark(0).With(Lingers))
	require.Equal(t, WantsAsked.With(Lingers), Lingers.With(WantsAsked).With(HasEar))
	require.Equal(t, WantsAsked, MarkOfTag(WantsAsked.Marked(7)))
	require.Equal(t, uint64(7), Mark(0).Marked(7))
}
