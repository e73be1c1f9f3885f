package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// workerCommand starts this program as one of the demo's processes.
const workerCommand = "demo-worker"

// clerksPerWorker clerks sell tea in each process, and one cashier makes deposits.
const clerksPerWorker = 2

// worker is the main function of a process of the demo.
func (p *program) worker() int {
	// Ctrl-C reaches all processes of a terminal; the demo ends its workers itself.
	signal.Ignore(os.Interrupt)
	if err := work(p.in, p.out); err != nil {
		return p.fail(exitFailed, err)
	}
	return 0
}

// work does what in says and reports to out.
func work(in io.Reader, out io.Writer) error {
	words := bufio.NewScanner(in)
	var config workerConfig
	if !words.Scan() {
		return fmt.Errorf("no configuration: %w", errors.Join(words.Err(), io.ErrUnexpectedEOF))
	}
	if err := json.Unmarshal(words.Bytes(), &config); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	rdb, err := config.connect()
	if err != nil {
		return err
	}
	defer rdb.Close()
	locks, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: config.Watchdog})
	if err != nil {
		return err
	}
	defer locks.Close()

	crash := make(chan struct{}, 1)
	s := &shop{workerConfig: config, rdb: rdb, locks: locks, report: reporter(out), crash: crash}
	s.report(event{Kind: ready})

	ctx, fail := context.WithCancelCause(context.Background())
	stop := make(chan struct{})
	var clerks sync.WaitGroup
	done := make(chan struct{})
	go func() { // ends with in, and in ends with the demo
		for words.Scan() {
			switch words.Text() {
			case wordGo:
				s.open(ctx, &clerks, stop, fail)
				go func() { // ends with the clerks, who end on stop or with ctx
					clerks.Wait()
					close(done)
				}()
			case wordCrash:
				crash <- struct{}{}
			case wordStop:
				close(stop)
			}
		}
		fail(errors.New("the demo has gone"))
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// open starts the clerks. They work until stop is closed or ctx is done.
func (s *shop) open(ctx context.Context, clerks *sync.WaitGroup, stop <-chan struct{}, fail context.CancelCauseFunc) {
	start := func(number, minMillis, maxMillis int, job func(clerk, context.Context) error) {
		clerks.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-ctx.Done():
					return
				default:
				}
				if err := job(clerk{s, number}, ctx); err != nil {
					fail(err)
					return
				}
				pause(ctx, minMillis, maxMillis)
			}
		})
	}
	for number := range clerksPerWorker {
		start(number+1, 0, 8, clerk.ship)
	}
	start(clerksPerWorker+1, 20, 60, clerk.deposit)
}

// reporter writes events as lines of JSON, each with one write, so that nothing is lost in a buffer
// when the process is killed.
func reporter(out io.Writer) func(event) {
	var mu sync.Mutex // guards encoder
	encoder := json.NewEncoder(out)
	return func(e event) {
		mu.Lock()
		defer mu.Unlock()
		if e.At == 0 {
			e.At = time.Now().UnixNano()
		}
		_ = encoder.Encode(e) // without the demo at the other end, in has ended too
	}
}

func (c workerConfig) connect() (rueidis.Client, error) {
	o, err := options(c.Addr)
	if err != nil {
		return nil, err
	}
	// The embedded server answers as a cluster would, but is none.
	o.ForceSingleClient = c.Embedded
	return rueidis.NewClient(o)
}
