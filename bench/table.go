package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// row is a library's row in a table.
type row struct {
	lib     *library
	samples []*sample
	value   float64 // median of the metric
	ok      bool    // false if all rounds failed
}

// table compares the libraries in one workload and size.
type table struct {
	workload workload
	rows     []row
}

// floorFor returns the floor with the same kind of context, if any.
func (t *table) floorFor(r row) (row, bool) {
	return t.find(func(f row) bool {
		return f.lib.name == floorName && r.lib.ctx == background ||
			f.lib.floor && f.lib.ctx == r.lib.ctx && r.lib.ctx != background
	})
}

// secondFloor returns a floor with more of a lock's necessary work than the first, if any.
func (t *table) secondFloor() (row, bool) {
	return t.find(func(f row) bool { return f.lib.floor && f.lib.ctx == background && f.lib.name != floorName })
}

// bestPeer returns a user's best alternative; for a peer, the best other one. With fair, libraries that starve goroutines do not count:
// re-granting the lock to the same goroutine is fast, and useless.
func (t *table) bestPeer(r row, fair bool) (row, bool) {
	var best row
	found := false
	for _, p := range t.rows {
		if !p.ok || !p.lib.peer() || p.lib == r.lib {
			continue
		}
		if n, _ := median(p.samples, starved.value); fair && n > 0 {
			continue
		}
		if !found || t.workload.metric.more && p.value > best.value || !t.workload.metric.more && p.value < best.value {
			best, found = p, true
		}
	}
	return best, found
}

func (t *table) find(match func(row) bool) (row, bool) {
	i := slices.IndexFunc(t.rows, func(r row) bool { return r.ok && match(r) })
	if i < 0 {
		return row{}, false
	}
	return t.rows[i], true
}

// ratio returns r's value divided by other's.
func ratio(r, other row, has bool) string {
	if !has || other.value == 0 || r.lib == other.lib {
		return ""
	}
	return fmt.Sprintf("%.2f", r.value/other.value)
}

// tables returns all tables as Markdown, the curves' last.
func (r *results) tables() string {
	var b strings.Builder
	m := &r.Machine
	awake := ""
	if m.Awake {
		awake = " kept awake"
	}
	fmt.Fprintf(&b, "%s, %d cores%s, %s/%s, %s, Redis %s, %s\n",
		m.CPU, m.Cores, awake, m.GOOS, m.Arch, m.Go, m.Redis, m.Time.Format("2006-01-02"))
	for _, name := range slices.Sorted(maps.Keys(m.Others)) {
		fmt.Fprintf(&b, "%s on %s %s. ", name, serverOf(name), m.Others[name])
	}
	if m.Sync > 0 {
		fmt.Fprintf(&b, "A write takes %v to disk.\n", m.Sync.Round(10*time.Microsecond))
	}
	for _, t := range r.byWorkload() {
		t.write(&b)
	}
	for _, c := range curves(&options{}) {
		for _, metric := range c.metrics {
			r.writeCurve(&b, &c, metric)
		}
	}
	return b.String()
}

// byWorkload returns the tables of the workloads in their usual sizes.
func (r *results) byWorkload() []*table {
	var all []*table
	index := make(map[string]*table)
	for _, c := range r.cells() {
		lib, err := findLibrary(c.Lib)
		w, usual := workloadOf(c, r.Machine.Quick)
		if err != nil || !usual { // err: from an older bench
			continue
		}
		t := index[w.name]
		if t == nil {
			t = &table{workload: w}
			index[w.name] = t
			all = append(all, t)
		}
		next := row{lib: lib, samples: r.of(c)}
		next.value, next.ok = median(next.samples, w.metric.value)
		t.rows = append(t.rows, next)
	}
	names := libraryNames()
	for _, t := range all {
		slices.SortFunc(t.rows, func(a, b row) int { return slices.Index(names, a.lib.name) - slices.Index(names, b.lib.name) })
	}
	return all
}

// writeCurve writes a table with a row per library and a column per point, if there is any.
func (r *results) writeCurve(b *strings.Builder, c *curve, m metric) {
	lines := make([]string, 0, len(c.libs))
	measured := make(map[cell]bool)
	for _, name := range c.libs {
		line := []string{name}
		for _, point := range c.cells() {
			samples := r.at(point, name)
			v, ok := median(samples, m.value)
			switch {
			case ok:
				line = append(line, fmt.Sprintf(m.format, v))
				measured[point] = true
			case len(samples) > 0:
				line = append(line, "FAILED")
			default:
				line = append(line, "")
			}
		}
		lines = append(lines, "| "+strings.Join(line, " | ")+" |")
	}
	if len(measured) < 2 { // no curve: only the usual size
		return
	}
	fmt.Fprintf(b, "\n### curve %s: %s\n\n| %s |", c.name, m.head, c.axis)
	for _, v := range c.values {
		fmt.Fprintf(b, " %d |", v)
	}
	fmt.Fprintf(b, "\n|%s\n%s\n", strings.Repeat(" --- |", len(c.values)+1), strings.Join(lines, "\n"))
}

func libraryNames() []string {
	names := make([]string, len(libraries))
	for i := range libraries {
		names[i] = libraries[i].name
	}
	return names
}

func (t *table) write(b *strings.Builder) {
	w := &t.workload
	fmt.Fprintf(b, "\n### %s\n\n%s.\n\n", w.name, w.about)
	heads := []string{"library", w.metric.head, "/ floor", "/ best peer"}
	if f, ok := t.secondFloor(); ok {
		heads = append(heads, "/ "+f.lib.name)
	}
	if w.shared {
		heads = append(heads, "/ best that starves nobody")
	}
	for _, c := range w.columns {
		heads = append(heads, c.head)
	}
	heads = append(heads, "violations")
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(heads, " | "), strings.Repeat(" --- |", len(heads)))
	for _, r := range t.rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(t.cells(r), " | "))
	}
	for _, r := range t.rows {
		for _, s := range r.samples {
			if s.Error != "" {
				fmt.Fprintf(b, "\n%s, round %d, failed: %s\n", r.lib.name, s.Round, s.Error)
			}
		}
	}
}

func (t *table) cells(r row) []string {
	w := &t.workload
	if !r.ok {
		return []string{r.lib.name, "FAILED"}
	}
	floor, hasFloor := t.floorFor(r)
	peer, hasPeer := t.bestPeer(r, false)
	cells := []string{r.lib.name, fmt.Sprintf(w.metric.format, r.value), ratio(r, floor, hasFloor), ratio(r, peer, hasPeer)}
	if f, ok := t.secondFloor(); ok {
		cells = append(cells, ratio(r, f, true))
	}
	if w.shared {
		fair, hasFair := t.bestPeer(r, true)
		cells = append(cells, ratio(r, fair, hasFair))
	}
	for _, c := range w.columns {
		v, _ := median(r.samples, c.value)
		said := ""
		if !math.IsNaN(v) {
			said = fmt.Sprintf(c.format, v)
		}
		cells = append(cells, said)
	}
	var violations int64
	for _, s := range r.samples {
		violations += s.Violations
	}
	return append(cells, fmt.Sprint(violations))
}
