#!/usr/bin/env bash
# asynq: a unique task in a group keeps its uniqueness lock after it is done, and later ones are refused as its duplicates
#
# Run:      asynq 0.26.0 (Go), Redis 8.2.3: a task that is Unique for an hour, alone and in a Group that is aggregated after a second. Each is
#           enqueued, once more while it is in the queue, and once more when its handler has returned and nothing is left in the queue.
# Guess:    enqueued, refused, enqueued: the lock ends with the task, and the hour is for a task that never comes to its end.
# Seen:     alone it is so. In a group the lock stays: what is processed is a new task without it, and the members are deleted without a
#           look at their locks. For the rest of the hour each Enqueue is ErrDuplicateTask, of a task that is done.
# Matters:  "notify the user, at most once in the queue" tells him once an hour, in that combination alone, and the refusal says that a
#           task will do it. Every way out of a queue has to give back what the way in took.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/hibiken/asynq@v0.26.0
cat >main.go <<'END'
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hibiken/asynq"
)

func main() {
	redis := asynq.RedisClientOpt{Addr: "127.0.0.1:" + os.Args[1]}
	client, inspector := asynq.NewClient(redis), asynq.NewInspector(redis)
	done := make(chan string, 10)
	server := asynq.NewServer(redis, asynq.Config{
		LogLevel:         asynq.FatalLevel,
		GroupGracePeriod: time.Second,
		GroupAggregator: asynq.GroupAggregatorFunc(func(_ string, tasks []*asynq.Task) *asynq.Task {
			return asynq.NewTask("report", tasks[0].Payload())
		}),
	})
	handler := asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		done <- string(task.Payload())
		return nil
	})
	for _, how := range []string{"alone", "in a group"} {
		enqueue := func() {
			options := []asynq.Option{asynq.Unique(time.Hour), asynq.ProcessIn(2 * time.Second)}
			if how == "in a group" {
				options = []asynq.Option{asynq.Unique(time.Hour), asynq.Group("reports")}
			}
			_, err := client.Enqueue(asynq.NewTask("report", []byte(how)), options...)
			switch {
			case err == nil:
				fmt.Println(how + ": enqueued")
			case errors.Is(err, asynq.ErrDuplicateTask):
				fmt.Println(how + ": ErrDuplicateTask")
			default:
				panic(err)
			}
		}
		enqueue()
		enqueue()
		if how == "alone" {
			if err := server.Start(handler); err != nil {
				panic(err)
			}
		}
		fmt.Println(<-done + ": done")
		for {
			queue, err := inspector.GetQueueInfo("default")
			if err != nil {
				panic(err)
			}
			if queue.Size == 0 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		enqueue()
		if how == "alone" {
			fmt.Println(<-done + ": done")
		}
	}
	server.Shutdown()
}
END
expect go run . "$port" <<'END'
alone: enqueued
alone: ErrDuplicateTask
alone: done
alone: enqueued
alone: done
in a group: enqueued
in a group: ErrDuplicateTask
in a group: done
in a group: ErrDuplicateTask
END
