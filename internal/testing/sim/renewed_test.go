package sim

import (
	"testing"
	"testing/synctest"
	"time"
)

// G7: a renewal in flight at its owner's unlock does not count as a renewal after the unlock, even if it is sent again as text.
func TestRenewalsAfterTheUnlock(t *testing.T) {
	const far = 10 * time.Millisecond
	for name, row := range map[string]struct {
		after time.Duration
		again bool
		ghost bool
	}{
		"under way, behind another one": {3 * far, false, false},
		"sent after it":                 {3*far + 2*time.Millisecond, false, true},
		"answered, again":               {5 * far, true, false},
		"again after it":                {5*far + 2*time.Millisecond, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{began: time.Now(), far: far, unlocked: map[string]time.Time{"owner": time.Now()}}
				time.Sleep(row.after)
				w.renewed(&server{}, []string{"owner"}, row.again)
				if got := len(w.violations) > 0; got != row.ghost {
					t.Errorf("a violation: %v, want %v", got, row.ghost)
				}
			})
		})
	}
}
