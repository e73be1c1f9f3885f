package rlock

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/counter"
	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/ear"
	"github.com/go-rlock/rlock/internal/tenure"
)

// Client makes locks. A process needs one for each Redis: a hold of one Client is not re-entered through another. All of its
// methods are safe for concurrent use.
//
// It runs these goroutines, and [Client.Close] ends all of them:
//
//   - one each to keep the leases, the places of waiters for fair locks, and the [Options].Label;
//   - two to receive messages to the Client, from the first lock taken with [WithAsked] on;
//   - one for each label of another Client while it is looked up;
//   - one for each Redis node with a waiter, with a connection of its own;
//   - when needed, one to undo the effects of unanswered calls; on a cluster, one for each slot;
//   - one for each latch with a waiter, one for each latch being changed, and one for each semaphore in use;
//   - one for each call in flight; up to 64 of them stay for the next calls, until they were idle for one to two seconds;
//   - with [Options].Deadlock, one for each Lock while it looks for a deadlock, and for each message about one;
//   - one each to call the Logger and the Trace, while they have something to report;
//   - one for each section that a loss or Close ends, until the methods of its parent ctx have returned.
type Client struct {
	engine     *tenure.Client
	counters   *counter.Counters
	prefix     string // of all keys
	trace      *Trace // nil: nobody wants to know
	closeRedis func() // the rueidis client that Open made; nil: it is the caller's
}

// New returns a Client that keeps its locks in the Redis of rdb: a standalone, sentinel or cluster client of rueidis. It sends
// nothing. The caller closes rdb, after the Client.
//
// While something waits for a lock, and for a few seconds more, one connection of rdb's blocking pool is in use for each node
// concerned (see BlockingPoolSize of [rueidis.ClientOption]). With Options.Replicas, each acquire in flight needs one more. With
// ConnLifetime, rueidis repeats commands by itself; the Client allows for that.
//
// New fails if rdb is nil or an option is out of range.
func New(rdb rueidis.Client, o Options) (*Client, error) {
	if rdb == nil {
		return nil, errors.New("rlock: rueidis client is nil")
	}
	o, err := o.validate()
	if err != nil {
		return nil, err
	}
	t := newTellers(o)
	id, err := uuid.NewRandom()
	if err != nil {
		return nil, fmt.Errorf("rlock: client id: %w", err)
	}
	c := tenure.New(rdb, id.String(), o.forEngine(t))
	deadlock.Watch(ear.New(c, o.Label), o.Deadlock.terms(rdb, o.Label, t))
	return &Client{engine: c, counters: counter.New(c), prefix: o.Prefix, trace: o.Trace}, nil
}

// forEngine are the options of the engine. They have been validated.
func (o Options) forEngine(t *tellers) tenure.Options {
	return tenure.Options{
		Errors: tenure.Errors{
			Closed: ErrClosed, Lost: ErrLost, NotHeld: ErrNotHeld, NotReplicated: ErrNotReplicated, Reentry: ErrReentry, Upgrade: ErrUpgrade,
			NotExported: ErrNotExported, Ticket: ErrTicket, Pending: ErrPending,
			Loss: newLostError, NotAcquired: newNotAcquired, Unreachable: unreachable, Failed: newLockError,
		},
		Tell:            t,
		WatchdogTimeout: o.WatchdogTimeout,
		UnlockTimeout:   o.UnlockTimeout,
		HandOff:         tenure.RunBound(o.HandOff),
		Replicas:        o.Replicas,
		ReplicaTimeout:  o.ReplicaTimeout,
		Renewed:         t.onRenewal(),
		PlainPubSub:     o.PlainPubSub,
	}
}

// Close stops the Client. Waiting calls return [ErrClosed], and section contexts are cancelled with a
// [LostError] that satisfies ErrClosed. Later calls return ErrClosed.
//
// Close waits for all calls in flight, even for a Lock that cannot be cancelled, and gives back any locks they get. That takes no time
// if Redis answers, and about five seconds if it does not. Then Close gives [Options].Logger and Trace up to a second for queued
// reports, and drops the rest. In that second it also waits for the methods of contexts given to Lock, if they block.
//
// When Close returns, no subscription is left, and no goroutine but a bounded number waiting for a connection from rueidis, those waiting for
// room in rueidis to queue a command, and those in a Logger or Trace function, or a ctx's method, that has not returned.
//
// Close may be called more than once, and concurrently with everything. It does not release holds, since their sections may still
// be running: an unlock after Close releases as before, and a hold that is not unlocked ends with its lease.
//
// It also closes the connections of a Client from [Open] or [OpenWith]; if Redis is silent, that takes up to one second more for each. An
// unlock after that returns [ErrUnreachable]: end the sections first, or call [Client.Shutdown].
func (c *Client) Close() {
	c.check()
	c.engine.Close()
	c.disconnect()
}

// disconnect closes what Open has made, when the engine has ended. It returns when that is closed, whoever began.
func (c *Client) disconnect() {
	if c.closeRedis != nil {
		c.closeRedis()
	}
}

// ID returns the Client's part of its owner fields in Redis, a UUID: see [Owner].
func (c *Client) ID() string {
	c.check()
	return c.engine.ID
}

// check panics for what can only be a mistake in the program.
func (c *Client) check() {
	if c == nil || c.engine == nil {
		panic("rlock: a Client that was not made by New")
	}
}
