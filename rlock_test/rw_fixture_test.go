package rlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// rwNothing checks that nothing is left of a read/write lock: no key of any kind, and no subscription.
func rwNothing(t testing.TB, rdb rueidis.Client, names ...string) {
	t.Helper()
	nodes := rdb.Nodes()
	for _, name := range names {
		redistest.Eventually(t, 10*time.Second, func() bool {
			for _, node := range nodes {
				for _, cmd := range [][]string{
					{"KEYS", "*" + name + "*"}, {"PUBSUB", "CHANNELS", "*" + name + "*"}, {"PUBSUB", "SHARDCHANNELS", "*" + name + "*"},
				} {
					left, err := node.Do(context.Background(), node.B().Arbitrary(cmd...).Build()).AsStrSlice()
					if err == nil && len(left) > 0 {
						return false
					}
				}
			}
			return true
		}, "nothing is left of "+name)
	}
}

// fieldsOf returns the hash of a read/write lock.
func (b fixture) fieldsOf(t testing.TB) map[string]string {
	t.Helper()
	m, err := b.do(t, "HGETALL", b.name).AsStrMap()
	require.NoError(t, err)
	return m
}

// rwExclusion fails the test unless it sees many readers or one writer. Callers say how many readers belong to the writer itself.
type rwExclusion struct {
	t                *testing.T
	readers, writers atomic.Int32
}

func (w *rwExclusion) read() (done func()) {
	w.readers.Add(1)
	assert.Zero(w.t, w.writers.Load(), "a reader beside a writer")
	return func() {
		assert.Zero(w.t, w.writers.Load(), "a writer got in beside a reader")
		w.readers.Add(-1)
	}
}

// write marks the start of a writer's section; own is the number of readers that belong to this writer.
func (w *rwExclusion) write(own int32) (done func()) {
	assert.Equal(w.t, int32(1), w.writers.Add(1), "two writers")
	assert.Equal(w.t, own, w.readers.Load(), "a writer beside readers")
	return func() {
		assert.Equal(w.t, own, w.readers.Load(), "a reader got in beside a writer")
		w.writers.Add(-1)
	}
}

// awaitWaiters waits until n goroutines of the test are queued and subscribed.
func (b fixture) awaitWaiters(t testing.TB, n int) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == n }, "they wait")
}
