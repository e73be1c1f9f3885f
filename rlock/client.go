package rlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/counter"
	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/ear"
	"github.com/go-rlock/rlock/internal/tenure"
)

// Client makes locks. A process needs one for each Redis: a hold of one Client is not re-entered through another.
//
// Its methods, and those of the handles that it makes, are safe for concurrent use. A handle does no I/O when it is made, and has no state of
// its own. Its methods report an empty name and invalid options, and panic if no Client made it.
//
// A name may be any bytes. Its Redis key is [Options].Prefix and the name; if that holds something else, calls return an error and leave it
// unchanged. On a cluster a hash tag in braces determines the slot; only the name of a plain [Client.Mutex] may have other braces, and that of a
// latch none.
//
// A Client runs a few goroutines, and one for each call in flight, latch or semaphore in use, and Redis node with a waiter, which has a
// connection of its own. [Client.Close] ends all of them.
type Client struct {
	engine     *tenure.Client
	counters   *counter.Counters
	prefix     string // of all keys
	trace      *Trace // nil: nobody wants to know
	closeRedis func() // ends the rueidis client that Open made, and returns when it has ended, whoever began
}

// New returns a [Client] that keeps its locks in the Redis of rdb: a standalone, sentinel or cluster client of rueidis, with the settings of
// docs/operating.md. It sends nothing. The caller closes rdb, after the Client. New fails if rdb is nil or an option is out of range.
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
	return &Client{engine: c, counters: counter.New(c), prefix: o.Prefix, trace: o.Trace, closeRedis: func() {}}, nil
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

// Close stops the Client. Waiting and later calls return [ErrClosed], and section contexts are cancelled with a [LostError] that satisfies it.
// It releases no holds, since their sections may still be running: a later unlock does, or the end of the lease. To end in order, call
// [Client.Shutdown].
//
// Close waits for all calls in flight, and gives back any locks they get: about five seconds if Redis does not answer. Then [Options].Logger and
// Trace, and the methods of contexts given to Lock, have up to a second (docs/internals/promises.md lists what may remain). It also closes the
// connections of [Open] and [OpenWith], after which an unlock returns [ErrUnreachable]. Close may be called more than once.
func (c *Client) Close() {
	c.check()
	c.engine.Close()
	c.closeRedis()
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

// Shutdown closes the Client when its sections have ended. From the call on, every Lock that competes returns [ErrClosed], including those that
// already wait. Running sections are renewed, and can unlock, re-enter, read as the writer, upgrade and downgrade. After the last unlock,
// Shutdown does what [Client.Close] does, and returns nil. When ctx is done first, the remaining sections are cancelled, and have one more
// second to unlock; then it closes the Client and returns ctx.Err(). It may be called more than once.
func (c *Client) Shutdown(ctx context.Context) error {
	c.check()
	needs(ctx)
	defer c.closeRedis()
	return c.engine.Shutdown(ctx)
}

// Stats are figures about a [Client], see [Client.Stats]. Counters start when the Client is made.
type Stats struct {
	Holds   int // not unlocked yet, sections of permits included
	Waiting int // goroutines that wait for a lock; for a quorum one at most
	Idle    int // kept with nobody inside, see [WithLinger]

	Acquired uint64 // holds so far; re-entries are not among them
	HandOffs uint64 // of these, by an unlock in this process
	Shared   uint64 // of these, readers that joined others here
	Grants   uint64 // of these, by an unlock in another process, without asking Redis
	Kept     uint64 // of these, of kept locks
	Lost     uint64 // of these, lost

	Exported uint64 // holds that [Export] turned into tickets
	Adopted  uint64 // holds that [Client.Adopt] made of tickets; Acquired includes them
}

// Stats returns figures about the locks of the Client, without asking a server, in a millisecond at most.
func (c *Client) Stats() Stats {
	c.check()
	return Stats(c.engine.Stats())
}
