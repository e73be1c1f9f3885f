package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
)

const usageShow = `usage: rlock show [flags] NAME

Shows the holders and waiters of the lock NAME, of any kind. For a latch it
shows the remaining count; for a semaphore the free permits and, if they expire,
each held permit. A number without waiters may be any counter.

  -json        print one line of JSON
` + usageTarget + `
A program with Options.Label is shown by its label. A holder's host is known if
it has a connection named rlock:<client id>: any process that waited for a lock
in the last few seconds, and "rlock run". A holder with neither may be
Redisson's. A permit's id begins with its client id, except for Redisson's.

exit code  0 it is held   1 it is free   2 usage   125 Redis failed
`

func (p *program) show(args []string) int {
	var t target
	flags := p.flags("show", &t)
	asJSON := flags.Bool("json", false, "")
	name, code, ok := p.parseName(flags, args)
	if !ok {
		return code
	}
	return p.interruptibly(func(ctx context.Context, _ func()) int {
		v, seen, code, ok := p.see(ctx, t, name)
		if !ok {
			return code
		}
		defer v.close()
		v.addHosts(ctx, &seen.state)
		v.addLabelsOfWaiters(ctx, seen)
		if *asJSON {
			p.json(seen)
		} else {
			seen.noteUnlabelled()
			seen.print(p.out)
		}
		if !seen.Held {
			return exitFree
		}
		return 0
	})
}

// print writes one line per fact.
func (v *view) print(w io.Writer) {
	line := func(what, format string, args ...any) {
		fmt.Fprintf(w, "%-12s %s\n", what, clean(fmt.Sprintf(format, args...)))
	}
	line("lock", "%s", printable(v.Name))
	switch {
	case !v.Held:
		line("state", "free")
	case v.isCounter():
		line("state", "%s, %s", v.left(), v.Kind)
		line("ttl", "%s", v.ttl())
	default:
		state := "held"
		if v.Holders[0].Idle {
			state = "held or idle"
		}
		line("state", "%s, %s", state, v.Kind)
		remark := ""
		if days := v.days(); v.outlives() && days > 0 {
			remark = fmt.Sprintf(" (%d days: if its holder is gone, free it by rlock unlock -force)", days)
		} else if v.outlives() {
			remark = " (it does not expire: if its holder is gone, free it by rlock unlock -force)"
		}
		line("ttl", "%s%s", v.ttl(), remark)
	}
	for _, h := range v.Holders[:min(len(v.Holders), mostLines)] {
		line("holder", "%s depth %d", h.text(), h.Depth)
	}
	if more := len(v.Holders) - mostLines; more > 0 {
		line("holder", "and %d more", more)
	}
	for i := range v.Permits[:min(len(v.Permits), mostLines)] {
		line("permit", "%s", v.Permits[i].text())
	}
	if more := v.Acquired - mostLines; more > 0 {
		line("permit", "and %d more", more)
	}
	if v.Token != 0 {
		line("token", "%d", v.Token)
	}
	processes := "unknown"
	if v.Processes >= 0 {
		processes = strconv.Itoa(v.Processes) + " listening"
	}
	line("processes", "%s", processes)
	list(w, "queue", v.places())
	list(w, "fair queue", labelledAll(v.FairQueue, v.Labels))
	list(w, "writers", labelledAll(v.Writers, v.Labels))
}

// mostLines bounds the lines of holders, of waiters, and of permits.
const mostLines = 20

// mostPlaces is how many waiters an rlock.Info has at most.
const mostPlaces = 1000

// list prints the first waiters.
func list(w io.Writer, what string, owners []string) {
	for i, owner := range owners[:min(len(owners), mostLines)] {
		fmt.Fprintf(w, "%-12s %d. %s\n", what, i+1, clean(owner))
	}
	if more := len(owners) - mostLines; more > 0 {
		least := ""
		if len(owners) == mostPlaces {
			least = "at least "
		}
		fmt.Fprintf(w, "%-12s and %s%d more\n", what, least, more)
	}
}
