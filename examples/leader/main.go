// The program leader leads unless another of its processes does. Run several, and end the leader.
package main

import (
	"cmp"
	"context"
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
	every := flag.Duration("every", time.Second, "how often the leader works")
	lease := flag.Duration("lease", 3*time.Second, "how long a leader that was killed stays the leader")
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix(*name + ": ")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, *every, *lease); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, every, lease time.Duration) error {
	client, err := rlock.Open(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"), rlock.Options{WatchdogTimeout: lease})
	if err != nil {
		return err
	}
	defer client.Close()

	log.Print("waits")
	return rlock.Lead(ctx, client.Mutex("leader"), func(ctx context.Context) error {
		log.Print("leads")
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				log.Print("works")
			case <-ctx.Done():
				log.Print("leads no more: ", context.Cause(ctx))
				return nil
			}
		}
	})
}
