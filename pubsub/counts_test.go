package pubsub

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/require"
)

// For permits, a number wakes every process; with a leading zero, only processes without a place. A process that gets such a message looks
// at once, without courtesy.
func TestMessagesAboutPermits(t *testing.T) {
	type row struct {
		placed   bool
		personal bool
		message  string
		wakes    bool
	}
	bubbles(t, map[string]row{
		"a number":                             {true, false, "3", true},
		"one":                                  {true, false, "1", true},
		"a number for others":                  {true, false, "03", false},
		"a number for others, without a place": {false, false, "03", true},
		"a number, without a place":            {false, false, "3", true},
		"look":                                 {true, true, "? 0", true},
	}, func(t *testing.T, row row) {
		d := newManualHub(t)
		d.hub.Aside = time.Hour // no courtesy in this test
		q := Queue{Channel: d.ch, Places: true, Counts: true}
		w := &Waiter{Shared: true, Joint: true}
		require.True(t, d.hub.Join(w, q))
		w.Held(time.Hour, false)
		require.Equal(t, subscribing, d.take())
		d.confirm("subscribe")
		<-w.Turn()
		if row.placed {
			require.True(t, w.TakePlace(me))
		}
		w.Held(time.Hour, row.placed)
		synctest.Wait()
		require.Equal(t, !row.placed, d.take() == unsubscribing, "it begins anew only to be counted as out of line")
		require.Empty(t, w.Turn())
		ch := d.ch
		if row.personal {
			ch.Name += d.hub.grants
		}
		d.hub.message(ch, row.message)
		require.Equal(t, row.wakes, len(w.Turn()) == 1)
		w.Leave()
	})
}
