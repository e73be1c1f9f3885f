package main

import (
	"fmt"
	"strings"
	"time"
)

// chartColumns fit behind a letter in a line of 80.
const chartColumns = 72

// levels show the share of a column's time that a process was inside.
var levels = []rune(" ▁▂▃▄▅▆▇█")

// chart draws a row per process with a cell per column of time.
func chart(processes []string, from time.Time, column time.Duration, cell func(process string, from, to time.Time) rune) (rows []string) {
	for _, process := range processes {
		row := make([]rune, chartColumns)
		for i := range row {
			at := from.Add(time.Duration(i) * column)
			row[i] = cell(process, at, at.Add(column))
		}
		rows = append(rows, strings.TrimRight(" "+process+"  "+string(row), " "))
	}
	return rows
}

// overview draws who held tea over the whole demo. After the kill, its row shows how long the dead process's lease kept the others out.
func (r *record) overview(processes []string, column time.Duration) []string {
	next, sections := r.takeover(), r.sections(tea)
	return chart(processes, r.start, column, func(process string, from, to time.Time) rune {
		switch {
		case process != r.victim || to.Before(r.death) || to.Equal(r.death):
		case !from.After(r.death):
			return '×'
		case next != nil && from.Before(next.From):
			return '·'
		}
		inside := time.Duration(0)
		for _, s := range sections {
			if s.Process == process && s.From.Before(to) && s.To.After(from) {
				inside += min(s.To.Sub(from), column) - max(s.From.Sub(from), 0)
			}
		}
		if inside <= 0 {
			return ' '
		}
		part := min(1, float64(inside)/float64(column))             // two clerks of a cheating process may be inside at once
		return levels[max(1, int(part*float64(len(levels)-1)+0.5))] // make a short visit visible
	})
}

// closeUp draws a short stretch; digits are the depth of tea's holder.
func (r *record) closeUp(processes []string, from time.Time, column time.Duration) []string {
	return chart(processes, from, column, func(process string, from, to time.Time) rune {
		deepest, middle := ' ', from.Add(to.Sub(from)/2)
		for _, s := range r.spans {
			if s.Process == process && s.Lock == tea && !s.From.After(middle) && s.To.After(middle) {
				deepest = max(deepest, '0'+rune(s.Depth))
			}
		}
		return deepest
	})
}

// ruler marks the seconds, as many as have room.
func ruler(column time.Duration) string {
	row := ""
	for second := time.Duration(0); ; second += time.Second {
		mark := fmt.Sprintf("%d s", second/time.Second)
		at := int(second / column)
		switch {
		case at+len(mark) > chartColumns:
			return "    " + row
		case row == "", at > len(row):
			row += strings.Repeat(" ", at-len(row)) + mark
		}
	}
}

// liveliest returns the start of the stretch in which tea passed through the most processes.
func (r *record) liveliest(length time.Duration, before time.Time) time.Time {
	best, most := r.start, 0
	sections := r.sections(tea)
	for i, first := range sections {
		end := first.From.Add(length)
		if end.After(before) {
			break
		}
		seen := make(map[string]bool)
		for j := i; j < len(sections) && sections[j].From.Before(end); j++ {
			seen[sections[j].Process] = true
		}
		if len(seen) > most {
			most, best = len(seen), first.From
		}
	}
	return best
}
