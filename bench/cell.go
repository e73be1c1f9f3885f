package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cell is one measurement: a workload, its size, and a library.
type cell struct {
	Workload   string        `json:"workload"`
	Lib        string        `json:"lib"`
	Processes  int           `json:"processes"`
	Clients    int           `json:"clients,omitempty"` // per process, each like a process of its own; 0 is 1
	Goroutines int           `json:"goroutines"`        // per client; waiters or holds in those workloads
	Holds      int           `json:"holds,omitempty"`
	RTT        time.Duration `json:"rtt_ns"`
	Far        time.Duration `json:"far_ns,omitempty"`     // extra size for the last process, which has one goroutine
	Section    time.Duration `json:"section_ns,omitempty"` // minimum duration of a section
	Lease      time.Duration `json:"lease_ns,omitempty"`   // in workloads about it; 0 is the library's default
	Duration   time.Duration `json:"duration_ns"`
}

// title is the workload and its differences from the usual size.
func (c cell) title() string {
	t := c.Workload
	switch c.Workload {
	case "pair", "handoff", "fair-handoff", "all-100", "nested", "affinity", "ping-pong":
	default:
		t += fmt.Sprintf("/n=%d", c.goroutines())
	}
	if c.Holds > 0 {
		t += fmt.Sprintf("/holds=%d", c.Holds)
	}
	if c.RTT > 0 {
		t += "/rtt=" + c.RTT.String()
	}
	if c.Far > 0 {
		t += "/far=" + c.Far.String()
	}
	if c.Lease > 0 {
		t += "/lease=" + c.Lease.String()
	}
	return t
}

// part is one process's share of a cell.
type part struct {
	clients, goroutines int
	rtt                 time.Duration
}

// parts returns the shares of all processes.
func (c cell) parts() []part {
	all := make([]part, c.Processes)
	for i := range all {
		all[i] = part{max(c.Clients, 1), c.Goroutines, c.RTT}
	}
	if c.Far > 0 {
		all[len(all)-1] = part{1, 1, c.RTT + c.Far}
	}
	return all
}

// goroutines returns the number in all processes.
func (c cell) goroutines() int {
	n := 0
	for _, p := range c.parts() {
		n += p.clients * p.goroutines
	}
	return n
}

// quiet reports whether the window only contains waiting and renewals.
func (c cell) quiet() bool { return c.Workload == "waiters" || c.Workload == "holds" }

// slots returns the number of locks seen by the witness.
func (c cell) slots() int {
	switch c.Workload {
	case "names", "crash":
		return c.Goroutines
	case "service":
		return orders
	default:
		return 1
	}
}

// sample is the result of a cell's round.
type sample struct {
	cell
	Round int `json:"round"`

	Ops       int64   `json:"ops"`
	Sections  int64   `json:"sections"` // Ops and those outside the window
	ElapsedNs int64   `json:"elapsed_ns"`
	Latency   latency `json:"latency_ns"`

	// Commands counts from the start of the window, Sent only commands received over a connection; uncounted without server counters.
	Commands commands `json:"commands,omitempty"`
	Sent     int64    `json:"sent"`

	// Slowest is the ops of the slowest goroutine relative to the mean. Starved are goroutines without any.
	Slowest float64 `json:"slowest"`
	Starved int     `json:"starved"`
	// Violations of exclusion: overlaps seen by a worker, and lost updates.
	Violations int64 `json:"violations"`
	// Stuck are goroutines still waiting long after all others had finished.
	Stuck int64 `json:"stuck,omitempty"`

	AllocsPerOp float64            `json:"allocs_per_op,omitempty"`
	BytesPerOp  float64            `json:"bytes_per_op,omitempty"`
	Extra       map[string]float64 `json:"extra,omitempty"`

	Error string `json:"error,omitempty"`
}

// uncounted stands for commands to a server without counters.
const uncounted = -1

// sentPerOp returns the commands per section; NaN if unknown.
func (s *sample) sentPerOp() float64 {
	if s.Sent == uncounted {
		return math.NaN()
	}
	return float64(s.Sent) / s.passes()
}

// passes is the divisor for commands and messages.
func (s *sample) passes() float64 {
	n := s.Sections
	switch s.Workload {
	case "handoff", "fair-handoff", "ping-pong", // their sections begin before the window
		"latch", "latch-herd": // a section is one waiter's, and an op is a round of all
		n = s.Ops
	}
	return float64(max(n, 1))
}

// perSecond returns the window's throughput.
func (s *sample) perSecond() float64 {
	return float64(s.Ops) / cmp.Or(time.Duration(s.ElapsedNs).Seconds(), 1)
}

const (
	// A JVM starts slowly, and a hundred thousand holds take a while.
	readyTimeout      = time.Minute
	readyTimeoutQuick = 20 * time.Second
	// Calls in progress at the end of the window have to finish, even a poller's.
	reportTimeout      = 30 * time.Second
	reportTimeoutQuick = 20 * time.Second
)

// measure runs a cell once. The sample contains any error.
func (b *bench) measure(c cell, round int) sample {
	s := sample{cell: c, Round: round}
	if err := b.run(&s); err != nil {
		s.Error = err.Error()
	}
	return s
}

func (b *bench) run(s *sample) (err error) {
	if err := b.server.clear(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(b.dir, "cell-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var (
		workers   []*process
		lines     []*delayLine
		witnesses []*witness
	)
	defer func() {
		for _, p := range workers {
			p.end()
		}
		for _, l := range lines {
			l.close()
		}
		for _, w := range witnesses {
			err = errors.Join(err, w.close())
		}
	}()
	lib, err := findLibrary(s.Lib)
	if err != nil {
		return err
	}
	on, err := b.siteFor(lib)
	if err != nil {
		return err
	}
	var path string
	for i, at := range s.parts()[:lib.processes(s.cell)] {
		addr := on.addr
		if at.rtt > 0 {
			line, err := startDelayLine(addr, at.rtt)
			if err != nil {
				return err
			}
			lines = append(lines, line)
			addr = line.addr
		}
		// Workers with their own locks have their own witnesses.
		if i == 0 || s.slots() > 1 {
			sub := filepath.Join(dir, strconv.Itoa(i))
			if err := os.Mkdir(sub, 0o700); err != nil {
				return err
			}
			if path, err = createWitness(sub, s.slots()); err != nil {
				return err
			}
			w, err := openWitness(path)
			if err != nil {
				return err
			}
			witnesses = append(witnesses, w)
		}
		p, err := startProcess(b.command(s, at, addr, on.lock, path, i))
		if err != nil {
			return err
		}
		workers = append(workers, p)
	}
	timeout := readyTimeout + s.Lease
	if b.quick {
		timeout = readyTimeoutQuick
	}
	for _, p := range workers {
		if err := p.ready(timeout); err != nil {
			return err
		}
	}
	reports, err := b.window(s, lib, on.commands, workers)
	if err != nil {
		return err
	}
	s.merge(reports)
	var counted uint64
	for _, w := range witnesses {
		counted += w.counted()
	}
	s.check(counted)
	return nil
}

// window starts the workers and counts commands. With sections, it counts until the last worker has finished, including those outside the
// worker's window. In a quiet window, it counts until the time is up, while the workers wait.
func (b *bench) window(s *sample, lib *library, commands func() (commands, error), workers []*process) ([]report, error) {
	before, err := commands()
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(s.Duration)
	defer timer.Stop()
	for _, p := range workers {
		if err := p.say("go"); err != nil {
			return nil, err
		}
	}
	count := func() error {
		after, err := commands()
		if after == nil {
			s.Sent = uncounted
			return err
		}
		s.Commands = after.since(before)
		s.Sent = s.Commands.sent(slices.Concat(lib.direct, lib.directIn[s.Workload]))
		return err
	}
	if s.quiet() {
		<-timer.C
		if err := count(); err != nil {
			return nil, err
		}
		for _, p := range workers {
			if err := p.say("counted"); err != nil {
				return nil, err
			}
		}
	}
	timeout := s.Duration + s.Lease + reportTimeout // a lease, for a million holds that are given back
	if b.quick {
		timeout = s.Duration + reportTimeoutQuick
	}
	reports := make([]report, len(workers))
	for i, p := range workers {
		if reports[i], err = p.report(timeout); err != nil {
			return nil, err
		}
	}
	if s.quiet() {
		return reports, nil
	}
	return reports, count()
}

// command returns the i-th worker's command line.
func (b *bench) command(s *sample, at part, addr, lock, witness string, i int) []string {
	cmd := []string{b.self, "worker"}
	if s.Lib == redissonName {
		// The JVM's defaults except for memory: a quarter of the machine for each of four JVMs is more than the heap of a small service.
		cmd = []string{"java", "-Xmx1g", "-jar", b.jar, "worker"}
	}
	cmd = append(cmd,
		"--lib", s.Lib, "--workload", s.Workload, "--addr", addr, "--name", lock,
		"--clients", strconv.Itoa(at.clients), "--goroutines", strconv.Itoa(at.goroutines),
		"--section", s.Section.String(), "--duration", s.Duration.String(), "--rtt", at.rtt.String(),
		"--witness", witness, "--worker", strconv.Itoa(i))
	if s.Lib == redissonName {
		if b.quick {
			cmd = append(cmd, "--warm-up", "100ms")
		}
		return cmd
	}
	if s.Lease > 0 {
		cmd = append(cmd, "--lease", s.Lease.String())
	}
	if s.Holds > 0 {
		cmd = append(cmd, "--holds", strconv.Itoa(s.Holds))
	}
	profile := func(dir, kind string) {
		if dir != "" {
			name := strings.NewReplacer("/", "-", "=", "").Replace(s.title())
			cmd = append(cmd, "--"+kind, filepath.Join(dir, fmt.Sprintf("%s-%s-worker%d-round%d.%s", name, s.Lib, i, s.Round, kind)))
		}
	}
	profile(b.cpuProfile, "cpuprofile")
	profile(b.memProfile, "memprofile")
	return cmd
}

// merge combines the workers' reports.
func (s *sample) merge(reports []report) {
	var perGoroutine []int64
	s.Extra = make(map[string]float64)
	for _, r := range reports {
		s.Ops += r.Ops
		s.Sections += r.Sections
		s.ElapsedNs = max(s.ElapsedNs, r.ElapsedNs)
		s.Violations += r.Violations
		s.Stuck += r.Stuck
		perGoroutine = append(perGoroutine, r.PerGoroutine...)
		// The workers do the same, so the mean of their medians approximates the common median. For the tail the worst one counts.
		s.Latency.P50 += r.Latency.P50 / int64(len(reports))
		s.Latency.P99 = max(s.Latency.P99, r.Latency.P99)
		s.Latency.Max = max(s.Latency.Max, r.Latency.Max)
		s.AllocsPerOp += r.AllocsPerOp / float64(len(reports))
		s.BytesPerOp += r.BytesPerOp / float64(len(reports))
		for name, value := range r.Extra {
			s.Extra[name] += value / float64(len(reports))
		}
	}
	s.Slowest = 1
	if s.Ops == 0 || len(perGoroutine) == 0 {
		return
	}
	mean := float64(s.Ops) / float64(len(perGoroutine))
	for _, n := range perGoroutine {
		s.Slowest = min(s.Slowest, float64(n)/mean)
		if n == 0 {
			s.Starved++
		}
	}
	if s.Far > 0 {
		far := reports[len(reports)-1]
		s.Extra["far_share"] = float64(far.Ops) / mean
		s.Extra["far_max_ns"] = float64(far.Latency.Max)
	}
}

// check compares the workers' reports with the traces left by their sections.
func (s *sample) check(counted uint64) {
	if lost := s.Sections - int64(counted); lost != 0 {
		s.Violations += max(lost, -lost)
	}
}
