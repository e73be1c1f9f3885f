package main

import (
	"context"
	"os"
	"slices"
	"syscall"
	"time"
)

// child is the command that runs inside the lock. It leads its own process group: signals reach all its descendants, and once it is stopped
// only rlock continues it.
type child struct {
	job   job
	stops chan syscall.Signal // signals that stopped the command
	told  chan syscall.Signal // what the witness tells; closed when it has ended
	ended chan struct{}       // closed when the command has ended

	// Set before ended is closed.
	code      int
	interrupt func() // ends rlock by SIGINT, as the command ended; nil if it ended otherwise
}

// start runs a command with our own standard streams. until is when the lock ceases to be trusted.
func (p *program) start(e *errand, env []string, until time.Time) (*child, error) {
	c := &child{stops: make(chan syscall.Signal, 1), told: make(chan syscall.Signal, 64), ended: make(chan struct{})}
	if err := c.begin(p, e, env, until); err != nil {
		c.leave()
		return nil, err
	}
	return c, nil
}

// keeping is the lock as follow sees it.
type keeping struct {
	held      context.Context
	killAfter time.Duration
	renewed   <-chan struct{}  // the lock is trusted for longer
	until     func() time.Time // until when
	asked     <-chan struct{}  // closed when somebody waits for the lock; nil: ignored
	// yield reports the waiter and returns the signal to send for it. It does not block.
	yield func() syscall.Signal
	// sure reports whether the lock is still held after this process was stopped. It blocks until that is known.
	sure func() bool
	// lost reports that the command is being stopped. It does not block.
	lost func()
}

// follow waits for the command's end and returns its exit code. It passes signals on, and stops and continues together with the command. If
// the lock is lost it first terminates the command, and kills it after grace.
func (c *child) follow(k keeping, signals <-chan os.Signal) int {
	defer c.leave()
	passing := newRelay(c.signal, c.witness())
	told := c.told
	var force <-chan time.Time
	lost, asked := k.held.Done(), k.asked
	end := func() {
		lost = nil
		c.end()
		force = time.After(k.killAfter)
		k.lost()
	}
	goOn := func() { // after a stop
		switch {
		case lost == nil:
			c.end()
		case k.sure():
			c.trust(k.until())
			c.resume()
		default:
			end()
		}
	}
	for {
		select {
		case <-c.ended:
			if force != nil || k.held.Err() != nil {
				c.kill() // what the command has left behind must not go on either
			}
			return c.code
		case s := <-signals:
			n, ok := s.(syscall.Signal)
			switch {
			case !ok:
			case !slices.Contains(jobSignals(), s):
				passing.got(n, c.prompt(n), time.Now())
			case c.asked(n):
				goOn()
			}
		case s, ok := <-told:
			if !ok {
				told = nil
				passing.witnessGone(time.Now())
				continue
			}
			passing.told(s, time.Now())
		case <-passing.next(time.Now()):
			passing.due(time.Now())
		case s := <-c.stops:
			if lost == nil || c.stopped(s) {
				goOn()
			}
		case <-asked:
			asked = nil
			if lost != nil {
				c.signal(k.yield())
			}
		case <-lost:
			end()
		case <-k.renewed:
			c.trust(k.until())
		case <-force:
			c.kill()
		}
	}
}
