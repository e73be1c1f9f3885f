package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

const usageDoctor = `usage: rlock doctor [flags]

Checks this Redis, its settings and your rights against the promises in
docs/guarantees.md. It takes a lock of each kind, with a name of its own, waits
for it like another process, and releases it; it changes nothing else. On a
cluster it checks all masters.

  -json        print one line of JSON per finding
  -acl-user U  check the rights of user U (default: the current user). Needs
               Redis 7 and the right to ACL DRYRUN: connect as an administrator
  -name NAME   check the rights for the lock NAME, and its readers (default
               rlock-doctor); the lock taken is NAME:rlock-doctor: plus a random
               suffix
` + usageTarget + `
A finding is ok, warn (read it), bad (locks are unsafe, or do not work) or
unknown. Piped, each is one line: status, check, finding, meaning and servers,
separated by tabs.

exit code  0 nothing is bad   1 something is   2 usage   125 Redis failed
`

// finding is the result of one check.
type finding struct {
	Status  string   `json:"status"` // ok, warn, bad or unknown
	Check   string   `json:"check"`
	Found   string   `json:"found"`
	Means   string   `json:"means"`
	Servers []string `json:"servers"`
}

func (p *program) doctor(args []string) int {
	var t target
	flags := p.flags("doctor", &t)
	asJSON := flags.Bool("json", false, "")
	user := flags.String("acl-user", "", "")
	name := flags.String("name", "rlock-doctor", "")
	if code, ok := p.parse(flags, args); !ok {
		return code
	}
	if flags.NArg() > 0 {
		return p.misuse(errors.New("doctor takes flags only"), "doctor")
	}
	if err := valid(rlock.Options{Prefix: t.prefix}); err != nil { // which the programs could not use
		return p.misuse(err, "doctor")
	}
	key := t.prefix + *name
	t.prefix = ""
	return p.interruptibly(func(ctx context.Context, _ func()) int {
		v, code, ok := p.open(ctx, t)
		if !ok {
			return code
		}
		defer v.close()
		rdb, code, ok := p.connect(ctx, &t)
		if !ok {
			return code
		}
		log := make(deaf, 1)
		others, err := rlock.New(rdb, rlock.Options{UnlockTimeout: unlockTime, Logger: slog.New(log)}) // like another process
		if err != nil {
			return p.fail(exitInternal, err)
		}
		defer closeSoon(closeTime, others.Close, rdb.Close)
		d, err := deployed(ctx, v.rdb)
		if err != nil {
			return p.failed(ctx, v.at(err))
		}
		servers, all := d.masters, d.findings()
		var woken time.Duration // in the worst case
		var wakes []string
		for _, n := range servers {
			e := examination{node: n, locks: v.locks, others: others, deaf: log, cluster: v.rdb.Mode() == rueidis.ClientModeCluster,
				sentinels: v.rdb.Mode() == rueidis.ClientModeSentinel, user: *user, key: key}
			found, err := e.examine(ctx)
			if err != nil {
				return p.failed(ctx, v.at(nodeError{n.addr, err}))
			}
			all = merge(all, found)
			if e.woken > 0 {
				woken, wakes = max(woken, e.woken), append(wakes, n.addr)
			}
		}
		if len(wakes) > 0 {
			all = append(all, finding{"ok", "wake", fmt.Sprintf("a waiting process had the lock %s after the unlock", woken.Round(10*time.Microsecond)),
				"Measured with a test lock on each server; the longest time.", wakes})
		}
		return p.report(all, servers, *asJSON)
	})
}

// findings are what is wrong with the nodes that do not answer.
func (d *deployment) findings() (all []finding) {
	var addrs []string
	for _, err := range d.down {
		addrs = append(addrs, err.addr)
		means := "If it is a master, the locks in its slots fail until its replica has taken over."
		switch {
		case d.unknown:
		case d.unserved == 0:
			means = "It serves no slots: other masters serve all of them. As a replica it can replace none of them until it is back."
		}
		all = append(all, finding{"warn", "nodes", err.Error(), means, []string{err.addr}})
	}
	if d.unserved > 0 {
		if addrs == nil {
			for _, n := range d.masters {
				addrs = append(addrs, n.addr)
			}
		}
		all = append(all, finding{"bad", "cluster", fmt.Sprintf("no master answers for %d of the %d slots", d.unserved, slots),
			"Locks with names in these slots fail until a replica takes over or the master is back. With cluster-require-full-coverage no, the cluster calls its state ok all the same.",
			addrs})
	}
	return all
}

// merge adds findings, and joins those that servers share.
func merge(all, more []finding) []finding {
	for _, f := range more {
		i := slices.IndexFunc(all, func(g finding) bool { return g.Check == f.Check && g.Found == f.Found && g.Status == f.Status })
		if i >= 0 {
			all[i].Servers = append(all[i].Servers, f.Servers...)
			continue
		}
		// Behind the others of the same check.
		i = len(all)
		for i > 0 && slices.ContainsFunc(all, func(g finding) bool { return g.Check == f.Check }) && all[i-1].Check != f.Check {
			i--
		}
		all = slices.Insert(all, i, f)
	}
	return all
}

// report prints findings, and returns the exit code.
func (p *program) report(all []finding, servers []node, asJSON bool) int {
	s := p.screen()
	colour := map[string]func(string) string{"ok": s.good, "warn": s.bold, "bad": s.bad, "unknown": s.bold}
	code := 0
	for _, f := range all {
		if f.Status == "bad" {
			code = exitFailed
		}
		at := ""
		if slices.ContainsFunc(servers, func(n node) bool { return !slices.Contains(f.Servers, n.addr) }) {
			at = strings.Join(f.Servers, ",")
		}
		switch {
		case asJSON:
			p.json(f)
		case !isTerminal(p.out):
			table(p.out, nil, [][]string{{f.Status, f.Check, f.Found, f.Means, cmp.Or(at, "all")}}, false)
		default:
			if at != "" {
				at = "  (" + at + ")"
			}
			fmt.Fprintf(s, "%s %-12s %s%s\n", colour[f.Status](fmt.Sprintf("%-8s", f.Status)), f.Check, clean(f.Found), at)
			wrap(s, clean(f.Means), strings.Repeat(" ", 22), 100)
		}
	}
	return code
}

// wrap breaks a text into indented lines of at most width.
func wrap(w io.Writer, text, indent string, width int) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(indent)+len(line)+1+len(word) > width {
			fmt.Fprintln(w, indent+line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	if line != "" {
		fmt.Fprintln(w, indent+line)
	}
}
