package engine

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/sweep"
)

// warnings records the owners of the fields in warnings.
type warnings struct {
	silent

	mu     sync.Mutex // guards the following
	owners map[string]bool
}

func (w *warnings) Warn(text string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.HasPrefix(text, "rlock: a field may be left in Redis") {
		w.owners[args[slices.Index(args, any("owner"))+1].(string)] = true
	}
}

// Each field abandoned while Redis does not answer is logged, even if there were too many to try it. So is a field that Close abandons.
func TestFieldsGivenUpAreTold(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	s.Stop()
	for name, until := range map[string]time.Time{"its time is over": {}, "Close": time.Now().Add(sweep.Most)} {
		log := &warnings{owners: make(map[string]bool)}
		c := startEngine(t, rdb, log)
		const n = 3 * sweep.Batch
		var all []*sweep.Orphan
		for i := range n {
			h := newTenure(c.NewSpec(fmt.Sprint(i), kinds.Mutex, fmt.Sprint(i)))
			h.UnresolvedUntil(until).Late = true
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
