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

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

const (
	workerCommand = "demo-worker"       // starts this program as one of the demo's processes
	workerEnv     = "RLOCK_DEMO_WORKER" // has its configuration

	clerksPerWorker = 2 // sell tea in each process, and one cashier makes deposits
)

// workerConfig tells a process who it is.
type workerConfig struct {
	Addr     string
	Embedded bool
	Prefix   string // of all keys: the locks and counters of one demo are not those of another
	Letter   string
	Cheats   bool // leaves out the lock
}

func (c workerConfig) key(kind, what string) string { return c.Prefix + ":" + kind + ":" + what }

func (c workerConfig) connect() (rueidis.Client, error) {
	o, err := options(c.Addr)
	if err != nil {
		return nil, err
	}
	o.ForceSingleClient = c.Embedded // that server answers as a cluster would, but is none
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

// work sells until in ends, and finishes what it began. A line in it makes one clerk hang in the middle of a sale. What is done goes to out.
func work(config workerConfig, in io.Reader, out io.Writer) error {
	rdb, err := config.connect()
	if err != nil {
		return err
	}
	defer rdb.Close()
	locks, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: demoWatchdog})
	if err != nil {
		return err
	}
	defer locks.Close()

	lines := log.New(out, "", 0) // each is one write, so that nothing is in a buffer when the process is killed
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
	for number := range clerksPerWorker { // these end at closing time, or with the process: the first error waits for nobody
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

// repeat does a job until closing time, with pauses.
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
