package lua

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var acquireScript = script{Text("acquire"), "9af2703428b3d0be94af03fd1eda37aa30e5257a"}

// Status is the answer to an acquire. The zero value is no answer, so that it cannot be mistaken for success.
type Status int8

const (
	// Acquired means that the owner holds the lock, as deep as requested.
	Acquired Status = iota + 1
	// Held means that another owner holds the lock.
	Held
	// Lost means that the hold to re-enter or adopt is gone.
	Lost
)

// AcquireArgs says who wants which lock.
type AcquireArgs struct {
	Name  string
	Side  Side
	Fence string // key of the fencing counter; "" for a lock without tokens, and for a Reader
	Owner string
	Lease time.Duration // sent in whole milliseconds
	Count int           // the owner's count after this call, 1 for a first acquire

	// Within is the field of a hold on the other side of a read/write lock; "": none. For a Reader that is the Writer
	// around it, for a Writer the Reader that it replaces.
	Within string

	Replicas    int           // wait until so many replicas have the lock; 0: for none
	ReplicaWait time.Duration // the longest such wait, and the longest wait for a connection before it; sent in whole milliseconds
	Connections *Connections  // of this client, if Replicas is above 0; nil: no bound on goroutines left behind

	// Queue is the key of the queue to join if another owner holds the lock; "": none. On a read/write lock it holds
	// the marks of waiting writers: a Reader lets these go first, and a refused Writer leaves one.
	Queue      string
	GrantLease time.Duration // of a grant to another process there, or how long a mark reserves a free lock; as above
	Listens    bool          // for a Writer with a Queue: its process listens on a channel of its own
	Short      bool          // with a Queue: Lease may be shorter than a grant's, so the owner asks before it uses a grant

	// Fair is for the first acquire of a fair lock, instead of Fence, Queue and GrantLease.
	Fair Fair
	Join bool // the owner joins the queue if it cannot have the lock

	// Ticket is the field of a ticket that has the lock: Owner takes the lock from it, or is Lost. It is a first
	// acquire.
	Ticket string

	Publish Publish // for a fair lock, a Queue, and a Ticket
}

// AcquireReply is Redis's answer.
type AcquireReply struct {
	Status Status
	Token  int64         // fencing token, if Acquired and AcquireArgs.Fence was given
	TTL    time.Duration // remaining time of the other hold, if Held; negative: no expiry
	Holder string        // field of an owner, if Held; "" if unseen, or if a fair lock is free for another waiter
	Joined bool          // the owner is in the queue, if Held
	Place  int           // in the queue of processes, from 1 on; 0: none, or unknown
	Behind bool          // it has just joined a fair lock's queue, behind a hold or a waiter that may be Redisson's
	Other  bool          // if Held: only one of the two, the holder and the request, is of a read/write lock

	WithoutQueue bool // the queue is unchanged: the call was repeated without it
	NoQueue      bool // because the user may not use queues

	// Unconfirmed says why it is unknown whether enough replicas have the Acquired lock.
	Unconfirmed error
}

// Acquire takes the lock or re-enters it. A repeat with the same arguments after a lost reply does not count twice.
func Acquire(ctx context.Context, c rueidis.Client, a AcquireArgs) (AcquireReply, error) {
	var result rueidis.RedisResult
	var unconfirmed error
	if a.Replicas > 0 {
		result, unconfirmed = acquireAndWait(ctx, c, a)
	} else {
		result = a.send(ctx, c)
	}
	reply, err := refused(result)
	if err == nil && reply.Status != Held {
		reply, err = granted(result)
	}
	if reply.Status == Lost && a.Count == 1 && a.Within == "" && a.Ticket == "" {
		err = errors.New("unknown reply -1 to a first acquire")
	}
	if err != nil {
		if without, forbidden := noQueue(err); without && a.Queue != "" {
			a.Queue = ""
			answered(ctx)
			reply, err = Acquire(ctx, c, a)
			reply.WithoutQueue, reply.NoQueue = true, forbidden
			return reply, err
		}
		name := "acquire"
		if a.Ticket != "" {
			name = "adopt"
		}
		return AcquireReply{}, failed(name, err, a.Fence, a.Queue, a.Fair.List, a.Fair.Times)
	}
	if a.Fair.List != "" {
		reply.Behind, reply.Place = reply.Place == 2, 0
	}
	reply.Unconfirmed = unconfirmed
	return reply, nil
}

func (a AcquireArgs) send(ctx context.Context, c doer) rueidis.RedisResult {
	if a.Ticket != "" {
		return a.adopt(ctx, c)
	}
	if a.Fair.List != "" {
		args := append([]string{a.Owner, millis(a.Lease), flag(a.Join)}, a.Fair.tail(a.Publish)...)
		return fairAcquireScript.run(ctx, c, []string{a.Name, a.Fair.List, a.Fair.Times}, args...)
	}
	queue := a.Queue
	if a.Side == Whole && a.Count > 1 { // it waits for nobody
		queue = ""
	}
	var keys [3]string
	var args [7]string
	s := acquireScripts[a.Side]
	if a.Side == Writer && a.Fence != "" {
		s = fencedWriteScript
	}
	return s.run(ctx, c, keysOf(&keys, a.Name, a.Fence, queue), a.args(&args)...)
}

// args puts the arguments into the caller's memory. Each takes Redis a third as long as a command in the script.
func (a AcquireArgs) args(memory *[7]string) []string {
	args, count, queue := memory[:0], strconv.Itoa(a.Count), a.Queue != ""
	args = append(args, a.Owner, millis(a.Lease))
	switch {
	case a.Side == Reader && queue:
		return append(args, count, a.Within, millis(a.GrantLease), a.Publish.command(), a.Publish.Name)
	case a.Side == Writer && queue:
		listens := ""
		if a.Listens {
			listens = a.Publish.Name
		}
		return append(args, count, a.Within, a.Publish.command(), listens)
	case a.Side != Whole:
		return append(args, count, a.Within)
	case a.Count > 1:
		return append(args, "", count)
	case !queue:
		return args
	}
	args = append(args, millis(a.GrantLease), a.Publish.Name)
	switch {
	case a.Publish.Sharded:
		args = append(args, a.Publish.command())
	case a.Short:
		args = append(args, "")
	}
	if a.Short {
		args = append(args, "1")
	}
	return args
}

// granted reads a number as the reply of the acquire script: the token, or -1.
func granted(r rueidis.RedisResult) (AcquireReply, error) {
	n, err := number(r)
	switch {
	case err != nil:
		return AcquireReply{}, err
	case n >= 0:
		return AcquireReply{Status: Acquired, Token: n}, nil
	case n == -1:
		return AcquireReply{Status: Lost}, nil
	}
	return AcquireReply{}, fmt.Errorf("unknown reply %d", n)
}

// refused reads the list by which the acquire script reports another holder. Its status is 0 if the reply is not a
// list.
func refused(r rueidis.RedisResult) (AcquireReply, error) {
	m, err := r.ToMessage()
	if err != nil {
		return AcquireReply{}, unanswered(err)
	}
	if !m.IsArray() {
		return AcquireReply{}, nil
	}
	s, err := m.ToArray()
	if err != nil {
		return AcquireReply{}, err
	}
	s, other := cutOther(s)
	if len(s) != 3 || !s[0].IsInt64() || !s[1].IsString() || !s[2].IsInt64() {
		return AcquireReply{}, errors.New("the reply is not a number, a text and a number")
	}
	ttl, _ := s[0].ToInt64()
	holder, _ := s[1].ToString()
	joined, _ := s[2].ToInt64()
	if joined < 0 {
		return AcquireReply{}, fmt.Errorf("unknown reply %d for the queue", joined)
	}
	return AcquireReply{Status: Held, TTL: duration(ttl), Holder: holder, Joined: joined > 0, Place: int(joined), Other: other}, nil
}

// cutOther removes the final 1 of a refusal, which means that a lock of another kind is in the way.
func cutOther(s []rueidis.RedisMessage) (rest []rueidis.RedisMessage, other bool) {
	if len(s) != 4 {
		return s, false
	}
	one, err := integer(s[3])
	if err != nil || one != 1 {
		return s, false
	}
	return s[:3], true
}
