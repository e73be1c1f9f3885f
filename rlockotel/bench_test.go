package rlockotel_test

import (
	"context"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// BenchmarkPair is Lock and unlock of a free lock: without a Trace, with an empty Trace, and measured.
func BenchmarkPair(b *testing.B) {
	for _, with := range []struct {
		name  string
		trace *rlock.Trace
	}{{"nil", nil}, {"empty", &rlock.Trace{}}, {"rlockotel", newTelemetry(b).trace}} {
		b.Run("trace="+with.name, func(b *testing.B) {
			c, err := rlock.New(redistest.Dial(b, redistest.Shared(b), func(o *rueidis.ClientOption) {
				o.PipelineMultiplex = -1 // one connection reduces the variance between runs
			}), rlock.Options{Trace: with.trace})
			require.NoError(b, err)
			defer c.Close()
			m := c.Mutex(name(b))
			b.ReportAllocs()
			for b.Loop() {
				_, unlock, err := m.Lock(context.Background())
				if err != nil {
					b.Fatal(err)
				}
				if err := unlock(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkTrace measures the functions for one section.
func BenchmarkTrace(b *testing.B) {
	t, ctx := newTelemetry(b).trace, context.Background()
	b.ReportAllocs()
	for b.Loop() {
		t.Acquired(ctx, rlock.AcquiredInfo{Name: "order:42", Kind: "mutex", Path: rlock.PathFree, Waited: 1000})
		t.Released(ctx, rlock.ReleasedInfo{Name: "order:42", Kind: "mutex", Path: rlock.PathFree, Held: 1000})
	}
}
