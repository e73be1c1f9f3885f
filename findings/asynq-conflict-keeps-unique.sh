#!/usr/bin/env bash
# asynq: an Enqueue that is refused for its TaskID keeps the uniqueness lock, and the next one is a duplicate of a task that never was
#
# Run:      asynq 0.26.0 (Go), Redis 8.2.3: a task with TaskID "nightly" is in the queue. Another one with that id, a payload of its own and
#           Unique for an hour is enqueued, and refused. Then one with that payload and Unique, and an id of its own.
# Guess:    ErrTaskIDConflict, and the last one is enqueued: nothing with its payload is in the queue.
# Seen:     the script takes the uniqueness lock first and looks for the id then, and gives nothing back. The last one is refused as a
#           duplicate, for an hour, in which no task has that payload.
# Matters:  a caller who reads ErrDuplicateTask as "it will be done" has lost the task. A script that takes two things has to look at both
#           before it writes: nothing undoes what a script did before it said no.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/hibiken/asynq@v0.26.0
cat >main.go <<'END'
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hibiken/asynq"
)

func main() {
	client := asynq.NewClient(asynq.RedisClientOpt{Addr: "127.0.0.1:" + os.Args[1]})
	enqueue := func(payload string, options ...asynq.Option) string {
		_, err := client.Enqueue(asynq.NewTask("report", []byte(payload)), options...)
		switch {
		case err == nil:
			return "enqueued"
		case errors.Is(err, asynq.ErrTaskIDConflict):
			return "ErrTaskIDConflict"
		case errors.Is(err, asynq.ErrDuplicateTask):
			return "ErrDuplicateTask"
		}
		return err.Error()
	}
	fmt.Println("nightly, of eu:", enqueue("eu", asynq.TaskID("nightly")))
	fmt.Println("nightly, of us:", enqueue("us", asynq.TaskID("nightly"), asynq.Unique(time.Hour)))
	fmt.Println("of us:", enqueue("us", asynq.Unique(time.Hour)))
	tasks, err := asynq.NewInspector(asynq.RedisClientOpt{Addr: "127.0.0.1:" + os.Args[1]}).ListPendingTasks("default")
	if err != nil {
		panic(err)
	}
	for _, task := range tasks {
		fmt.Println("in the queue:", string(task.Payload))
	}
}
END
expect go run . "$port" <<'END'
nightly, of eu: enqueued
nightly, of us: ErrTaskIDConflict
of us: ErrDuplicateTask
in the queue: eu
END
