package main

import (
	"fmt"
	"strings"
	"time"
)

// introduce says what the demo will show.
func (d *demo) introduce(redis string) {
	fmt.Fprintf(d.screen, `%s

redis   %s
staff   %d processes, in each %d clerks and a cashier (goroutines)
locks   "%s" guards the stock, "%s" the payments; their lease is %v, and a
        watchdog renews it every third of that for as long as they are held
code    Ship locks %s and calls Reserve and Charge, which lock %s again: their
        ctx says that they are inside already, so they re-enter. Charge locks
        %s as well. The counters are read, changed and written in two steps,
        so without the lock updates would be lost.

`, d.screen.bold("rlock demo: a shop, run by several processes at once"),
		clip(redis, 72), demoProcesses, clerksPerWorker, tea, till, demoWatchdog, tea, tea, till)
}

// say prints an event.
func (d *demo) say(format string, args ...any) {
	at := d.screen.faint(fmt.Sprintf("%5.1f s", time.Since(d.record.start).Seconds()))
	fmt.Fprintf(d.screen, "%s  %s\n", at, fmt.Sprintf(format, args...))
}

// progress prints the counts so far.
func (d *demo) progress() {
	shipped, total := make(map[string]int), 0
	for _, s := range d.record.sections(tea) {
		if !s.To.IsZero() && !s.To.Equal(d.record.death) {
			shipped[s.Process]++
			total++
		}
	}
	if total > 0 {
		d.say("%4d shipped:%s", total, d.each(func(p *process) int { return shipped[p.Letter] }))
	}
}

// each formats a number per process.
func (d *demo) each(number func(*process) int) string {
	var line strings.Builder
	for _, p := range d.processes {
		fmt.Fprintf(&line, "  %s %d", p.Letter, number(p))
	}
	return line.String()
}

// explain draws the charts.
func (d *demo) explain() {
	r, s := d.record, d.screen
	var letters []string
	for _, p := range d.processes {
		letters = append(letters, p.Letter)
	}
	column := time.Since(r.start)/chartColumns + 1
	fmt.Fprintf(s, "\n%s\n%s\n%s\n", s.bold(fmt.Sprintf("Who held %q: a column is %v, a full block means all of it", tea, round(column))),
		ruler(column), strings.Join(r.overview(letters, column), "\n"))
	if r.victim != "" {
		fmt.Fprintln(s, "    × killed   · dead, but its lease still keeps the others out")
	}
	from := r.liveliest(chartColumns*time.Millisecond, r.start.Add(d.before))
	fmt.Fprintf(s, "\n%s\n%s\n", s.bold(fmt.Sprintf("A closer look, from %.3f s: a column is %v, the digit how deep inside",
		from.Sub(r.start).Seconds(), time.Millisecond)), strings.Join(r.closeUp(letters, from, time.Millisecond), "\n"))

	reentries := 0
	for _, span := range r.spans {
		reentries += min(span.Depth-1, 1)
	}
	fmt.Fprintf(s, `
re-entry  %d times a holder locked %s again. It never waits for itself; Redis
          counts 1 2 1 2 1, and only the last unlock lets others in
`, reentries, tea)
	if all := r.handoffs(false); len(all) > 0 {
		fmt.Fprintf(s, `hand-off  %d times from one process to another: %v in the middle, 99 of
          100 within %v, from the unlock to being inside. A waiter does
          not poll: the unlock's message wakes it
`, len(all), quantile(all, 50), quantile(all, 99))
	}
	if all := r.handoffs(true); len(all) > 0 {
		fmt.Fprintf(s, "          %d times to a neighbour in the same process: %v\n", len(all), quantile(all, 50))
	}
	if next := r.takeover(); next != nil {
		fmt.Fprintf(s, `crash     %s was killed at %.2f s with both locks. Nobody could unlock them, but
          the watchdog died with %s: %v later, the rest of the lease of
          %v, they were free, and %s was inside
`, r.victim, r.death.Sub(r.start).Seconds(), r.victim, round(next.From.Sub(r.death)), demoWatchdog, next.Process)
	}
	fmt.Fprintln(s)
}

// quantile returns one of sorted times.
func quantile(all []time.Duration, percent int) time.Duration {
	return round(all[(len(all)-1)*percent/100])
}

// round leaves about three digits.
func round(d time.Duration) time.Duration {
	for unit := time.Microsecond; ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
}

// clip shortens a text to a line.
func clip(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}
