package sim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWorlds(t *testing.T) { worlds(t, Limits{}) }

// TestCounters tests semaphores and latches.
func TestCounters(t *testing.T) { worlds(t, Limits{Counters: true}) }

// TestPermits tests semaphores of both kinds, with all possible calls.
func TestPermits(t *testing.T) { worlds(t, Limits{Permits: true}) }

// TestLinger tests locks that are kept. Most sections need no command.
func TestLinger(t *testing.T) { worlds(t, Limits{Linger: true}) }

// TestCircles tests that deadlocks, and only deadlocks, are found.
func TestCircles(t *testing.T) { worlds(t, Limits{Circles: true}) }

// TestCrowds tests thousands of waiters of one process, also when it ends.
func TestCrowds(t *testing.T) { worlds(t, Limits{Crowd: true}) }

func worlds(t *testing.T, limits Limits) {
	t.Helper()
	first, worlds := uint64(number(t, "SIM_SEED", 1)), number(t, "SIM_WORLDS", 30)
	if limits.Crowd { // they take long
		worlds = max(1, worlds/3)
	}
	limits.Processes, limits.Calm = number(t, "SIM_PROCESSES", 0), os.Getenv("SIM_CALM") != ""
	if text := os.Getenv("SIM_TIME"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		limits.Time = d
	}
	for seed := first; seed < first+uint64(worlds); seed++ {
		plan := NewPlan(seed, limits)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			r := run(t, plan)
			t.Logf("%v: %d sections, %d of them kept, %d scripts, %d messages, %d deadlocks, longest wait %v, %v",
				plan, r.Sections, r.Kept, r.Scripts, r.Delivered, r.Deadlocks, r.Longest, time.Since(began).Round(time.Millisecond))
		})
	}
}

func number(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// run runs a world and reports its violations, with those of the smallest failing world.
func run(t *testing.T, plan *Plan) *Result {
	t.Helper()
	one := func(plan *Plan) (r *Result) {
		synctest.Test(t, func(*testing.T) { r = Run(plan) })
		return r
	}
	r := one(plan)
	if len(r.Violations) == 0 {
		return r
	}
	within := number(t, "SIM_REDUCE", 30)
	if within == 0 {
		t.Errorf("%v\n%s", plan, sentences(r))
		return r
	}
	again := 0
	for range 5 {
		if len(one(plan).Violations) > 0 {
			again++
		}
	}
	least := r
	if plan.Seed > 0 {
		least = Reduce(r, 2, time.Duration(within)*time.Second, one)
	}
	t.Errorf("%v\n%s\nThe same seed fails in %d of 5 more runs. The smallest world in which something fails:\n%v\n%s\n%v\n%s",
		plan, sentences(r), again, least.Plan, sentences(least), least.Plan.Faults, strings.Join(least.Conversation, "\n"))
	return r
}

func sentences(r *Result) string {
	var b strings.Builder
	for i, v := range r.Violations {
		if i == 10 {
			fmt.Fprintf(&b, "  and %d more\n", len(r.Violations)-i)
			break
		}
		fmt.Fprintf(&b, "  %v\n", v)
	}
	return b.String()
}
