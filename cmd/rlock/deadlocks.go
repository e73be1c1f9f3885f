package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/deadlock"
)

const usageDeadlocks = `usage: rlock deadlocks [flags]

Asks all programs with Options.Deadlock on this Redis for Locks that have waited
for long under other locks. Shows deadlocks first, then the other waits and
where each leads. Redisson and programs without the option "say nothing".

  -n N         look N times, a second apart (default 1)
  -json        print one line of JSON per wait and look
` + usageTarget + `
exit code  0 no deadlock   1 a deadlock, at the last look   2 usage
           125 Redis, or a node of the cluster, failed
`

// answersTime bounds the wait for the processes' answers.
const answersTime = time.Second

// standstill is a wait in its JSON form.
type standstill struct {
	deadlock.Seen

	Deadlock int      `json:"deadlock,omitempty"` // the number of its deadlock, from 1
	Unknown  []string `json:"unknown,omitempty"`  // blockers whose processes do not report their waits
}

func (p *program) deadlocks(args []string) int {
	var t target
	flags := p.flags("deadlocks", &t)
	times := flags.Int("n", 1, "")
	asJSON := flags.Bool("json", false, "")
	if code, ok := p.parse(flags, args); !ok {
		return code
	}
	switch {
	case flags.NArg() > 0:
		return p.misuse(errors.New("deadlocks takes flags only"), "deadlocks")
	case *times < 1:
		return p.misuse(errors.New("-n must be at least 1"), "deadlocks")
	}
	return p.interruptibly(func(ctx context.Context, _ func()) int {
		v, code, ok := p.open(ctx, t)
		if !ok {
			return code
		}
		defer v.close()
		for i := 1; ; i++ {
			w, err := v.standstills(ctx, answersTime)
			if err != nil {
				return p.failed(ctx, v.at(err))
			}
			cycles := cyclesOf(w.waits)
			w.labels = v.labelsOf(ctx, w.waits)
			if *asJSON {
				p.jsonStandstills(w, cycles)
			} else {
				p.printStandstills(w, cycles)
			}
			code := p.tellMissing(w.missing)
			switch {
			case i == *times && len(cycles) > 0:
				return exitFailed
			case i == *times:
				return code
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return endCode(ctx)
			}
		}
	})
}

func (p *program) jsonStandstills(w standstills, cycles [][]*deadlock.Seen) {
	for i := range w.waits {
		s := standstill{Seen: w.waits[i]}
		s.Deadlock = 1 + slices.IndexFunc(cycles, func(c []*deadlock.Seen) bool { return slices.Contains(c, &w.waits[i]) })
		for _, owner := range s.Blockers {
			if !w.isKnown(owner) {
				s.Unknown = append(s.Unknown, owner)
			}
		}
		p.json(s)
	}
}

func (p *program) printStandstills(w standstills, cycles [][]*deadlock.Seen) {
	known := make(map[*deadlock.Seen]bool)
	for i, cycle := range cycles {
		fmt.Fprintf(p.out, "deadlock %d\n", i+1)
		for j, s := range cycle {
			known[s] = true
			p.printWait(s, held(cycle, j))
		}
	}
	others, unknown := false, false
	for i := range w.waits {
		s := &w.waits[i]
		if known[s] {
			continue
		}
		if !others && len(cycles) > 0 {
			fmt.Fprintln(p.out, "others that wait")
		}
		others = true
		p.printWait(s, s.Holds)
		for _, owner := range s.Blockers {
			fmt.Fprintf(p.out, "    behind %s, which %s\n", clean(labelled(w.labels[clientID(owner)], owner)), w.leadsTo(owner))
			unknown = unknown || !w.isKnown(owner)
		}
	}
	if unknown {
		fmt.Fprintln(p.out, whyUnknown)
	}
	if len(w.silent) > 0 {
		fmt.Fprintf(p.err, "rlock: %d of %d Clients did not answer within %s\n", len(w.silent), w.asked, answersTime)
	}
}

// labelsOf returns the labels of the waits' blockers.
func (v *viewer) labelsOf(ctx context.Context, waits []deadlock.Seen) map[string]string {
	ids := make(map[string]bool)
	for i := range waits {
		for _, owner := range waits[i].Blockers {
			if mayHaveLabel(owner) {
				ids[clientID(owner)] = true
			}
		}
	}
	return v.labels(ctx, ids)
}

// whyUnknown lists the reasons for "says nothing".
const whyUnknown = `"says nothing": Redisson, a program without Options.Deadlock,
or one in which no Lock has waited for long under its locks yet`

// printWait prints the locks under which it waits, and the lock it waits for.
func (p *program) printWait(s *deadlock.Seen, holds []deadlock.SeenHold) {
	var names []string
	for _, h := range holds {
		names = append(names, fmt.Sprintf("%q for %s", h.Name, short(time.Since(h.Since))))
	}
	who := s.Host
	if s.Label != "" {
		who = fmt.Sprintf("%q on %s", s.Label, s.Host)
	}
	fmt.Fprintf(p.out, "  %s\n", clean(fmt.Sprintf("%s (pid %d, client %s)", who, s.PID, s.Client)))
	fmt.Fprintf(p.out, "    %s\n", clean(fmt.Sprintf("holds %s, waits for %q for %s",
		strings.Join(names, ", "), s.Lock, short(time.Since(s.Began)))))
}
