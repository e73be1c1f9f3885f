package rlockgocron_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	rlockgocron "github.com/go-rlock/rlock/adapters/gocron"
	"github.com/go-rlock/rlock/rlock"
)

// Two schedulers stand for two processes. Each starts the report at the same time, and one of them runs it.
func ExampleLocker() {
	ran, skipped := make(chan string, 1), make(chan bool, 1)
	at := time.Now().Add(time.Second) // both are up by then

	process := func() (end func()) {
		client, err := rlock.Open(os.Getenv("REDIS_URL"), rlock.Options{Prefix: "gocron:"})
		if err != nil {
			panic(err)
		}
		locker := rlockgocron.NewLocker(client, time.Second) // ticks differ by less than a second
		scheduler, err := gocron.NewScheduler()
		if err != nil {
			panic(err)
		}
		_, err = locker.NewJob(
			scheduler, gocron.OneTimeJob(gocron.OneTimeJobStartDateTime(at)), // or a gocron.CronJob
			"report", func(ctx context.Context) error {
				ran <- "report"
				return ctx.Err() // until ctx is done
			},
			gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
				skipped <- rlock.IsBusy(err)
			})),
		)
		if err != nil {
			panic(err)
		}
		scheduler.Start()
		return func() {
			_ = scheduler.Shutdown()
			client.Close()
		}
	}
	defer process()()
	defer process()()
	fmt.Println("ran:", <-ran)
	fmt.Println("skipped:", <-skipped)
	// Output:
	// ran: report
	// skipped: true
}

// All jobs run in the process that leads.
func ExampleElector() {
	client, err := rlock.Open(os.Getenv("REDIS_URL"), rlock.Options{Prefix: "gocron:"})
	if err != nil {
		panic(err)
	}
	defer client.Close()

	elector := rlockgocron.NewElector(client.Mutex("scheduler"))
	ctx, resign := context.WithCancel(context.Background())
	led := make(chan error)
	go func() { led <- elector.Run(ctx) }()

	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		panic(err)
	}
	ran := make(chan bool, 100)
	_, err = scheduler.NewJob(gocron.DurationJob(10*time.Millisecond), elector.Task(func(context.Context) error {
		ran <- true
		return nil
	}))
	if err != nil {
		panic(err)
	}
	scheduler.Start()
	fmt.Println("ran:", <-ran)

	fmt.Println(scheduler.Shutdown()) // first: it waits for the jobs
	resign()
	fmt.Println("resigned:", errors.Is(<-led, context.Canceled))
	// Output:
	// ran: true
	// <nil>
	// resigned: true
}
