package lease

import (
	"testing"
	"time"
)

// A renewal in flight during a release may find the name already released. That is no loss, but the end of the trusted time still is.
func TestReleasingWhileInFlight(t *testing.T) {
	for _, verdict := range []Verdict{Renewed, Failed, Gone} {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			s.answer = after(2*time.Second, verdict)
			stopped, slow, until := newHold(1), newHold(2), time.Now().Add(watchdog)
			r.Keep(&stopped.Lease, keeper{stopped.item, nil, stopped.lost}, until, watchdog)
			r.Keep(&slow.Lease, keeper{slow.item, nil, slow.lost}, until, watchdog)
			sleep(due)
			s.taken()
			r.Releasing(&stopped.Lease)
			r.Releasing(&slow.Lease)
			sleep(3 * time.Second)
			r.Stop(&stopped.Lease)
			sleep(time.Hour)
			stopped.wantKept(t)
			slow.wantLost(t, until, expired)
			if calls := s.taken(); len(calls) > 0 {
				t.Errorf("%d calls after the first", len(calls))
			}
		})
	}
}
