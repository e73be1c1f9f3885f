package main

import (
	"errors"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgsvg" // the form that the plots are saved in
)

// draw writes the tables, a plot for each of them, and one for each metric of each curve.
func (r *results) draw(dir string) error {
	errs := []error{os.WriteFile(filepath.Join(dir, tableFile), []byte(r.tables()), 0o644)}
	for _, t := range r.byWorkload() {
		errs = append(errs, t.plot(filepath.Join(dir, t.workload.name+".svg")))
	}
	for _, c := range curves(&options{}) {
		for _, m := range c.metrics {
			name := fmt.Sprintf("curve-%s-%s.svg", c.name, fileName(m.head))
			errs = append(errs, r.plotCurve(&c, m, filepath.Join(dir, name)))
		}
	}
	return errors.Join(errs...)
}

// fileName is what is left of a heading that goes well into the name of a file.
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

// Colours tell the libraries apart, the same in all plots.
var (
	grey = color.Gray{Y: 0x99}                            // floors
	red  = color.RGBA{R: 0xc0, G: 0x1c, B: 0x28, A: 0xff} // rlock
)

// others are given to the rest in turn.
var others = []color.Color{
	color.RGBA{R: 0x1f, G: 0x77, B: 0xb4, A: 0xff}, color.RGBA{R: 0x2c, G: 0xa0, B: 0x2c, A: 0xff},
	color.RGBA{R: 0x94, G: 0x67, B: 0xbd, A: 0xff}, color.RGBA{R: 0x8c, G: 0x56, B: 0x4b, A: 0xff},
	color.RGBA{R: 0xff, G: 0x7f, B: 0x0e, A: 0xff}, color.RGBA{R: 0x17, G: 0xbe, B: 0xcf, A: 0xff},
}

func colourOf(l *library) color.Color {
	switch {
	case l.floor:
		return grey
	case !l.peer():
		return red
	}
	n := 0
	for i := range libraries {
		if libraries[i].name == l.name {
			break
		}
		if libraries[i].peer() {
			n++
		}
	}
	return others[n%len(others)]
}

func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	for _, style := range []*font.Font{
		&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font,
	} {
		style.Variant = "Sans"
	}
	return p
}

// logarithmic makes the axis cover from..to in whole powers of ten.
func logarithmic(a *plot.Axis, from, to float64) {
	a.Scale = plot.LogScale{}
	a.Tick.Marker = plot.LogTicks{Prec: -1}
	a.Min, a.Max = powerBelow(from), -1.0
	for a.Max = a.Min * 10; a.Max < to; {
		a.Max *= 10
	}
}

func powerBelow(v float64) float64 {
	p := 1.0
	for p > v {
		p /= 10
	}
	for p*10 <= v {
		p *= 10
	}
	return p
}

// spread is the smallest and the largest of the values above 0, which are all that a logarithmic axis can show; false if there
// are none.
func spread(values []float64) (from, to float64, ok bool) {
	for _, v := range values {
		if v <= 0 {
			continue
		}
		if !ok || v < from {
			from = v
		}
		if !ok || v > to {
			to = v
		}
		ok = true
	}
	return from, to, ok
}

// plot draws the metric of the table, a dot for each library: bars have no place to begin on a logarithmic
// axis.
func (t *table) plot(path string) error {
	p := newPlot(t.workload.name + ": " + t.workload.about)
	better := "less is better"
	if t.workload.metric.more {
		better = "more is better"
	}
	p.X.Label.Text = fmt.Sprintf("%s, %s", t.workload.metric.head, better)
	var names []string
	var values []float64
	for _, r := range slices.Backward(t.rows) { // the first one on top
		if !r.ok || r.value <= 0 {
			continue
		}
		dots, err := plotter.NewScatter(plotter.XYs{{X: r.value, Y: float64(len(names))}})
		if err != nil {
			return err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: colourOf(r.lib), Radius: vg.Points(4), Shape: draw.CircleGlyph{}}
		p.Add(dots)
		names, values = append(names, r.lib.name), append(values, r.value)
	}
	from, to, ok := spread(values)
	if !ok {
		return nil
	}
	p.NominalY(names...)
	p.Y.Label.Text = " " // a margin: the longest name does not quite fit without
	p.Y.Min, p.Y.Max = -0.5, float64(len(names))-0.5
	logarithmic(&p.X, from, to)
	p.Add(plotter.NewGrid())
	return p.Save(16*vg.Centimeter, vg.Length(2.5+0.6*float64(len(names)))*vg.Centimeter, path)
}

// plotCurve draws one metric of a curve, a line for each library. Without samples there is no plot.
func (r *results) plotCurve(c *curve, m metric, path string) error {
	p := newPlot(c.workload)
	p.X.Label.Text, p.Y.Label.Text = c.axis, m.head
	var xs, ys []float64
	for _, name := range c.libs {
		lib, err := findLibrary(name)
		if err != nil {
			return err
		}
		var points plotter.XYs
		for i, point := range c.cells() {
			v, ok := median(r.at(point, name), m.value)
			if ok && v > 0 {
				points = append(points, plotter.XY{X: place(c.values[i]), Y: v})
				xs, ys = append(xs, place(c.values[i])), append(ys, v)
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = colourOf(lib), vg.Points(1.5)
		dots.GlyphStyle = draw.GlyphStyle{Color: colourOf(lib), Radius: vg.Points(3), Shape: draw.CircleGlyph{}}
		p.Add(line, dots)
		p.Legend.Add(name, line, dots)
	}
	left, right, ok := spread(xs)
	if !ok {
		return nil
	}
	if left == right { // the usual size alone
		return nil
	}
	low, high, _ := spread(ys)
	logarithmic(&p.X, left, right)
	if c.values[0] == 0 {
		p.X.Tick.Marker = zeroFirst{}
	}
	logarithmic(&p.Y, low, high)
	p.Add(plotter.NewGrid())
	p.Legend.Top = true
	return p.Save(16*vg.Centimeter, 10*vg.Centimeter, path)
}

// place is where a value lies on the axis: 0 has none on a logarithmic one, and gets that of 0.1.
func place(v int) float64 {
	if v == 0 {
		return 0.1
	}
	return float64(v)
}

// zeroFirst marks that place as what it is.
type zeroFirst struct{}

// Ticks implements plot.Ticker.
func (zeroFirst) Ticks(_, to float64) []plot.Tick {
	return append([]plot.Tick{{Value: place(0), Label: "0"}}, plot.LogTicks{Prec: -1}.Ticks(1, to)...)
}

// at returns the samples of a library in that size, however long its windows were. Where a size is both a point of a curve and
// the usual one, those of the longer windows count.
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
