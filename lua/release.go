package lua

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var releaseScript = script{Text("release"), "db1ae36bf511f8b189350df7dbf91ae7c76fe4b1"}

// ReleaseArgs says who releases which lock, and who gets it.
type ReleaseArgs struct {
	Name    string
	Side    Side   // a Reader or a Writer has no Next, and so needs no Fence
	Fence   string // key of the fencing counter, which is raised for the next owner; "" for a lock without tokens
	Owner   string
	Count   int           // the owner's count after this call, 0 to end the hold
	Waited  bool          // the owner may have had a place in the Queue: if it has been told that the lock is free, the next one is
	Lease   time.Duration // of the remaining hold, or of Next; sent in whole milliseconds
	Publish Publish       // used if Count is 0
	Listens bool          // a writer's process listens to the channel

	Next string // owner of this process that waits for the lock, if Count is 0; "": none
	Stay bool   // Next gets the lock even if others are in the queue
	// Spare is the number of further tokens for Next, which passes them on with the lock; only with a Fence and a
	// Queue.
	Spare int
	// With Taken set and Count 0, the placeholder owner Next keeps the lock until Taken. Lease is unused then. A
	// message makes waiters ask for the remaining time.
	Taken time.Time
	// With Ticket as well, that field has the lock until Taken. Next is unused.
	Ticket string
	Queue

	Fair Fair // instead of Fence, Next, Stay and Queue, if Count is 0
}

// Queue is the queue of the processes waiting for a lock. The zero value is none: all waiters get a message, and ask.
type Queue struct {
	Key        string
	GrantLease time.Duration // of a grant to another process; sent in whole milliseconds
	Short      bool          // of Next, as in AcquireArgs
}

// Released is the answer to a release.
type Released int8

const (
	// NotHeld means that the owner does not hold the lock. A repeat of a release that ended the hold gets the same
	// answer.
	NotHeld Released = iota + 1
	// Freed means that the owner's count was lowered, or that the lock is free and waiters got a message.
	Freed
	// Granted means that another process in the queue has the lock, and ReleaseArgs.Next is in the queue.
	Granted
	// HandedOff means that ReleaseArgs.Next has the lock.
	HandedOff
)

// ReleaseReply is Redis's answer.
type ReleaseReply struct {
	Status Released
	Token  int64 // fencing token of ReleaseArgs.Next, if HandedOff and ReleaseArgs.Fence was given
	Spare  int64 // how many tokens above Token it also owns

	// Several means, if Freed, that several connections listen to the unlock channel. A plain channel on a cluster
	// may have more listeners than Redis counts.
	Several bool
	// Outsiders means, if Freed, that others were told, who are slower to ask than this process: listeners out of the line, or the first in
	// line, which the server does not count.
	Outsiders bool
	// Redisson means that a waiter of Redisson's is behind the one in a fair lock's queue that has the lock, or was told.
	Redisson bool

	WithoutQueue bool // the queue is unchanged: the call was repeated without it
	NoQueue      bool // because the user may not use queues
}

// Release lowers the owner's count. At 0 the lock goes to ReleaseArgs.Next, to the first of the queue, or is free.
func Release(ctx context.Context, c rueidis.Client, a ReleaseArgs) (ReleaseReply, error) {
	var memory releaseMemory
	s, keys, args := a.call(&memory)
	reply, err := a.releasedBy(s.run(ctx, c, keys, args...))
	if err == nil || a.Key == "" && a.Fair.List == "" {
		return reply, err
	}
	if without, forbidden := noQueue(err); without {
		answered(ctx)
		reply, err = Release(ctx, c, a.withoutQueue())
		reply.WithoutQueue, reply.NoQueue = true, forbidden && a.Key != ""
	}
	return reply, err
}

// withoutQueue returns the same call without a queue.
func (a *ReleaseArgs) withoutQueue() ReleaseArgs {
	without := *a
	if a.Next == "" {
		without.Fence = ""
	}
	without.Queue, without.Fair = Queue{}, Fair{}
	return without
}

// releaseMemory is the caller's memory for a call's keys and arguments.
type releaseMemory struct {
	keys [3]string
	args [10]string
}

// call returns the script to send, with its keys and arguments.
func (a *ReleaseArgs) call(memory *releaseMemory) (s script, keys, args []string) {
	if a.Ticket != "" {
		return a.export()
	}
	if f := &a.Fair; f.List != "" {
		return fairReleaseScript, []string{a.Name, f.List, f.Times}, append([]string{a.Owner, millis(f.GrantLease)}, f.tail(a.Publish)...)
	}
	lease, goes := "0", ""
	switch {
	case a.Count == 0 && !a.Taken.IsZero():
		lease, goes = a.leftTaken(), "2"
	case a.Next != "":
		lease, goes = millis(a.Lease), flag(a.Stay)
	case a.Count > 0:
		lease = millis(a.Lease)
	}
	count, how := strconv.Itoa(a.Count), a.Publish.command()
	args = memory.args[:0]
	if a.Side != Whole {
		args = append(args, a.Owner, count, lease, how, a.Publish.Name)
		if a.Listens {
			args = append(args, "1")
		}
		return releaseScripts[a.Side], keysOf(&memory.keys, a.Name, "", a.Key), args // nobody is next
	}
	grant, waited := "", a.Waited && a.Count == 0
	if a.Key != "" {
		grant = millis(a.GrantLease)
	}
	if waited {
		count = "-1"
	}
	args = append(args, a.Owner, a.Publish.Name, grant, how, count, lease, a.Next, goes)
	switch { // each argument takes Redis a third as long as a command in the script
	case a.Next != "" && a.Key != "" && a.Fence != "" && a.Spare > 0:
		args = append(args, flag(a.Short), strconv.Itoa(a.Spare))
	case a.Next != "" && a.Short:
		args = append(args, "1")
	case a.Next != "":
	case a.Count > 0:
		args = args[:6]
	case waited && a.Key != "":
		args = args[:5]
	case a.Publish.Sharded:
		args = args[:4]
	case a.Key != "":
		args = args[:3]
	default:
		args = args[:2]
	}
	return releaseScript, keysOf(&memory.keys, a.Name, a.Fence, a.Key), args
}

func (a *ReleaseArgs) releasedBy(r rueidis.RedisResult) (ReleaseReply, error) {
	m, err := r.ToMessage()
	if err != nil {
		return ReleaseReply{}, failed(a.script(), unanswered(err), a.Fence, a.Key)
	}
	return a.released(m)
}

// released reads the reply of the release script: a number, or a list of the token and the number of spare ones.
func (a *ReleaseArgs) released(m rueidis.RedisMessage) (ReleaseReply, error) {
	reply, err := readReleased(m)
	if err != nil {
		return ReleaseReply{}, failed(a.script(), err, a.Fence, a.Key, a.Fair.List, a.Fair.Times)
	}
	return reply, nil
}

func readReleased(m rueidis.RedisMessage) (ReleaseReply, error) {
	if err := m.Error(); err != nil {
		return ReleaseReply{}, unanswered(err)
	}
	if m.IsArray() {
		tokens, err := integers(m)
		if err == nil && (len(tokens) < 1 || len(tokens) > 2 || tokens[0] < 0 || tokens[len(tokens)-1] < int64(len(tokens)-1)) {
			err = errors.New("the reply is not a token")
		}
		if err != nil {
			return ReleaseReply{}, err
		}
		reply := ReleaseReply{Status: HandedOff, Token: tokens[0]}
		if len(tokens) == 2 {
			reply.Spare = tokens[1]
		}
		return reply, nil
	}
	n, err := integer(m)
	switch {
	case err != nil:
		return ReleaseReply{}, err
	case n == 0:
		return ReleaseReply{Status: NotHeld}, nil
	case n == 1:
		return ReleaseReply{Status: Freed}, nil
	case n == 2:
		return ReleaseReply{Status: Granted}, nil
	case n == 3:
		return ReleaseReply{Status: Freed, Several: true}, nil
	case n == 4:
		return ReleaseReply{Status: Freed, Several: true, Outsiders: true}, nil
	case n == 5:
		return ReleaseReply{Status: Granted, Redisson: true}, nil
	case n == 6:
		return ReleaseReply{Status: Freed, Redisson: true}, nil
	case n == 7:
		return ReleaseReply{Status: NotHeld, Redisson: true}, nil
	}
	return ReleaseReply{}, fmt.Errorf("unknown reply %d", n)
}
