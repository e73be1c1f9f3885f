package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// draw writes the tables, a plot for each, and one per metric of each curve.
func (r *results) draw(dir string) error {
	errs := []error{os.WriteFile(filepath.Join(dir, tableFile), []byte(r.tables()), 0o644)}
	for _, t := range r.byWorkload() {
		errs = append(errs, t.plot(t.workload.metric, filepath.Join(dir, t.workload.name+".svg")))
		if slices.ContainsFunc(t.workload.columns, func(m metric) bool { return m.head == longest.head }) {
			errs = append(errs, t.plot(longest, filepath.Join(dir, t.workload.name+"-waits.svg")))
		}
	}
	for _, c := range curves(&options{}) {
		for _, m := range c.metrics {
			name := fmt.Sprintf("curve-%s-%s.svg", c.name, fileName(m.head))
			errs = append(errs, r.plotCurve(&c, m, filepath.Join(dir, name)))
		}
	}
	return errors.Join(errs...)
}

// fileName turns a heading into a file name.
func fileName(head string) string {
	return strings.Trim(strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
			return c
		default:
			return '-'
		}
	}, head), "-")
}

// colours are the libraries' colours in all plots.
var colours = map[string]string{
	"floor": "#8c959f", "floor-scripts": "#57606a",
	"rlock":       "#cf222e",
	"rueidislock": "#0969da",
	"redsync":     "#1a7f37", "redsync-rueidis": "#74c476",
	"bsm":      "#e16f24",
	"redisson": "#8250df",
	"postgres": "#336791", "etcd": "#0b7285", "zookeeper": "#9a6700",
}

// colour returns the library's colour; variants never drawn in one curve share it.
func (l *library) colour() string {
	if c, ok := colours[l.name]; ok {
		return c
	}
	family, _, _ := strings.Cut(l.name, "-")
	return cmp.Or(colours[family], ink)
}

// direction says which way is better.
func (m *metric) direction() string {
	if m.more {
		return "more is better"
	}
	return "less is better"
}

// extremes returns the range of the successful rounds.
func extremes(samples []*sample, value func(*sample) float64) (least, most float64) {
	least, most = math.Inf(1), math.Inf(-1)
	for _, s := range samples {
		if s.Error == "" {
			least, most = min(least, value(s)), max(most, value(s))
		}
	}
	return least, most
}

// troubles says how many goroutines got nothing, and how many rounds failed; "" if neither happened.
func troubles(samples []*sample) string {
	var says []string
	for _, m := range []struct {
		value func(*sample) float64
		word  string
	}{{starved.value, "starve"}, {stuck.value, "stuck"}} {
		least, most := extremes(samples, m.value)
		switch {
		case most <= 0:
		case least == most:
			says = append(says, fmt.Sprintf("%.0f of %d %s", most, samples[0].goroutines(), m.word))
		default:
			says = append(says, fmt.Sprintf("%.0f to %.0f of %d %s", least, most, samples[0].goroutines(), m.word))
		}
	}
	failed := 0
	for _, s := range samples {
		if s.Error != "" {
			failed++
		}
	}
	if failed > 0 {
		says = append(says, fmt.Sprintf("%d of %d rounds failed", failed, len(samples)))
	}
	return strings.Join(says, ", ")
}

// plot draws a metric of the table: a bar per library with its median, and a whisker over the range of its rounds. If a goroutine of a
// library had no turn, its bar is striped, and its label says how many.
func (t *table) plot(m metric, path string) error {
	const rowHeight, barHeight = 26, 16
	p := &picture{width: 860}
	names, highest, striped := 0.0, 0.0, false
	for _, r := range t.rows {
		_, most := extremes(r.samples, m.value)
		names, highest = max(names, widthOf(r.lib.name)), max(highest, most)
		striped = striped || troubles(r.samples) != ""
	}
	if highest <= 0 {
		return nil
	}
	x := axis{to: highest, first: names + 24, last: p.width - 24}
	for _, r := range t.rows { // room for the labels behind the bars
		if _, most := extremes(r.samples, m.value); most > 0 {
			x.last = min(x.last, x.first+(p.width-24-widthOf(label(r, m))-x.first)*highest/most)
		}
	}
	top := p.title(t.workload.name+": "+t.workload.about) + 18
	p.text(12, top, begin, ink, m.axis+", "+m.direction())
	top += 10
	bottom := top + float64(rowHeight*len(t.rows))
	for _, tick := range x.ticks() {
		p.line(x.at(tick), top, x.at(tick), bottom, gridline, 1)
		p.text(x.at(tick), bottom+16, middle, faint, number(tick))
	}
	for i, r := range t.rows {
		y := top + rowHeight*float64(i) + rowHeight/2
		p.text(x.first-8, y+4.5, end, ink, r.lib.name)
		after := x.first
		if v, ok := median(r.samples, m.value); ok {
			least, most := extremes(r.samples, m.value)
			p.bar(x.first, y-barHeight/2, x.at(v)-x.first, barHeight, r.lib.colour(), troubles(r.samples) != "")
			p.whisker(x.at(least), y, x.at(most), y, 4)
			after = x.at(most)
		}
		p.text(after+8, y+4.5, begin, ink, label(r, m))
	}
	p.line(x.first, top, x.first, bottom, ink, 1)
	p.text(12, bottom+40, begin, faint, "Bars are medians; whiskers go from the least to the most of the rounds.")
	p.height = bottom + 54
	if striped {
		p.height += 20
		p.text(12, bottom+60, begin, faint, "Striped: some had no turn while it was measured (starve), never got the lock (stuck), or a round failed.")
	}
	return p.save(path)
}

// label is the text behind a bar.
func label(r row, m metric) string {
	text := troubles(r.samples)
	if v, ok := median(r.samples, m.value); ok {
		text = strings.TrimSuffix(number(v)+" ("+text+")", " ()")
	}
	return text
}

// point of a curve.
type point struct {
	x, y        float64
	least, most float64
	troubled    bool
}

// plotCurve draws one metric of a curve: a line per library through its medians, with whiskers over the range of the rounds. With fewer
// than two points there is no plot.
func (r *results) plotCurve(c *curve, m metric, path string) error {
	type course struct {
		lib    *library
		points []point
	}
	var all []course
	low, high := math.Inf(1), 0.0
	sizes, rings := 0, false
	for _, name := range c.libs {
		lib, err := findLibrary(name)
		if err != nil {
			return err
		}
		next := course{lib: lib}
		for i, cell := range c.cells() {
			samples := r.at(cell, name)
			v, ok := median(samples, m.value)
			if !ok {
				continue
			}
			pt := point{x: place(c.values[i]), y: v, troubled: troubles(samples) != ""}
			pt.least, pt.most = extremes(samples, m.value)
			low, high = min(low, pt.least), max(high, pt.most)
			rings = rings || pt.troubled
			next.points = append(next.points, pt)
		}
		if len(next.points) > 0 {
			all = append(all, next)
			sizes = max(sizes, len(next.points))
		}
	}
	if sizes < 2 || high <= 0 { // only the usual size, or nothing happens
		return nil
	}
	// Order the names by the ends of the lines.
	slices.SortStableFunc(all, func(a, b course) int {
		return cmp.Compare(b.points[len(b.points)-1].y, a.points[len(a.points)-1].y)
	})

	p := &picture{width: 860, height: 476}
	top := p.title(c.name+": "+m.axis) + 18
	p.text(12, top, begin, ink, m.direction())
	names := 0.0
	for _, line := range all {
		names = max(names, widthOf(line.lib.name))
	}
	bottom := p.height - 100
	y := axis{to: 1.05 * high, first: bottom, last: top + 24}
	if low > 0 && high/low > 10 { // a logarithmic axis has no zero
		y = axis{from: low / 1.15, to: high * 1.15, first: y.first, last: y.last, log: true}
	}
	figures := 0.0
	for _, tick := range y.ticks() {
		figures = max(figures, widthOf(number(tick)))
	}
	x := axis{
		from: place(c.values[0]), to: place(c.values[len(c.values)-1]),
		first: figures + 32, last: p.width - names - 76, log: true,
	}
	for _, tick := range y.ticks() {
		p.line(x.first-12, y.at(tick), x.last+12, y.at(tick), gridline, 1)
		p.text(x.first-20, y.at(tick)+4.5, end, faint, number(tick))
	}
	for _, v := range c.values {
		p.line(x.at(place(v)), bottom, x.at(place(v)), bottom+5, faint, 1)
		p.text(x.at(place(v)), bottom+20, middle, faint, number(float64(v)))
	}
	p.text((x.first+x.last)/2, bottom+42, middle, ink, c.axis)
	p.line(x.first-12, bottom, x.last+12, bottom, ink, 1)
	for i, line := range all {
		colour := line.lib.colour()
		for j, pt := range line.points {
			if j > 0 {
				before := line.points[j-1]
				p.line(x.at(before.x), y.at(before.y), x.at(pt.x), y.at(pt.y), colour, 2)
			}
			p.whisker(x.at(pt.x), y.at(pt.least), x.at(pt.x), y.at(pt.most), 3)
		}
		for _, pt := range line.points {
			p.dot(x.at(pt.x), y.at(pt.y), colour, pt.troubled)
		}
		legend := top + 36 + 22*float64(i)
		p.line(x.last+28, legend-4, x.last+48, legend-4, colour, 3)
		p.text(x.last+54, legend, begin, ink, line.lib.name)
	}
	p.text(12, p.height-30, begin, faint, "Medians; whiskers go from the least to the most of the rounds.")
	if rings {
		p.text(12, p.height-10, begin, faint, "A ring: some had no turn while it was measured, never got the lock, or a round failed.")
	}
	return p.save(path)
}

// place returns a value's position on a logarithmic axis. 0 has none, and gets the position of 0.1.
func place(v int) float64 {
	if v == 0 {
		return 0.1
	}
	return float64(v)
}

// at returns the samples of a library in that size, whatever their windows. If a size is both a curve's point and the usual size, the
// longer windows count.
func (r *results) at(point cell, lib string) []*sample {
	var found []*sample
	point.Lib = lib
	for _, c := range r.cells() {
		point.Duration = c.Duration
		if c == point && (len(found) == 0 || c.Duration > found[0].Duration) {
			found = r.of(c)
		}
	}
	return found
}
