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
	dir    string // of what it needs while it runs
	server *server
	others map[string]*otherServer // by the library that needs it
	asked  int                     // cells on them so far
	log    io.Writer

	samples []sample
}

// options are what the command line says.
type options struct {
	quick      bool
	rounds     int
	duration   time.Duration // of the windows
	long       time.Duration // of the windows in which turns are rare, or nothing happens but waiting and renewing
	libs       []string
	workloads  []string
	curves     bool
	out        string // folder for results; "" for none
	jar        string // of the Java worker; "" for none
	cpuProfile string // folders
	memProfile string
}

// newBench starts the server, and those that named libraries need beside; stop ends them.
func newBench(o options, log io.Writer) (b *bench, stop func(), err error) {
	b = &bench{options: o, log: log}
	if b.self, err = os.Executable(); err != nil {
		return nil, nil, err
	}
	// Memory, where there is such a folder: the witness is no test of the disk.
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

// runAll measures all cells once a round, so that what changes on the machine meanwhile meets all of them. In each round the
// libraries of a workload take their turns in another order, which is the same in each run.
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

// failed reports whether something is wrong with rlock, or with the harness: then also the floors fail, or all that is
// measured of a library. That others let two into a section, or never wake somebody, is a result.
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
