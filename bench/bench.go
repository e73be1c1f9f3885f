package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"
)

// bench is one run.
type bench struct {
	options
	self   string // this program
	dir    string // files needed during the run
	server *server
	others map[string]*otherServer // by the library that needs it
	asked  int                     // cells measured on them so far
	log    io.Writer

	samples []sample
}

// options are the command line's settings.
type options struct {
	quick      bool
	rounds     int
	duration   time.Duration // of the windows
	long       time.Duration // of windows with rare turns, or with nothing but waiting and renewing
	libs       []string
	workloads  []string
	curves     bool
	out        string // folder for results; "" for none
	jar        string // of the Java worker; "" for none
	cpuProfile string // folders
	memProfile string
}

// newBench starts the server, and the servers of the named libraries; stop ends them.
func newBench(o options, log io.Writer) (b *bench, stop func(), err error) {
	b = &bench{options: o, log: log}
	if b.self, err = os.Executable(); err != nil {
		return nil, nil, err
	}
	// In memory, if there is such a folder: the witness does not test the disk.
	parent := "/dev/shm"
	if info, err := os.Stat(parent); err != nil || !info.IsDir() {
		parent = ""
	}
	if b.dir, err = os.MkdirTemp(parent, "rlock-bench-"); err != nil {
		return nil, nil, err
	}
	if b.server, err = startServer(b.dir); err != nil {
		os.RemoveAll(b.dir)
		return nil, nil, err
	}
	var stopOthers func()
	if b.others, stopOthers, err = startOthers(o.libs, parent); err != nil {
		b.server.stop()
		os.RemoveAll(b.dir)
		return nil, nil, err
	}
	return b, func() {
		stopOthers()
		b.server.stop()
		os.RemoveAll(b.dir)
	}, nil
}

// hasJava reports whether the Java worker can run.
func (o *options) hasJava() bool {
	if o.jar == "" {
		return false
	}
	if _, err := os.Stat(o.jar); err != nil {
		return false
	}
	_, err := exec.LookPath("java")
	return err == nil
}

// runAll measures every cell once per round, so that drifts of the machine affect all cells. Each round takes a workload's libraries in
// another order, the same in every run.
func (b *bench) runAll(groups []group) {
	start, done, total, rounds := time.Now(), 0, 0, 0
	for _, g := range groups {
		total += len(g.cells) * g.rounds
		rounds = max(rounds, g.rounds)
	}
	for round := 1; round <= rounds; round++ {
		rng := rand.New(rand.NewPCG(uint64(round), 0))
		for _, g := range groups {
			if round > g.rounds {
				continue
			}
			for _, i := range rng.Perm(len(g.cells)) {
				c := g.cells[i]
				s := b.measure(c, round)
				b.samples = append(b.samples, s)
				done++
				said := "ok"
				switch {
				case s.Error != "":
					said = "FAILED: " + s.Error
				case s.Stuck > 0:
					said = fmt.Sprintf("%d are STUCK", s.Stuck)
				case s.Violations > 0:
					said = fmt.Sprintf("%d VIOLATIONS", s.Violations)
				}
				fmt.Fprintf(b.log, "%6.1fs  %d/%d  round %d  %s %s: %s\n",
					time.Since(start).Seconds(), done, total, round, c.title(), c.Lib, said)
			}
		}
	}
}

// failed reports whether rlock or the harness is wrong: the latter if floors fail, too, or all of a library's cells. Violations and lost
// wake-ups of other libraries are results.
func (b *bench) failed() bool {
	came := make(map[string]bool)
	for _, s := range b.samples {
		lib, err := findLibrary(s.Lib)
		if err != nil || !lib.peer() && (s.Error != "" || s.Violations > 0 || s.Stuck > 0) {
			return true
		}
		came[s.Lib] = came[s.Lib] || s.Error == ""
	}
	for _, ok := range came {
		if !ok {
			return true
		}
	}
	return false
}
