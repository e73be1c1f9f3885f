package main

import (
	"context"
	"fmt"
	"time"
)

// circleTime bounds the wait for answers per look.
const circleTime = 300 * time.Millisecond

// circles are the deadlocks of one look.
type circles struct {
	many int
	of   map[string]int // a deadlock's number, by the owners of its holds
	err  error          // why the deadlocks are unknown
}

// circles asks the processes as "rlock deadlocks" does, and delivers one result.
func (v *viewer) circles(ctx context.Context) <-chan circles {
	found := make(chan circles, 1)
	go func() { // ends with the answers, or with ctx
		w, err := v.standstills(ctx, circleTime)
		found <- circlesOf(w, err)
	}()
	return found
}

func circlesOf(w standstills, err error) circles {
	c := circles{err: err, of: make(map[string]int)}
	for _, cycle := range cyclesOf(w.waits) {
		c.many++
		for j := range cycle {
			for _, h := range held(cycle, j) {
				if c.of[h.Owner] == 0 {
					c.of[h.Owner] = c.many
				}
			}
		}
	}
	return c
}

// mark marks the locks that have a holder in a deadlock.
func (c circles) mark(locks []wanted) {
	for i := range locks {
		for _, h := range locks[i].Holders {
			if n := c.of[h.Owner]; n > 0 {
				locks[i].Deadlock = n
				break
			}
		}
	}
}

// text is the deadlocks' part of the screen's first line.
func (c circles) text() string {
	switch {
	case c.err != nil:
		return "deadlocks unknown  "
	case c.many == 0:
		return ""
	case c.many == 1:
		return "1 deadlock  "
	}
	return fmt.Sprintf("%d deadlocks  ", c.many)
}
