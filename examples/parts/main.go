// The program parts imports a batch in parts. Run one process with -parts, which waits for all parts, and any number without it, which
// import one part each.
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
	batch := flag.String("batch", "batch", "that is imported; each needs a name of its own")
	parts := flag.Int64("parts", 0, "begin a batch of so many parts, and wait for them; 0 imports one of them")
	part := flag.Duration("part", time.Second, "how long a part takes")
	wait := flag.Duration("wait", time.Minute, "how long to wait for the parts")
	lease := flag.Duration("lease", 3*time.Second, "how long after a batch was killed another process can go on with it")
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix(*name + ": ")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, *batch, *parts, *part, *wait, *lease); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, batch string, parts int64, part, wait, lease time.Duration) error {
	client, err := rlock.Open(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"), rlock.Options{WatchdogTimeout: lease})
	if err != nil {
		return err
	}
	defer client.Close()

	latch := client.CountDownLatch("parts:" + batch)
	if parts > 0 {
		lock := client.Mutex("batch:" + batch)
		return lock.Do(ctx, func(ctx context.Context) error { return finish(ctx, lock, latch, parts, wait) })
	}
	if err := load(ctx, part); err != nil {
		return err // not counted: the batch stays incomplete
	}
	log.Print("has imported its part")
	// The part is done, whatever happened to ctx. Do not repeat CountDown after an ErrUnreachable: it continues in the background until Close.
	return latch.CountDown(context.WithoutCancel(ctx))
}

// finish waits for all parts. A latch that Redis has lost is open, like a finished one. But Redis would have lost the lock as well.
func finish(ctx context.Context, lock *rlock.Mutex, latch *rlock.CountDownLatch, parts int64, wait time.Duration) error {
	set, err := latch.TrySetCount(ctx, parts) // before any part begins: a latch without a count is open
	if err != nil {
		return err
	}
	if !set {
		log.Print("finds the batch begun") // by a crashed process, for example
	}
	log.Print("waits for the parts")
	if err := latch.TryAwait(ctx, wait); err != nil {
		return err // the error has the missing count; the latch stays, so this process can be restarted
	}
	switch held, err := lock.IsHeld(ctx); {
	case err != nil:
		return err
	case !held:
		return errors.New("the lock was lost, and maybe the count: some parts may be missing")
	}
	log.Print("has all parts")
	return nil
}

// load imports a part.
func load(ctx context.Context, takes time.Duration) error {
	select {
	case <-time.After(takes):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
