package main

import (
	"fmt"
	"slices"
)

// plan returns the cells of each workload, those of the curves after the others.
func plan(o *options) ([][]cell, error) {
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
	var groups [][]cell
	for _, w := range named(all, o.workloads) {
		groups = append(groups, o.forEachLibrary(w.cell, nil))
	}
	if o.curves {
		for _, c := range curves(o) {
			if len(o.workloads) > 0 && !slices.Contains(o.workloads, c.workload) {
				continue
			}
			for _, point := range c.cells() {
				if !slices.ContainsFunc(groups, func(g []cell) bool { return sameSize(g, point) }) {
					groups = append(groups, o.forEachLibrary(point, c.libs))
				}
			}
		}
	}
	return slices.DeleteFunc(groups, func(g []cell) bool { return len(g) == 0 }), nil
}

// sameSize reports whether the group measures what the point of a curve asks for already.
func sameSize(group []cell, point cell) bool {
	if len(group) == 0 {
		return false
	}
	c := group[0]
	c.Lib, point.Lib = "", ""
	return c == point
}

// forEachLibrary returns the cell for the libraries that take part; only limits them.
func (o *options) forEachLibrary(c cell, only []string) []cell {
	var cells []cell
	for i := range libraries {
		l := &libraries[i]
		switch {
		case !l.takesPart(c.Workload),
			len(o.libs) > 0 && !slices.Contains(o.libs, l.name),
			len(only) > 0 && !slices.Contains(only, l.name),
			l.open == nil && !o.hasJava():
			continue
		}
		c.Lib = l.name
		cells = append(cells, c)
	}
	return cells
}
