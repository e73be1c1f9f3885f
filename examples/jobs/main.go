// The program jobs accepts orders over HTTP in one process and ships them in another: the order's lock travels with the job. Run it as
// "jobs -listen ADDR" and as "jobs -work".
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
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

func main() {
	name := flag.String("name", strconv.Itoa(os.Getpid()), "of this process, in its output, and of the worker in the queue")
	listen := flag.String("listen", "", "accept orders at that address")
	work := flag.Bool("work", false, "ship orders")
	ticket := flag.Duration("ticket", 10*time.Minute, "for how long an order stays locked in the queue")
	job := flag.Duration("job", 200*time.Millisecond, "how long it takes to ship an order")
	idle := flag.Duration("idle", 5*time.Second, "when a job of another worker is taken over: later than it would be shipped")
	lease := flag.Duration("lease", 3*time.Second, "how long a process that was killed keeps its locks")
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix(*name + ": ")
	if (*listen == "") != *work {
		log.Fatal("give it either -listen ADDR or -work")
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := with(ctx, *lease, func(s *shop) error {
		if *work {
			return s.work(ctx, *name, *job, *idle)
		}
		return s.serve(ctx, *listen, *ticket)
	})
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// shop is shared by both kinds of processes.
type shop struct {
	rdb   rueidis.Client
	locks *rlock.Client
}

func with(ctx context.Context, lease time.Duration, run func(*shop) error) error {
	rdb, err := connect()
	if err != nil {
		return err
	}
	defer rdb.Close()
	locks, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: lease})
	if err != nil {
		return err
	}
	defer locks.Close()
	s := &shop{rdb, locks}
	if err := s.makeQueue(ctx); err != nil {
		return err
	}
	return run(s)
}

// lock returns an order's lock.
func (s *shop) lock(order string) *rlock.Mutex { return s.locks.Mutex("order:" + order) }

// state returns an order's state, "" before it was accepted.
func (s *shop) state(ctx context.Context, order string) (string, error) {
	state, err := s.rdb.Do(ctx, s.rdb.B().Hget().Key("orders").Field(order).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	return state, err
}

func (s *shop) setState(ctx context.Context, order, state string) error {
	return s.rdb.Do(ctx, s.rdb.B().Hset().Key("orders").FieldValue().FieldValue(order, state).Build()).Error()
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
