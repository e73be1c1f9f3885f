package ear

import (
	"strconv"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

func TestRecentTagsKeepTheLast(t *testing.T) {
	t.Parallel()
	var r recentTags
	require.False(t, r.take(1))
	last := uint64(0)
	for range 5 * rememberedTags / 2 {
		last++
		r.add(last)
		r.add(last) // takes no second place
	}
	for i := range uint64(rememberedTags) {
		require.True(t, r.has(last-i))
	}
	require.False(t, r.has(1))
	require.LessOrEqual(t, len(r.latest)+len(r.before), 2*rememberedTags)
	for _, tag := range []uint64{last, last - rememberedTags + 1} {
		require.True(t, r.take(tag))
		require.False(t, r.has(tag))
	}
}

func TestRecentKeysExpire(t *testing.T) {
	t.Parallel()
	var r recentKeys
	now := time.Now()
	require.False(t, r.has("a", now))
	r.add("a", now, time.Second)
	require.True(t, r.has("a", now.Add(time.Second-1)))
	require.False(t, r.has("a", now.Add(time.Second)))
	r.remove("a")
	require.False(t, r.has("a", now))
}

func TestRecentKeysAreBounded(t *testing.T) {
	t.Parallel()
	var r recentKeys
	now := time.Now()
	for i := range rememberedKeys {
		r.add(strconv.Itoa(i), now, time.Duration(i)*time.Second)
	}
	later := now.Add(time.Second)
	r.add("x", later, time.Minute) // replaces two that are over
	require.Equal(t, rememberedKeys-1, len(r.until))
	require.True(t, r.has("2", later))
	r.add("y", later, time.Minute)
	r.add("z", later, time.Minute) // none is over
	require.Equal(t, 1, len(r.until))
	require.True(t, r.has("z", later))
}
