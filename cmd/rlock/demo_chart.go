package main

import (
	"fmt"
	"strings"
	"time"
)

// chartColumns fit behind a letter in a line of 80.
const chartColumns = 72

// levels show which part of a column's time a process was inside.
var levels = []rune(" ▁▂▃▄▅▆▇█")

// overview draws who held a lock: a row per process, a column per slice of the whole time. After a
// process was killed, its row shows how long the dead one's lease kept the others out.
func (r *record) overview(lock string, processes []string, end time.Duration) []string {
	slice := end/chartColumns + 1
	freed := make(map[string]time.Duration)
	for process, death := range r.deaths {
		if s := r.takeover(lock, death); s != nil {
			freed[process] = s.from
		}
	}
	lines := []string{"    " + ruler(slice)}
	for _, process := range processes {
		inside := make([]time.Duration, chartColumns)
		for _, s := range r.sections(lock) {
			if s.process != process {
				continue
			}
			first, last := max(0, int(s.from/slice)), min(int(s.to/slice), chartColumns-1)
			for i := first; i <= last; i++ {
				from := max(s.from, time.Duration(i)*slice)
				to := min(s.to, time.Duration(i+1)*slice)
				inside[i] += max(0, to-from)
			}
		}
		row := make([]rune, chartColumns)
		for i, d := range inside {
			row[i] = levels[level(d, slice)]
		}
		if death, dead := r.deaths[process]; dead {
			for i := int(death / slice); i < chartColumns && time.Duration(i)*slice < freed[process]; i++ {
				row[i] = '·'
			}
			row[min(int(death/slice), chartColumns-1)] = '×'
		}
		lines = append(lines, " "+process+"  "+strings.TrimRight(string(row), " "))
	}
	return lines
}

// level shows even a short visit.
func level(inside, slice time.Duration) int {
	if inside <= 0 {
		return 0
	}
	most := len(levels) - 1
	return max(1, min(most, int((inside*time.Duration(most)+slice/2)/slice)))
}

// ruler marks the seconds.
func ruler(slice time.Duration) string {
	row := []rune(strings.Repeat(" ", chartColumns))
	for second := time.Duration(0); ; second += time.Second {
		mark := fmt.Sprintf("%d s", second/time.Second)
		at := int(second / slice)
		if at+len(mark) > chartColumns {
			return strings.TrimRight(string(row), " ")
		}
		copy(row[at:], []rune(mark))
	}
}

// closeUp draws a short stretch: the digit is how deep the holder was inside.
func (r *record) closeUp(lock string, processes []string, from, column time.Duration) []string {
	var lines []string
	for _, process := range processes {
		row := []byte(strings.Repeat(" ", chartColumns))
		for _, s := range r.spans { // in order of time for each clerk, so inner levels come later
			if s.process != process || s.lock != lock {
				continue
			}
			for i := range row {
				middle := from + time.Duration(i)*column + column/2
				if s.from <= middle && middle < s.to && row[i] < '0'+byte(s.depth) {
					row[i] = '0' + byte(s.depth)
				}
			}
		}
		lines = append(lines, " "+process+"  "+strings.TrimRight(string(row), " "))
	}
	return lines
}

// liveliest returns the begin of the stretch before a time in which a lock passed through the most
// processes.
func (r *record) liveliest(lock string, length, before time.Duration) time.Duration {
	var best time.Duration
	most := 0
	sections := r.sections(lock)
	for i, first := range sections {
		if first.from+length > before {
			break
		}
		seen := make(map[string]bool)
		changes := 0
		for j := i; j < len(sections) && sections[j].from < first.from+length; j++ {
			if seen[sections[j].process] = true; j > i && sections[j].process != sections[j-1].process {
				changes++
			}
		}
		if score := 100*len(seen) + changes; score > most {
			most, best = score, first.from
		}
	}
	return best
}
