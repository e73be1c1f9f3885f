package tenure

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/internal/tell"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// Client is the state shared by the locks of a Client.
type Client struct {
	RDB     rueidis.Client
	Calls   *calls.Calls // refuses new calls when Close begins; stopped after closeGrace
	ID      string       // the client part of its owner fields
	Options Options
	Errors  *Errors
	Hub     *pubsub.Hub
	Leases  *lease.Renewer
	Cluster *Topology // nil: there is none, which is known from the start
	// HandsOff: an unlock gives the lock to a waiter, here or in another process. Replicas do not confirm such a grant.
	HandsOff   bool
	GrantLease time.Duration // of a grant to another process of this Client's watchdog time
	PlaceLease time.Duration // for how long a place lasts without a refresh, for waiters of this Client
	Attempt    time.Duration // that of its locks

	noQueues    atomic.Bool     // the ACL user may not use the queues of processes
	noMarks     atomic.Bool     // nor writers' marks
	Connections lua.Connections // for Options.Replicas
	sweepers    *sweep.Sweepers
	Counts      counters
	Open        OpenTenures
	Foreign     tell.Each // cancelling sections' contexts, see Endings

	// See observer.go. Not changed once locks are made.
	Features  []any
	observers []Observer   // of all locks
	Cache     Cache        // nil: none
	Kept      atomic.Int32 // tenures that it keeps
	looks     looks

	shutting, emptied sync.Once
	Shut              chan struct{} // closed by Shutdown at once: no new holds
	empty             chan struct{} // closed when the last hold after that has ended

	telling           sync.Once
	cancellingHolders chan struct{} // closed before the holders' contexts are cancelled: nothing is renewed after that

	closing sync.Once
	over    chan struct{} // closed at the end of Close; concurrent calls of Close wait for it

	mu     sync.Mutex     // guards the following; no other lock is taken under it
	placed *lease.Renewer // see places; nil until the first wait for a fair lock
}

// Options configure a Client. They must be valid: Errors, Tell and the times are set.
type Options struct {
	Errors          Errors
	Tell            Teller
	WatchdogTimeout time.Duration // the lease of renewed holds, unless their handle sets another; also the base of the look interval
	UnlockTimeout   time.Duration // how long an unlock may block its caller
	HandOff         RunBound
	Replicas        int                   // number of replicas that must confirm an acquire
	ReplicaTimeout  time.Duration         // how long an acquire waits for them, if Replicas is not 0
	Renewed         func([]lease.Renewal) // called with confirmed renewals; their keepers have About; nil: not called
	PlainPubSub     bool                  // on a cluster: unlocks are published to all nodes
}

// IsTold reports whether Close has begun to cancel the holders' contexts.
func (c *Client) IsTold() bool {
	select {
	case <-c.cancellingHolders:
		return true
	default:
		return false
	}
}

// IsShut reports whether new holds may begin only within a section.
func (c *Client) IsShut() bool {
	select {
	case <-c.Shut:
		return true
	default:
		return false
	}
}

// maxGrantLease bounds the lease of a lock handed to another process until that process renews it: the process may have died.
const maxGrantLease = 2 * time.Second

// GrantLease returns the lease of a lock handed to another process with that watchdog time.
func GrantLease(watchdog time.Duration) time.Duration { return min(maxGrantLease, watchdog) }

// placeLease is the lifetime of a place without a refresh. So a waiter that was stopped, or died unnoticed, delays others by no more
// than this.
const placeLease = 5 * time.Second

// IsOwn reports whether an owner field belongs to this client.
func (c *Client) IsOwn(field string) bool { return kinds.IsOf(c.ID, field) }

// counters are the raw values of the statistics.
type counters struct {
	holds                                          atomic.Int64
	acquired, HandOffs, Shared, Grants, Kept, lost atomic.Uint64
	Exported, Adopted                              atomic.Uint64
}

// Attempt is what the first attempt of a TryLock has at least.
const Attempt = time.Second

// MinAttempt is the minimum time of a TryLock's first attempt, plus the time replicas may take. So a TryLock whose wait is shorter than
// a round trip still asks once.
func (c *Client) MinAttempt() time.Duration {
	return c.Attempt + c.ReplicaTimeout()
}

// ReplicaTimeout is how long an acquire may wait for the replicas.
func (c *Client) ReplicaTimeout() time.Duration {
	if c.Options.Replicas == 0 {
		return 0
	}
	return c.Options.ReplicaTimeout
}

// Stats are the counters as users see them.
type Stats struct {
	Holds, Waiting, Idle                           int
	Acquired, HandOffs, Shared, Grants, Kept, Lost uint64
	Exported, Adopted                              uint64
}

// Stats returns the current counters.
func (c *Client) Stats() Stats {
	s := &c.Counts
	idle := 0
	if c.Cache != nil {
		idle = c.Cache.Kept()
	}
	return Stats{
		Holds: int(s.holds.Load()), Waiting: c.Hub.Waiting(), Idle: idle,
		Acquired: s.acquired.Load(), HandOffs: s.HandOffs.Load(), Shared: s.Shared.Load(), Grants: s.Grants.Load(), Kept: s.Kept.Load(),
		Lost: s.lost.Load(), Exported: s.Exported.Load(), Adopted: s.Adopted.Load(),
	}
}

// HoldBegins counts a hold. During Shutdown it reports false without counting, unless the hold is inside a section of that lock.
func (c *Client) HoldBegins(inside bool) bool {
	c.Counts.holds.Add(1)
	if !inside && c.IsShut() { // after the counting, so that Shutdown misses none
		c.HoldEnds()
		return false
	}
	c.Counts.acquired.Add(1)
	return true
}

// HoldEnds ends the count of a hold after its last unlock.
func (c *Client) HoldEnds() {
	if c.Counts.holds.Add(-1) == 0 && c.IsShut() {
		c.emptied.Do(func() { close(c.empty) })
	}
}

// ReportLoss reports the loss of a hold, unless Close caused it. ctx is the section's.
func (c *Client) ReportLoss(ctx context.Context, kind string, loss error) {
	c.Counts.lost.Add(1)
	c.Options.Tell.Lost(ctx, kind, loss)
}

// LabelOf returns what people call the Client of an owner; "": nothing, or it is not known yet.
func (c *Client) LabelOf(owner string) string {
	if n, ok := Feature[interface{ LabelOf(owner string) string }](c); ok {
		return n.LabelOf(owner)
	}
	return ""
}
