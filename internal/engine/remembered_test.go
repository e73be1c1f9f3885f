package engine

import (
	"strconv"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/require"
)

func TestTagRingKeepsTheLast(t *testing.T) {
	t.Parallel()
	var r tagRing
	require.False(t, r.take(1))
	for tag := uint64(1); tag <= rememberedTags; tag++ {
		r.add(tag)
		r.add(1) // takes no second place
	}
	require.True(t, r.has(1))
	r.add(rememberedTags + 1)
	require.False(t, r.has(1))
	require.True(t, r.has(2))
	require.True(t, r.take(2))
	require.False(t, r.has(2))
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
