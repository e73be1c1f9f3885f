package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-rlock/rlock/rlock"
)

const usageUnlock = `usage: rlock unlock -force [flags] NAME

Frees the lock NAME, of any kind and whoever holds it, and wakes its waiters.
Until the holder notices, at its next renewal or unlock, two owners can be in
the section: first make sure that the holder is dead.

Shows the holder, asks for confirmation, and frees the lock of that holder only:
whoever took it meanwhile keeps it.

  -force       required
  -yes         do not ask; needed if stdin is not a terminal
` + usageTarget + `
exit code  0 it was freed   1 it was not held, or you said no   2 usage
           125 Redis failed
`

func (p *program) unlock(args []string) int {
	var t target
	flags := p.flags("unlock", &t)
	force := flags.Bool("force", false, "")
	yes := flags.Bool("yes", false, "")
	name, code, ok := p.parseName(flags, args)
	switch {
	case !ok:
		return code
	case !*force:
		return p.misuse(errors.New("only the holder unlocks a lock; to free it anyway, use -force"), "unlock")
	case !*yes && !isTerminal(p.in):
		return p.misuse(errors.New("no terminal to ask at: use -yes"), "unlock")
	}
	return p.interruptibly(func(ctx context.Context, _ func()) int {
		v, seen, code, ok := p.see(ctx, t, name)
		if !ok {
			return code
		}
		defer v.close()
		if seen.isCounter() {
			return p.failed(ctx, v.at(fmt.Errorf("%q: %w", name, errNoLock)))
		}
		if seen.Held {
			v.addHosts(ctx, &seen.state)
			v.addLabelsOfWaiters(ctx, seen)
			seen.noteUnlabelled()
			seen.print(p.out)
			if !*yes {
				switch confirmed, err := p.confirm(ctx); {
				case err != nil:
					return endCode(ctx)
				case !confirmed:
					return p.fail(exitFree, fmt.Errorf("%q: left alone", name))
				}
			}
			for _, h := range seen.Holders[:min(len(seen.Holders), mostLines)] {
				v.announceForced(ctx, h.Owner)
			}
			freed, err := v.lock(seen).ForceUnlockOwners(ctx, seen.owners()...)
			if err == nil && freed {
				fmt.Fprintln(p.out, "freed")
				return 0
			}
			var now *view
			if err == nil {
				now, err = v.inspect(ctx, name)
			}
			if err != nil {
				return p.failed(ctx, v.at(err))
			}
			if now.Held {
				return p.fail(exitFree, fmt.Errorf("%q: left alone: now held by %s", name, now.holders()))
			}
		}
		return p.fail(exitFree, fmt.Errorf("%q: not held", name))
	})
}

// lock returns a handle of the lock's observed kind.
func (v *viewer) lock(seen *view) *rlock.Mutex {
	switch seen.Kind {
	case "fair":
		return v.locks.FairMutex(seen.Name)
	case "read":
		return v.locks.RWMutex(seen.Name).Read()
	case "write":
		return v.locks.RWMutex(seen.Name).Write()
	}
	return v.locks.Mutex(seen.Name)
}

// owners returns a lock's owners, or the ids of permits.
func (s *state) owners() []string {
	owners := make([]string, 0, len(s.Holders)+len(s.Permits))
	for _, h := range s.Holders {
		owners = append(owners, h.Owner)
	}
	for _, p := range s.Permits {
		owners = append(owners, p.ID)
	}
	return owners
}

// confirm asks the user. Its error is ctx's.
func (p *program) confirm(ctx context.Context) (bool, error) {
	fmt.Fprint(p.err, "Free it under its holder? [y/N] ")
	answer := make(chan string, 1)
	go func() { // ends with the answer, or with the process
		text, _ := bufio.NewReader(p.in).ReadString('\n')
		answer <- text
	}()
	select {
	case text := <-answer:
		text = strings.ToLower(strings.TrimSpace(text))
		return text == "y" || text == "yes", nil
	case <-ctx.Done():
		fmt.Fprintln(p.err)
		return false, ctx.Err()
	}
}
