package sim

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAsked tests holds that want to know whether somebody waits.
func TestAsked(t *testing.T) { worlds(t, Limits{Asked: true}) }

// TestAskedBugsAreFound makes servers give wrong answers to questions that only holds with an ear, and their waiters,
// ask. One of a few worlds must fail, since a hold does not learn that somebody waits.
func TestAskedBugsAreFound(t *testing.T) {
	for _, bug := range []struct {
		name string
		does func(cmd string, args []string) bool // whether to answer 0 instead of running the command
	}{
		{"messages to ears are lost", func(cmd string, args []string) bool {
			return cmd == "PUBLISH" && isEar(args[0])
		}},
		{"a look sees no queue", func(cmd string, _ []string) bool { return cmd == "ZCARD" }},
	} {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) {
				var r *Result
				synctest.Test(t, func(*testing.T) {
					p := NewPlan(seed, Limits{Processes: 5, Time: 40 * time.Second, Kinds: []Kind{Plain}, Calm: true, Asked: true})
					p.Watchdog, p.Hold, p.Think, p.Asked, p.Most = 30*time.Second, 3*time.Second, 10*time.Millisecond, 1, 500
					w := newWorld(p)
					w.wrong = bug.does
					r = w.play()
				})
				for _, v := range r.Violations {
					if strings.Contains(v.Text, "has not learnt") {
						t.Logf("world %d: %v", seed+1, v)
						return
					}
				}
				if len(r.Violations) > 0 {
					t.Log(fmt.Sprint("another one: ", r.Violations[0]))
				}
			}
			t.Error("not found")
		})
	}
}
