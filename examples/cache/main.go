// The program cache has many callers that want a missing value. Run several at the same time: one caller among all processes builds it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

func main() {
	name := flag.String("name", strconv.Itoa(os.Getpid()), "of this process, in its output")
	callers := flag.Int("callers", 50, "how many want the value at once")
	build := flag.Duration("build", time.Second, "how long it takes to build the value")
	ttl := flag.Duration("ttl", 10*time.Second, "how long the value lasts")
	lease := flag.Duration("lease", 5*time.Second, "how long the others wait for one that was killed while it built the value")
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix(*name + ": ")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, *callers, *build, *ttl, *lease); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, callers int, build, ttl, lease time.Duration) error {
	rdb, err := connect()
	if err != nil {
		return err
	}
	defer rdb.Close()
	client, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: lease})
	if err != nil {
		return err
	}
	defer client.Close()

	c := &cache{
		rdb: rdb, key: "cache:report", ttl: ttl, lock: client.RWMutex("cache:report:lock"),
		build: func(ctx context.Context) (string, error) {
			log.Print("builds it")
			select {
			case <-time.After(build):
				return time.Now().Format(time.RFC3339Nano), nil // the value is the time at which it was built
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		},
	}
	var report report
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			asked := time.Now()
			value, err := c.get(ctx)
			report.add(asked, value, err)
		})
	}
	wg.Wait()
	log.Print(report.text())
	return report.err
}

// report counts the callers' outcomes.
type report struct {
	mu            sync.Mutex // guards the following
	waited, found int
	last          time.Duration // after the value was built
	err           error
}

func (r *report) add(asked time.Time, value string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	built, parseErr := time.Parse(time.RFC3339Nano, value)
	switch {
	case err != nil || parseErr != nil:
		r.err = cmp.Or(err, parseErr)
	case asked.Before(built):
		r.waited++
		r.last = max(r.last, time.Since(built))
	default:
		r.found++
	}
}

func (r *report) text() string {
	text := fmt.Sprintf("%d found it, %d had it when it was built", r.found, r.waited)
	if r.waited > 0 {
		text += fmt.Sprintf(", the last one %d ms later", r.last.Milliseconds())
	}
	return text
}

func connect() (rueidis.Client, error) {
	options, err := rueidis.ParseURL(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"))
	if err != nil {
		return nil, errors.New("REDIS_URL is not a Redis URL such as redis://user:password@127.0.0.1:6379")
	}
	rdb, err := rueidis.NewClient(options)
	if err != nil {
		return nil, fmt.Errorf("no Redis at %s: start redis-server, or set REDIS_URL: %w", strings.Join(options.InitAddress, ","), err)
	}
	return rdb, nil
}
