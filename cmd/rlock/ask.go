package main

import (
	"context"
	"fmt"
)

const usageAsk = `usage: rlock ask [flags] NAME

Asks the holder to give up the lock NAME, as a waiter would, without waiting.
The request reaches programs that took the lock WithAsked and "rlock run -asked"
commands; they decide what to do. A lock kept by WithLinger is given up if its
section is empty.
` + usageTarget + `
exit code  0 a holder was asked   1 the lock is not held, or its holder cannot
           be asked   2 usage   125 Redis failed
`

// ask asks the holder of a lock to give it up.
func (p *program) ask(args []string) int {
	var t target
	flags := p.flags("ask", &t)
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
		switch {
		case seen.isCounter():
			return p.failed(ctx, v.at(fmt.Errorf("%q: %w", name, errNoLock)))
		case !seen.Held:
			return p.fail(exitFree, fmt.Errorf("%q: not held", name))
		}
		asking, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		heard, err := v.locks.Ask(asking, name)
		switch {
		case err != nil:
			return p.failed(ctx, v.at(err))
		case !heard:
			return p.fail(exitFree, fmt.Errorf("%q: held by %s, which did not take it WithAsked", name, seen.holders()))
		}
		fmt.Fprintln(p.out, "asked", seen.holders())
		return 0
	})
}
