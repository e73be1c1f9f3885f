package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// The files of a results folder.
const (
	rawFile   = "results.jsonl"
	goFile    = "results.txt"
	tableFile = "tables.md"
)

// results are all samples of a run, and its machine.
type results struct {
	Machine machine
	samples []sample
}

// machine is the environment needed to compare results.
type machine struct {
	Time  time.Time         `json:"time"`
	GOOS  string            `json:"goos"`
	Arch  string            `json:"goarch"`
	CPU   string            `json:"cpu"`
	Cores int               `json:"cores"`
	Go    string            `json:"go"`
	Redis string            `json:"redis"`
	Awake bool              `json:"awake"` // the cores were kept out of sleep states
	Quick bool              `json:"quick,omitempty"`
	Libs  map[string]string `json:"libs"` // modules and their versions
	// Others are the other servers' versions, by library. Sync is the time to sync a write to their disk.
	Others map[string]string `json:"others,omitempty"`
	Sync   time.Duration     `json:"sync_ns,omitempty"`
}

func (b *bench) machine() (machine, error) {
	m := machine{
		Time: time.Now().UTC().Truncate(time.Second), GOOS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuName(),
		Cores: runtime.NumCPU(), Go: runtime.Version(), Libs: make(map[string]string),
	}
	info, err := b.server.info("server")
	if err != nil {
		return machine{}, err
	}
	m.Redis = info["redis_version"]
	if len(b.others) > 0 {
		m.Others = make(map[string]string)
		for name, s := range b.others {
			m.Others[name] = s.version
		}
		if m.Sync, err = syncTime(diskDir); err != nil {
			return machine{}, err
		}
	}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return m, nil
	}
	for _, dep := range build.Deps {
		for _, part := range []string{"redis", "redsync", "pgx", "etcd", "zookeeper"} {
			if strings.Contains(dep.Path, part) && dep.Replace == nil {
				m.Libs[dep.Path] = dep.Version
			}
		}
	}
	return m, nil
}

// cpuName returns Linux's name of the processor, "" elsewhere.
func cpuName() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.Trim(name, " \t:\n")
		}
	}
	return ""
}

// header is the first line of the raw results.
type header struct {
	Machine machine `json:"machine"`
}

// write writes the raw results as JSON lines, and in the format of Go's benchmarks.
func (r *results) write(dir string) error {
	var raw strings.Builder
	enc := json.NewEncoder(&raw)
	if err := enc.Encode(header{r.Machine}); err != nil {
		return err
	}
	for i := range r.samples {
		if err := enc.Encode(&r.samples[i]); err != nil {
			return err
		}
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, rawFile), []byte(raw.String()), 0o644),
		os.WriteFile(filepath.Join(dir, goFile), []byte(r.goBenchmark()), 0o644))
}

// readResults reads the output of write.
func readResults(dir string) (*results, error) {
	f, err := os.Open(filepath.Join(dir, rawFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &results{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		if n == 1 {
			var h header
			if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
				return nil, fmt.Errorf("%s, line 1: %w", rawFile, err)
			}
			r.Machine = h.Machine
			continue
		}
		var s sample
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", rawFile, n, err)
		}
		r.samples = append(r.samples, s)
	}
	return r, lines.Err()
}

// of returns the samples of a cell, whatever the round and the result.
func (r *results) of(c cell) []*sample {
	var all []*sample
	for i := range r.samples {
		if r.samples[i].cell == c {
			all = append(all, &r.samples[i])
		}
	}
	return all
}

// cells returns each cell once, in the order of the first round.
func (r *results) cells() []cell {
	var all []cell
	for i := range r.samples {
		if c := r.samples[i].cell; !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// median of the successful rounds; false if all failed.
func median(samples []*sample, value func(*sample) float64) (float64, bool) {
	var values []float64
	for _, s := range samples {
		if s.Error == "" {
			values = append(values, value(s))
		}
	}
	if len(values) == 0 {
		return 0, false
	}
	slices.Sort(values)
	mid := len(values) / 2
	if len(values)%2 == 0 {
		return (values[mid-1] + values[mid]) / 2, true
	}
	return values[mid], true
}

// redraw makes tables and plots from the raw results in dir.
func redraw(dir string, stdout interface{ Write([]byte) (int, error) }) error {
	r, err := readResults(dir)
	if err != nil {
		return err
	}
	if err := r.draw(dir); err != nil {
		return err
	}
	_, err = fmt.Fprint(stdout, r.tables())
	return err
}
