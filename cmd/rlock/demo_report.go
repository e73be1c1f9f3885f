package main

import (
	"fmt"
	"strings"
	"time"
)

// closeUpColumn is the time that one column of the close-up shows.
const closeUpColumn = time.Millisecond

// introduce says what is going to be seen.
func (d *demo) introduce() {
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
		clip(d.server.about, 72), d.plan.processes, clerksPerWorker, tea, till, d.plan.watchdog, tea, tea, till)
}

// say puts a line into the list of what happens.
func (d *demo) say(format string, args ...any) {
	at := time.Since(d.record.start)
	fmt.Fprintf(d.screen, "%s  %s\n", d.screen.faint(fmt.Sprintf("%5.1f s", at.Seconds())), fmt.Sprintf(format, args...))
}

// progress tells how far the shop is.
func (d *demo) progress() {
	shipped := make(map[string]int)
	total := 0
	for _, s := range d.record.spans {
		if s.lock == tea && s.depth == 1 && s.to != stillInside && !s.cut {
			shipped[s.process]++
			total++
		}
	}
	d.say("%4d shipped:%s", total, d.each(func(w *process) int { return shipped[w.Letter] }))
}

// each lists a number per process.
func (d *demo) each(number func(*process) int) string {
	var b strings.Builder
	for _, w := range d.processes {
		fmt.Fprintf(&b, "  %s %d", w.Letter, number(w))
	}
	return b.String()
}

// explain draws what happened.
func (d *demo) explain() {
	s, r := d.screen, d.record
	end := time.Since(r.start)
	fmt.Fprintf(s, "\n%s\n", s.bold(fmt.Sprintf("Who held %q: a column is %v, a full block means all of it",
		tea, round(end/chartColumns))))
	d.print(r.overview(tea, d.letters(), end))
	if len(r.deaths) > 0 {
		fmt.Fprintln(s, "    × killed   · dead, but its lease still keeps the others out")
	}

	length := chartColumns * closeUpColumn
	from := r.liveliest(tea, length, d.plan.before)
	fmt.Fprintf(s, "\n%s\n", s.bold(fmt.Sprintf("A closer look, from %.3f s: a column is %v, the digit how deep inside",
		from.Seconds(), closeUpColumn)))
	d.print(r.closeUp(tea, d.letters(), from, closeUpColumn))

	fmt.Fprintf(s, "\nre-entry  %d times a holder locked %s again. It never waits for itself; Redis\n"+
		"          counts 1 2 1 2 1, and only the last unlock lets others in\n", r.reentries(), tea)
	if all := r.handoffs(false); len(all) > 0 {
		fmt.Fprintf(s, "hand-off  %d times from one process to another: %v in the middle, 99 of\n"+
			"          100 within %v, from the unlock to being inside. A waiter does\n"+
			"          not poll: the unlock's message wakes it\n", len(all), quantile(all, 50), quantile(all, 99))
	}
	if all := r.handoffs(true); len(all) > 0 {
		fmt.Fprintf(s, "          %d times to a neighbour in the same process: %v\n", len(all), quantile(all, 50))
	}
	for _, p := range d.letters() {
		death, dead := r.deaths[p]
		if !dead {
			continue
		}
		if next := r.takeover(tea, death); next != nil {
			fmt.Fprintf(s, "crash     %s was killed at %.2f s with both locks. Nobody could unlock them, but\n"+
				"          the watchdog died with %s: %v later, the rest of the lease of\n"+
				"          %v, they were free, and %s was inside\n",
				p, death.Seconds(), p, round(next.from-death), d.plan.watchdog, next.process)
		}
	}
	fmt.Fprintln(s)
}

func (d *demo) print(lines []string) {
	for _, line := range lines {
		fmt.Fprintln(d.screen, line)
	}
}

// quantile returns one of sorted hand-offs.
func quantile(all []handoff, percent int) time.Duration {
	return round(all[(len(all)-1)*percent/100].took)
}

// clip shortens a text for a line.
func clip(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}
