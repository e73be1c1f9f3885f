package tenure_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// warnings records the owners in warnings.
type warnings struct {
	enginetest.Silent

	mu     sync.Mutex // guards owners
	owners map[string]bool
}

func (w *warnings) Warn(text string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.HasPrefix(text, "rlock: a field may be left in Redis") {
		w.owners[args[slices.Index(args, any("owner"))+1].(string)] = true
	}
}

// While Redis is silent, each abandoned field is logged, even if there are too many to try them all, or if Close abandons it.
func TestFieldsGivenUpAreTold(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	s.Stop()
	for name, until := range map[string]time.Time{"its time is over": {}, "Close": time.Now().Add(sweep.Most)} {
		log := &warnings{owners: make(map[string]bool)}
		c := enginetest.StartTelling(t, rdb, log)
		const n = 3 * sweep.Batch
		var all []*sweep.Orphan
		for i := range n {
			h := c.NewLock(fmt.Sprint(i), kinds.Mutex, fmt.Sprint(i), tenure.Terms{}).NewTenure()
			h.UnresolvedUntil(until).Late = true
			all = append(all, h.Orphan())
		}
		c.Sweep(all...)
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
