// The program workers runs jobs with a limit on how many may run at once in all its processes together. Run several.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func main() {
	name := flag.String("name", strconv.Itoa(os.Getpid()), "of this process, in its output")
	workers := flag.Int("workers", 4, "how many goroutines want to run jobs")
	jobs := flag.Int("jobs", 20, "how many jobs this process has")
	limit := flag.Int64("limit", 3, "how many may run at once, in all processes; the first process sets it")
	job := flag.Duration("job", 200*time.Millisecond, "how long a job takes")
	lease := flag.Duration("lease", 3*time.Second, "how long a process that was killed keeps its permits")
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix(*name + ": ")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, *workers, *jobs, *limit, *job, *lease); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, workers, jobs int, limit int64, job, lease time.Duration) error {
	client, err := rlock.Open(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"), rlock.Options{WatchdogTimeout: lease})
	if err != nil {
		return err
	}
	defer client.Close()

	p := pool{client.PermitSemaphore("renders"), limit, job}
	if err := p.setLimit(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() { p.keepLimit(ctx, lease) }) // ends with stop
	defer keeper.Wait()
	defer stop()

	queue := make(chan int, jobs)
	for n := range jobs {
		queue <- n
	}
	close(queue)
	var wg sync.WaitGroup
	failed := make(chan error, workers)
	for range workers {
		wg.Go(func() { // ends when no job is left, or with ctx
			for n := range queue {
				if err := p.run(ctx, n); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return err
	}
	log.Print("is through")
	return nil
}

// pool runs jobs, as many at once as there are permits.
type pool struct {
	renders *rlock.PermitSemaphore
	limit   int64
	job     time.Duration
}

func (p pool) setLimit(ctx context.Context) error {
	set, err := p.renders.TrySetPermits(ctx, p.limit)
	if set {
		log.Print("lets ", p.limit, " run at once")
	}
	return err
}

// keepLimit sets the number of permits again if Redis has lost it. Otherwise there would be none, and all would wait for ever.
func (p pool) keepLimit(ctx context.Context, every time.Duration) {
	for pause(ctx, every) == nil {
		_ = p.setLimit(ctx) // fails while Redis is away
	}
}

// run runs a job, and again if Redis was away or its permit was lost. So a job must be able to start afresh.
func (p pool) run(ctx context.Context, n int) error {
	for {
		done := false
		err := p.renders.Do(ctx, func(ctx context.Context, permit *rlock.Permit) error {
			err := render(ctx, n, permit.Slot(), p.job)
			done = err == nil
			return err
		})
		switch {
		case done: // an error is about its permit, which comes back by itself
			return nil
		case ctx.Err() != nil || !errors.Is(err, rlock.ErrUnreachable) && !errors.Is(err, rlock.ErrLost):
			return err
		}
		log.Printf("repeats %d: %v", n, err)
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

// render is the job. Its slot, which could be a GPU's number, is unique among all processes. ctx ends if the permit is lost.
func render(ctx context.Context, n, slot int, takes time.Duration) error {
	log.Printf("begins %d in slot %d", n, slot)
	defer log.Printf("ends %d in slot %d", n, slot) // before the permit goes to another process
	return pause(ctx, takes)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
