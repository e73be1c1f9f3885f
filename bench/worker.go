package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"time"
)

// job is one worker process's task: one workload with one library, between the harness's signals.
type job struct {
	lib        *library
	workload   string
	addr       string
	name       string        // of the lock, or the prefix of the names
	clients    int           // each like a process
	goroutines int           // per client; also waiters, or holds
	holds      int           // held in addition
	section    time.Duration // minimum duration of a section
	duration   time.Duration
	lease      time.Duration // in workloads about it; 0 is the library's default
	witness    *witness
	// witnessPath is its file, for workers started by this one.
	witnessPath string
	index       int           // of the process in its cell
	rtt         time.Duration // added by the harness
	ctx         context.Context

	in, out    *bufio.ReadWriter
	cpuProfile string
	memProfile string
	profile    *os.File
}

// runWorker is the worker process. It connects and warms up, says "ready", waits for "go", measures, prints its report, and ends with its
// input.
func runWorker(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	rep, err := work(args, stdin, stdout, stderr)
	if err != nil {
		rep = report{Error: err.Error()}
	}
	line, jsonErr := json.Marshal(rep)
	if jsonErr != nil {
		fmt.Fprintln(stderr, jsonErr)
		return 1
	}
	fmt.Fprintf(stdout, "%s\n", line)
	if err != nil {
		return 1
	}
	// The connections stay open until the harness has counted.
	_, _ = io.Copy(io.Discard, stdin)
	return 0
}

func work(args []string, stdin io.Reader, stdout, stderr io.Writer) (report, error) {
	fs := flag.NewFlagSet("worker", flag.ContinueOnError)
	fs.SetOutput(stderr)
	j := &job{}
	lib := fs.String("lib", "", "the library")
	fs.StringVar(&j.workload, "workload", "", "what to do with it")
	fs.StringVar(&j.addr, "addr", "", "host:port of Redis")
	fs.StringVar(&j.name, "name", "", "the lock, or the start of the names of locks")
	fs.IntVar(&j.clients, "clients", 1, "instances of the library, each with as many goroutines")
	fs.IntVar(&j.goroutines, "goroutines", 1, "goroutines, waiters or holds")
	fs.IntVar(&j.holds, "holds", 0, "locks that the process holds beside")
	fs.DurationVar(&j.section, "section", 0, "what a section takes")
	fs.DurationVar(&j.duration, "duration", time.Second, "the window")
	fs.DurationVar(&j.lease, "lease", 0, "of the locks, where that is what is measured; the library's own if 0")
	fs.StringVar(&j.witnessPath, "witness", "", "the file that the workers share")
	fs.IntVar(&j.index, "worker", 0, "the number of this process")
	fs.DurationVar(&j.rtt, "rtt", 0, "what the harness adds to each round trip")
	fs.StringVar(&j.cpuProfile, "cpuprofile", "", "file for a CPU profile of the window")
	fs.StringVar(&j.memProfile, "memprofile", "", "file for a heap profile at its end")
	if err := fs.Parse(args); err != nil {
		return report{}, err
	}
	var err error
	if j.lib, err = findLibrary(*lib); err != nil {
		return report{}, err
	}
	if j.lib.open == nil {
		return report{}, fmt.Errorf("%s is not written in Go", *lib)
	}
	run, ok := runs[j.workload]
	if own, has := j.lib.runs[j.workload]; has {
		run, ok = own, true
	}
	if !ok {
		return report{}, fmt.Errorf("no workload is called %q", j.workload)
	}
	if j.witness, err = openWitness(j.witnessPath); err != nil {
		return report{}, err
	}
	defer j.witness.close()
	if j.memProfile != "" {
		runtime.MemProfileRate = 4096
	}
	j.in = bufio.NewReadWriter(bufio.NewReader(stdin), nil)
	j.out = bufio.NewReadWriter(nil, bufio.NewWriter(stdout))
	ctx, cancel := j.lib.ctx.context()
	defer cancel()
	j.ctx = ctx
	return run(j)
}

// begin reports "ready" to the harness, and waits for its signal. The window follows.
func (j *job) begin() error {
	runtime.GC() // collect the preparation's garbage
	fmt.Fprintln(j.out, "ready")
	if err := j.out.Flush(); err != nil {
		return err
	}
	if err := j.await("go"); err != nil {
		return err
	}
	if j.cpuProfile == "" {
		return nil
	}
	var err error
	if j.profile, err = os.Create(j.cpuProfile); err != nil {
		return err
	}
	return pprof.StartCPUProfile(j.profile)
}

// await waits for a signal of the harness.
func (j *job) await(signal string) error {
	line, err := j.in.ReadString('\n')
	if err == nil && line != signal+"\n" {
		err = fmt.Errorf("got %q", line)
	}
	if err != nil {
		return fmt.Errorf("the harness did not say %q: %w", signal, err)
	}
	return nil
}

// quiet is a window in which only the library acts. When it returns, the commands have been counted.
func (j *job) quiet() error {
	<-time.After(j.duration)
	return j.await("counted")
}

// end closes the window.
func (j *job) end() error {
	if j.profile != nil {
		pprof.StopCPUProfile()
		if err := j.profile.Close(); err != nil {
			return err
		}
	}
	if j.memProfile == "" {
		return nil
	}
	f, err := os.Create(j.memProfile)
	if err != nil {
		return err
	}
	defer f.Close()
	return pprof.Lookup("allocs").WriteTo(f, 0)
}

// open returns a new instance of the library.
func (j *job) open(lease time.Duration) (*client, error) {
	c, err := j.lib.open(openOptions{addr: j.addr, lease: lease})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", j.lib.name, err)
	}
	return c, nil
}

// openAll returns one instance per client of the process.
func (j *job) openAll(lease time.Duration) ([]*client, error) {
	clients := make([]*client, j.clients)
	for i := range clients {
		var err error
		if clients[i], err = j.open(lease); err != nil {
			return nil, err
		}
	}
	return clients, nil
}

// id returns a number for the witness, unique among all workers' goroutines.
func (j *job) id(goroutine int) uint64 { return uint64(j.index+1)<<32 | uint64(goroutine+1) }

// lockName returns the i-th lock's name, for workloads with many locks per process.
func (j *job) lockName(i int) string { return fmt.Sprintf("%s:%d:%d", j.name, j.index, i) }
