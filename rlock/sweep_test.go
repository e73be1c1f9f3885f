package rlock

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/sweep"
)

// warnings is a log that notes the owners of the fields that it is told of.
type warnings struct {
	slog.Handler

	mu     sync.Mutex // guards the following
	owners map[string]bool
}

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "owner" && strings.HasPrefix(r.Message, "rlock: a field may be left in Redis") {
			w.owners[a.Value.String()] = true
		}
		return true
	})
	return nil
}

// Each field that is given up while Redis does not answer is told of, also if there were so many that its turn never came; so is one
// that Close gives up.
func TestFieldsGivenUpAreTold(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	s.Stop()
	for name, until := range map[string]time.Time{"its time is over": {}, "Close": time.Now().Add(sweep.Most)} {
		log := &warnings{Handler: slog.NewTextHandler(io.Discard, nil), owners: make(map[string]bool)}
		c, err := New(rdb, Options{Logger: slog.New(log)})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		const n = 3 * sweep.Batch
		var all []*sweep.Orphan
		for i := range n {
			h := newTenure(c.Mutex(fmt.Sprint(i)).spec)
			h.unresolvedUntil(until).Late = true
			all = append(all, h.orphan())
		}
		c.sweep(all...)
		if !until.IsZero() {
			c.Close()
		}
		redistest.Eventually(t, time.Minute, func() bool {
			log.mu.Lock()
			defer log.mu.Unlock()
			return len(log.owners) == n
		}, name)
	}
}
