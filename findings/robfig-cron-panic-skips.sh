#!/usr/bin/env bash
# robfig/cron: after one panic that Recover logs, SkipIfStillRunning skips the job for ever
#
# Run:      robfig/cron 3.0.1 (Go): a job for each second that panics in its first run alone, with Recover around SkipIfStillRunning, with
#           the two the other way round, and with Recover around DelayIfStillRunning.
# Guess:    Recover logs the panic, and the next second runs the job again. Which one of two wrappers is outside makes no difference, once
#           the run is over.
# Seen:     SkipIfStillRunning notes the end of a run after the job, not in a defer. What panics never ends, and each later run is skipped
#           as overlapping with it. With Recover inside, or with DelayIfStillRunning, which unlocks in a defer, the job goes on.
# Matters:  Recover for all jobs of a Cron and SkipIfStillRunning for the slow ones is this order. One panic, which was logged and forgotten,
#           ends the job until the process starts anew. A guard that outlives what it guards has to be given back in a defer.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_modules github.com/robfig/cron/v3@v3.0.1
cat >main.go <<'END'
package main

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/robfig/cron/v3"
)

// counter counts the panics and the skipped runs that are logged.
type counter struct{ panics, skips atomic.Int32 }

func (c *counter) Info(message string, _ ...any) {
	if message == "skip" {
		c.skips.Add(1)
	}
}

func (c *counter) Error(_ error, message string, _ ...any) {
	if strings.HasPrefix(message, "panic") {
		c.panics.Add(1)
	}
}

func main() {
	for _, how := range []string{"Recover(SkipIfStillRunning(job))", "SkipIfStillRunning(Recover(job))", "Recover(DelayIfStillRunning(job))"} {
		log := &counter{}
		wrappers := map[string]cron.JobWrapper{
			"Recover":             cron.Recover(log),
			"SkipIfStillRunning":  cron.SkipIfStillRunning(log),
			"DelayIfStillRunning": cron.DelayIfStillRunning(log),
		}
		names := strings.Split(how, "(")
		var runs atomic.Int32
		scheduler := cron.New(cron.WithLogger(cron.DiscardLogger), cron.WithChain(wrappers[names[0]], wrappers[names[1]]))
		if _, err := scheduler.AddFunc("@every 1s", func() {
			if runs.Add(1) == 1 {
				panic("a bad day")
			}
		}); err != nil {
			panic(err)
		}
		scheduler.Start()
		time.Sleep(6 * time.Second)
		<-scheduler.Stop().Done()
		fmt.Printf("%s: panics: %d, runs after it: %t, skipped: %t\n", how, log.panics.Load(), runs.Load() > 1, log.skips.Load() > 0)
	}
}
END
expect go run . <<'END'
Recover(SkipIfStillRunning(job)): panics: 1, runs after it: false, skipped: true
SkipIfStillRunning(Recover(job)): panics: 1, runs after it: true, skipped: false
Recover(DelayIfStillRunning(job)): panics: 1, runs after it: true, skipped: false
END
