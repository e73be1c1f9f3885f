// The program cron starts a job at each tick of the clock. Run several: the job runs once per tick.
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
	"syscall"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func main() {
	name := flag.String("name", strconv.Itoa(os.Getpid()), "of this process, in its output")
	every := flag.Duration("every", 2*time.Second, "how long a tick is")
	ticks := flag.Int("ticks", 5, "after so many ticks the program ends")
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix(*name + ": ")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, *every, *ticks); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, every time.Duration, ticks int) error {
	client, err := rlock.Open(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"), rlock.Options{})
	if err != nil {
		return err
	}
	defer client.Close()

	tick := time.Now().Truncate(every)
	for range ticks {
		tick = tick.Add(every)
		select {
		case <-time.After(time.Until(tick)):
		case <-ctx.Done():
			return nil
		}
		at := tick.Format(time.TimeOnly)
		// Each tick has its own lock, which outlives the job: a process up to ten ticks late still finds it taken, however short the job was.
		once := client.Mutex("report:"+tick.UTC().Format(time.RFC3339Nano), rlock.WithMinHold(10*every))
		err := once.TryDo(ctx, 0, func(ctx context.Context) error {
			log.Print(at, " runs the job")
			return report(ctx)
		})
		switch {
		case err == nil:
		case errors.Is(err, rlock.ErrNotRun) && rlock.IsBusy(err): // the job's own locks may be busy, too
			log.Print(at, " skipped: another process runs it")
		default:
			log.Print(at, " failed: ", err) // a failure of Redis or of the job; nobody repeats this tick
		}
	}
	return nil
}

// report is the job.
func report(context.Context) error { return nil }
