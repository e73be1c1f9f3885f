// The program orders charges and ships orders over HTTP. Run any number of processes: each order is charged once.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// lastAnswers is how long requests that were cut off have for their answer.
const lastAnswers = 5 * time.Second

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "where the API is served")
	payment := flag.Duration("payment", 200*time.Millisecond, "how long a payment takes")
	wait := flag.Duration("wait", time.Second, "how long a request waits for an order that is busy")
	grace := flag.Duration("grace", 20*time.Second, "how long requests may go on after SIGTERM")
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix("orders: ")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, *listen, *payment, *wait, *grace); err != nil {
		log.Fatal(err)
	}
	log.Print("ended in order")
}

func run(ctx context.Context, listen string, payment, wait, grace time.Duration) error {
	rdb, err := connect()
	if err != nil {
		return err
	}
	defer rdb.Close() // closed after the locks, which need it
	locks, err := rlock.New(rdb, rlock.Options{})
	if err != nil {
		return err
	}
	defer locks.Close()

	orders := &repository{rdb: rdb, locks: locks, wait: wait}
	api := &api{&service{orders: orders, payment: payment}}
	server := &http.Server{Handler: api.routes(), ReadHeaderTimeout: 5 * time.Second}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }() // ended by server.Shutdown
	log.Printf("http://%s", listener.Addr())

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	log.Print("ends: no new requests, those under way go on")
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err = server.Shutdown(ctx) // returns once all requests have ended, or ctx has
	if locks.Shutdown(ctx) != nil {
		log.Print("orders were cut off") // the sections were cancelled, and had a second to unlock
		answered, cancel := context.WithTimeout(context.Background(), lastAnswers)
		defer cancel()
		_ = server.Shutdown(answered) // their clients are told to try again
	}
	return err
}

func connect() (rueidis.Client, error) {
	options, err := rueidis.ParseURL(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"))
	if err != nil {
		return nil, errors.New("REDIS_URL is not a Redis URL such as redis://user:password@127.0.0.1:6379")
	}
	options.Dialer.Timeout, options.ConnWriteTimeout = 2*time.Second, 3*time.Second // detects a hanging Redis sooner
	rdb, err := rueidis.NewClient(options)
	if err != nil {
		return nil, fmt.Errorf("no Redis at %s: start redis-server, or set REDIS_URL: %w", strings.Join(options.InitAddress, ","), err)
	}
	return rdb, nil
}
