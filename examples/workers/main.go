// The program workers runs jobs with a limit on how many may run at once in all its processes together. Run several.
package main

import (
	"cmp"
	"context"
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

	renders := client.PermitSemaphore("renders")
	set, err := renders.TrySetPermits(ctx, limit)
	if err != nil {
		return err
	}
	if set {
		log.Print("lets ", limit, " run at once")
	}

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
				err := renders.Do(ctx, func(ctx context.Context, p *rlock.Permit) error { return render(ctx, n, p.Slot(), job) })
				if err != nil {
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

// render is the job. Its slot, which could be a GPU's number, is unique among all processes. ctx ends if the permit is lost.
func render(ctx context.Context, n, slot int, takes time.Duration) error {
	log.Printf("begins %d in slot %d", n, slot)
	defer log.Printf("ends %d in slot %d", n, slot) // before the permit goes to another process
	select {
	case <-time.After(takes):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
