package faults

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// meter counts the completed script calls of a lock client by script and outcome. It skips calls answered
// with NOSCRIPT, since rueidis repeats them with the script's text.
type meter struct {
	rueidis.Client
	acquires, handOffs atomic.Int64

	renewals atomic.Int64 // calls, for any number of holds
	renewed  atomic.Int64 // holds in them
	failed   atomic.Int64 // holds in the failed calls

	onGranted func(name string, sent time.Time) // may be nil; called for each acquired or renewed hold
}

func (m *meter) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	c, ok := parseHistScript(cmd.Commands())
	if !ok {
		return m.Client.Do(ctx, cmd)
	}
	sent := time.Now()
	result := m.Client.Do(ctx, cmd)
	err := result.Error()
	if said, is := rueidis.IsRedisErr(err); is && said.IsNoScript() {
		return result
	}
	switch c.what {
	case "acquire":
		m.acquires.Add(1)
	case "hand-off":
		m.handOffs.Add(1)
	case "release":
		return result
	case "renew":
		m.renewals.Add(1)
		m.renewed.Add(int64(len(c.keys)))
		if err != nil {
			m.failed.Add(int64(len(c.keys)))
		}
	}
	if m.onGranted != nil && err == nil {
		for i, k := range c.keys {
			if c.granted(i, result) {
				m.onGranted(k.Name, sent)
			}
		}
	}
	return result
}

// memory is the process's memory in use after a garbage collection.
type memory struct{ heap, stacks uint64 }

func measure() memory {
	runtime.GC()
	runtime.GC() // the second frees objects with finalizers or weak pointers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{m.HeapAlloc, m.StackInuse}
}

// per is the growth since before, divided by n; negative figures are noise.
func (m memory) per(before memory, n int) (heap, stacks int64) {
	return (int64(m.heap) - int64(before.heap)) / int64(n), (int64(m.stacks) - int64(before.stacks)) / int64(n)
}

// cpu is the CPU time used by this process.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// requireEmpty waits until the test's own server has no keys and no channels.
func requireEmpty(t testing.TB, rdb rueidis.Client, within time.Duration) {
	t.Helper()
	redistest.Eventually(t, within, func() bool {
		keys, err := do(t, rdb, "DBSIZE").AsInt64()
		channels, err2 := do(t, rdb, "PUBSUB", "CHANNELS").AsStrSlice()
		return err == nil && err2 == nil && keys == 0 && len(channels) == 0
	}, "no key or channel may be left")
}

// loadParallel calls f with 0 to n-1 on 64 goroutines.
func loadParallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}
