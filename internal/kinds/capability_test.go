package kinds

import (
	"math"
	"strconv"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// Marks can be read back from the owners of every kind, with exactly the values written.
func TestMarks(t *testing.T) {
	const id = "9b1f0c1e-6a57-4c0e-8f7d-2f0d8c3b5a41"
	for _, k := range []*Kind{Mutex, Fenced, Fair, Read, Write, FencedWrite} {
		for n := range 8 {
			var m Capability
			for i, what := range []Capability{WantsAsked, Lingers, Labelled} {
				if n&(1<<i) != 0 {
					m = m.With(what)
				}
			}
			if n == 0 {
				continue
			}
			for _, short := range []bool{false, true} {
				field := k.Owner(id, m.Marked(7), short)
				got, client, tag := CapabilityOf(field)
				require.Equal(t, m, got, field)
				require.Equal(t, id, client)
				require.Equal(t, m.Marked(7), tag)
				require.Equal(t, uint64(7), Unmarked(tag))
				require.Equal(t, n&1 != 0, got.Wants(WantsAsked))
				require.Equal(t, n&2 != 0, got.Wants(Lingers))
				require.Equal(t, n&4 != 0, got.Wants(Labelled))
				require.False(t, IsPlaceholder(field))
			}
		}
		got, _, _ := CapabilityOf(k.Owner(id, 7, false))
		require.Zero(t, got)
		require.False(t, got.Wants(Labelled))
	}
}

// Thread ids of Redisson are not mistaken for marks.
func TestNoMarks(t *testing.T) {
	const id = "9b1f0c1e-6a57-4c0e-8f7d-2f0d8c3b5a41"
	for _, field := range []string{
		"", id, id + ":", id + ":1", id + ":00", id + ":" + strconv.FormatInt(math.MaxInt64, 10), id + ":" + strconv.FormatInt(math.MinInt64, 10),
		id + ":18446744073709551615", id + ":99999999999999999999", id + ":1000000000000000000x", "x:11000000000000000001", id + "x11000000000000000001",
	} {
		m, _, _ := CapabilityOf(field)
		require.Zero(t, m, field)
	}
	require.Zero(t, CapabilityOfTag(7))
	require.Equal(t, Lingers, Capability(0).With(Lingers))
	require.Equal(t, WantsAsked.With(Lingers), Lingers.With(WantsAsked))
	require.Equal(t, WantsAsked, CapabilityOfTag(WantsAsked.Marked(7)))
	require.Equal(t, uint64(7), Capability(0).Marked(7))
}
