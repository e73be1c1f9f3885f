#!/usr/bin/env bash
# gocron: with an Elector, a Locker is accepted and never asked
#
# Run:      gocron 2.21.2 (Go): one job, a Locker that refuses every lock, given to the scheduler or to the job, without and with an Elector
#           for which this process is the leader.
# Guess:    the job needs both: to be in the leader, and to have its lock. Or NewScheduler and NewJob say that the two do not go together.
# Seen:     no error, and with an Elector the job runs without a call of either Locker.
# Matters:  a lock beside an election is there for the moment in which two processes believe that they lead, and for jobs that outlive a
#           leader. It has to be taken in the task itself.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_modules github.com/go-co-op/gocron/v2@v2.21.2
cat >main.go <<'END'
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"
)

type leader struct{}

func (leader) IsLeader(context.Context) error { return nil }

type refuses struct{ asked chan bool }

func (r refuses) Lock(context.Context, string) (gocron.Lock, error) {
	r.asked <- true
	return nil, errors.New("taken")
}

func main() {
	run := func(how string, elected, ofJob bool) {
		locker, ran := refuses{make(chan bool, 1)}, make(chan bool, 1)
		var options []gocron.SchedulerOption
		if elected {
			options = append(options, gocron.WithDistributedElector(leader{}))
		}
		var jobOptions []gocron.JobOption
		if ofJob {
			jobOptions = append(jobOptions, gocron.WithDistributedJobLocker(locker))
		} else {
			options = append(options, gocron.WithDistributedLocker(locker))
		}
		scheduler, err := gocron.NewScheduler(options...)
		if err != nil {
			panic(err)
		}
		once := gocron.OneTimeJob(gocron.OneTimeJobStartImmediately())
		if _, err := scheduler.NewJob(once, gocron.NewTask(func() { ran <- true }), jobOptions...); err != nil {
			panic(err)
		}
		scheduler.Start()
		select {
		case <-ran:
		case <-locker.asked:
			locker.asked <- true
		case <-time.After(10 * time.Second):
		}
		if err := scheduler.Shutdown(); err != nil {
			panic(err)
		}
		fmt.Printf("%s, elected: %t: Locker asked: %t\n", how, elected, len(locker.asked) > 0)
	}
	for _, elected := range []bool{false, true} {
		run("the scheduler's", elected, false)
		run("the job's", elected, true)
	}
}
END
expect go run . <<'END'
the scheduler's, elected: false: Locker asked: true
the job's, elected: false: Locker asked: true
the scheduler's, elected: true: Locker asked: false
the job's, elected: true: Locker asked: false
END
