package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

const (
	workerCommand = "demo-worker"       // starts this program as one of the demo's processes
	workerEnv     = "RLOCK_DEMO_WORKER" // has its configuration

	clerksPerWorker = 2 // sell tea in each process, beside one cashier who makes deposits
)

// workerConfig is one process's configuration.
type workerConfig struct {
	Addr     string
	Embedded bool
	Prefix   string // prefix of all keys, unique to this demo
	Letter   string
	Cheats   bool // skips the lock
	Watchdog time.Duration
}

func (c workerConfig) key(kind, what string) string { return c.Prefix + ":" + kind + ":" + what }

func (c workerConfig) connect() (rueidis.Client, error) {
	o, err := options(c.Addr)
	if err != nil {
		return nil, err
	}
	o.ForceSingleClient = c.Embedded // the embedded server speaks cluster commands, but is no cluster
	return rueidis.NewClient(o)
}

// worker is the main function of a process of the demo.
func (p *program) worker() int {
	signal.Ignore(os.Interrupt) // Ctrl-C reaches all processes of a terminal; the demo ends its workers itself
	var config workerConfig
	if err := json.Unmarshal([]byte(p.getenv(workerEnv)), &config); err != nil {
		return p.fail(exitFailed, fmt.Errorf("configuration: %w", err))
	}
	if err := work(config, p.in, p.out); err != nil {
		return p.fail(exitFailed, err)
	}
	return 0
}

// work sells until in ends, and finishes the current sale. A line on in makes one clerk hang in mid-sale. Reports go to out.
func work(config workerConfig, in io.Reader, out io.Writer) error {
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

	lines := log.New(out, "", 0) // one write each: a kill leaves nothing in a buffer
	s := &shop{workerConfig: config, rdb: rdb, locks: locks, crash: make(chan struct{}, 1), closing: make(chan struct{})}
	s.report = func(s *span) {
		if text, err := json.Marshal(s); err == nil {
			lines.Print(string(text))
		}
	}
	go func() { // ends with in, and in ends with the demo
		for words := bufio.NewScanner(in); words.Scan(); {
			s.crash <- struct{}{}
		}
		close(s.closing)
	}()
	done := make(chan error, clerksPerWorker+1)
	for number := range clerksPerWorker { // end at closing time or with the process: the first error does not wait for them
		c := &clerk{shop: s, number: number + 1}
		go func() { done <- s.repeat(c.ship, 0, 8) }()
	}
	cashier := &clerk{shop: s, number: clerksPerWorker + 1}
	go func() { done <- s.repeat(cashier.deposit, 20, 60) }()
	for range cap(done) {
		if err := <-done; err != nil {
			return err
		}
	}
	return nil
}

// repeat does a job with pauses until closing time.
func (s *shop) repeat(job func(context.Context) error, minMillis, maxMillis int) error {
	for {
		select {
		case <-s.closing:
			return nil
		default:
		}
		if err := job(context.Background()); err != nil {
			return err
		}
		pause(minMillis, maxMillis)
	}
}
