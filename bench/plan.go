package main

import (
	"fmt"
	"slices"
)

// group is a comparison: cells that differ only in their libraries.
type group struct {
	cells  []cell
	rounds int
}

// plan returns the groups of the tables, then the curves' groups.
func plan(o *options) ([]group, error) {
	all := workloads(o)
	for _, name := range o.workloads {
		if !slices.ContainsFunc(all, func(w workload) bool { return w.name == name }) {
			return nil, fmt.Errorf("no workload is called %q", name)
		}
	}
	for _, name := range o.libs {
		if _, err := findLibrary(name); err != nil {
			return nil, err
		}
	}
	var groups []group
	for _, w := range named(all, o.workloads) {
		rounds := o.rounds
		if w.fickle && !o.quick {
			rounds *= fickleTimes
		}
		groups = append(groups, group{o.forEachLibrary(w.cell, nil), rounds})
	}
	if o.curves {
		for _, c := range curves(o) {
			if len(o.workloads) > 0 && !slices.Contains(o.workloads, c.workload) {
				continue
			}
			for _, point := range c.cells() {
				if !slices.ContainsFunc(groups, func(g group) bool { return g.measures(point) }) {
					groups = append(groups, group{o.forEachLibrary(point, c.libsAt(point)), min(o.rounds, curveRounds)})
				}
			}
		}
	}
	return slices.DeleteFunc(groups, func(g group) bool { return len(g.cells) == 0 }), nil
}

// fickleTimes is how much more often a fickle workload is measured.
const fickleTimes = 3

// curveRounds are fewer: a curve has many points, and shows a trend.
const curveRounds = 3

// measures reports whether the group already measures a curve's point, for as long.
func (g group) measures(point cell) bool {
	if len(g.cells) == 0 {
		return false
	}
	c := g.cells[0]
	c.Lib, point.Lib = "", ""
	if c.Duration < point.Duration {
		return false
	}
	point.Duration = c.Duration
	return c == point
}

// forEachLibrary returns the cell for each participating library; only limits them.
func (o *options) forEachLibrary(c cell, only []string) []cell {
	var cells []cell
	for i := range libraries {
		l := &libraries[i]
		switch {
		case !l.takesPart(c.Workload),
			len(o.libs) > 0 && !slices.Contains(o.libs, l.name),
			len(only) > 0 && !slices.Contains(only, l.name),
			l.start != nil && !slices.Contains(o.libs, l.name),
			l.open == nil && !o.hasJava():
			continue
		}
		c.Lib = l.name
		cells = append(cells, c)
	}
	return cells
}
