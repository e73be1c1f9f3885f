package calls

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

const (
	maxSends = 8                // bounds the calls under way beside which others are still sent at once
	maxJoint = 32               // bounds the commands of one call, and so for how long the first waits for the last
	patience = time.Millisecond // after so long without an answer the next call is sent all the same
)

// joint sends commands together. Up to maxSends calls are sent at once. Beside these a command waits until one is answered, and goes with all
// others that wait by then: so a crowd needs a fraction of the switches, and of the system calls on both sides. No crowd waits for a
// connection that is silent, or far away: each patience without an answer one more call is sent.
//
// This is for one server, and commands under a [Context], whose caller has left or waits elsewhere. The nodes of a cluster do not wait for each
// other.
type joint struct {
	rueidis.Client

	mu       sync.Mutex // guards the following
	sends    int        // the calls under way
	waiting  []*command // the oldest first
	taken    int        // how often the first of the waiting was sent
	watch    *time.Timer
	watching bool // the timer runs
	seen     int  // taken when it was set
}

// command is one that waits.
type command struct {
	cmd    rueidis.Completed
	ctx    *Context
	next   chan struct{} // a token when it is to be sent, or was answered
	leads  bool          // it is to be sent, by its caller, with others
	result rueidis.RedisResult
}

// Joint returns rdb, or a client that sends what is to be sent to it at about the same time together. rueidis's own retries, and what is
// wrapped around a client, are for single commands.
func Joint(rdb rueidis.Client) rueidis.Client {
	if repeatsOf(rdb) != nobody {
		return rdb
	}
	return &joint{Client: rdb}
}

// Do sends a command, alone or with others.
func (j *joint) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	own, ok := ctx.(*Context)
	if !ok || j.Mode() == rueidis.ClientModeCluster {
		return j.Client.Do(ctx, cmd)
	}
	j.mu.Lock()
	if j.sends < maxSends {
		j.sends++
		j.mu.Unlock()
		defer j.ended()
		return j.Client.Do(ctx, cmd)
	}
	c := j.wait(own, cmd)
	j.mu.Unlock()
	if <-c.next; c.leads {
		j.send(c)
	}
	return c.result
}

// wait puts a command in the queue. mu is held.
func (j *joint) wait(ctx *Context, cmd rueidis.Completed) *command {
	c := &command{cmd: cmd, ctx: ctx, next: make(chan struct{}, 1)}
	if j.waiting = append(j.waiting, c); !j.watching {
		j.watching = true
		j.look()
	}
	return c
}

func (j *joint) send(first *command) {
	defer j.ended()
	j.mu.Lock()
	n := min(len(j.waiting), maxJoint-1)
	others := slices.Clone(j.waiting[:n])
	j.waiting = slices.Delete(j.waiting, 0, n)
	j.mu.Unlock()
	if n == 0 {
		first.result = j.Client.Do(first.ctx, first.cmd)
		return
	}
	ctx := &Context{values: context.Background(), deadline: first.ctx.deadline, done: first.ctx.done}
	cmds := make([]rueidis.Completed, 1, maxJoint)
	cmds[0] = first.cmd
	for _, c := range others {
		cmds = append(cmds, c.cmd)
		if c.ctx.deadline.After(ctx.deadline) {
			ctx.deadline = c.ctx.deadline
		}
	}
	results := j.Client.DoMulti(ctx, cmds...)
	first.result = results[0]
	for i, c := range others {
		c.result = results[i+1]
		c.next <- struct{}{}
	}
}

// ended ends a call. The first of those that wait, if any, is sent in its place.
func (j *joint) ended() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sends--
	j.sendNext()
}

// sendNext has the first of the waiting sent. mu is held.
func (j *joint) sendNext() {
	if len(j.waiting) == 0 {
		return
	}
	j.sends++
	j.taken++
	c := j.waiting[0]
	j.waiting = slices.Delete(j.waiting, 0, 1)
	c.leads = true
	c.next <- struct{}{}
}

// look sets the timer. mu is held.
func (j *joint) look() {
	j.seen = j.taken
	if j.watch == nil {
		j.watch = time.AfterFunc(patience, j.looks)
	} else {
		j.watch.Reset(patience)
	}
}

// looks sends the first of the waiting if no call was answered for a while.
func (j *joint) looks() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.taken == j.seen {
		j.sendNext()
	}
	if j.watching = len(j.waiting) > 0; j.watching {
		j.look()
	}
}
