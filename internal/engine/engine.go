package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// Engine is what the locks of a Client have in common.
type Engine struct {
	rdb     rueidis.Client
	Calls   *calls.Calls // done with when Close begins; stopped after closeGrace
	ID      string       // the client part of its owner fields
	Options Options
	errs    *Errors
	Hub     *pubsub.Hub
	Leases  *lease.Renewer
	Cluster *Topology // nil unless rdb is a cluster client

	noQueues    atomic.Bool     // the user may not use those of processes
	noMarks     atomic.Bool     // nor the marks of writers
	connections lua.Connections // for Options.Replicas
	sweepers    *sweep.Sweepers
	stats       counters
	insiders    insiders
	held        heldLocks // for Options.Deadlock
	probing     atomic.Int32
	describing  atomic.Bool
	ear         ear
	askings     askings
	askables    askables
	label       ownLabel
	labels      labels
	idle        idleTenures

	shutting, emptied sync.Once
	Shut              chan struct{} // closed by Shutdown at once: no new holds
	empty             chan struct{} // closed when there is no hold any more after that

	telling          sync.Once
	holdersCancelled chan struct{} // closed before the holders are told of the end: nothing is renewed after that

	closing sync.Once
	over    chan struct{} // closed at the end of Close, for which others that close wait

	mu     sync.Mutex     // guards the following; no other lock is taken under it
	placed *lease.Renewer // see places; nil until something waited for a fair lock
}

// Options are those of an engine. They are valid: Errors, Tell and the times are set.
type Options struct {
	Errors          Errors
	Tell            Teller
	WatchdogTimeout time.Duration // the lease of what is renewed, unless its handle has another; how often looks are made
	UnlockTimeout   time.Duration // for how long an unlock keeps its caller waiting
	HandOff         RunBound
	Replicas        int                   // that have to confirm an acquire
	ReplicaTimeout  time.Duration         // for how long it waits for them, if there are any
	Renewed         func([]lease.Renewal) // hears of confirmed renewals, whose keepers are About a lock; nil: nobody does
	Deadlock        DeadlockTerms
	PlainPubSub     bool   // on a cluster: unlocks are published to all nodes
	Label           string // for people; "": none
}

// IsTold reports whether the holders have been told, or are being told.
func (c *Engine) IsTold() bool {
	select {
	case <-c.holdersCancelled:
		return true
	default:
		return false
	}
}

// IsShut reports whether no new hold may begin but within a section.
func (c *Engine) IsShut() bool {
	select {
	case <-c.Shut:
		return true
	default:
		return false
	}
}

// handsOff reports whether an unlock gives the lock to a waiter, here or in another process. Replicas do not confirm such a
// grant.
func (c *Engine) handsOff() bool { return c.Options.HandOff.Most > 0 && c.Options.Replicas == 0 }

// maxGrantLease bounds for how long a lock is given to another process, until that renews it: it may have died.
const maxGrantLease = 2 * time.Second

func (c *Engine) grantLease() time.Duration { return GrantLease(c.Options.WatchdogTimeout) }

// GrantLease is for how long a lock is given to another process that has that watchdog time.
func GrantLease(watchdog time.Duration) time.Duration { return min(maxGrantLease, watchdog) }

// placeLease is for how long a place lasts unless it is refreshed, and with that how long a waiter keeps others waiting that was
// stopped, or died unseen.
const placeLease = 5 * time.Second

func (c *Engine) placeLease() time.Duration { return min(placeLease, c.Options.WatchdogTimeout) }

// IsOwn reports whether an owner field belongs to this client.
func (c *Engine) IsOwn(field string) bool { return kinds.IsOf(c.ID, field) }

// Topology is what has to be known of a cluster.
type Topology struct {
	mu      sync.Mutex // guards the following
	known   bool
	sharded bool // Redis 7 or later: unlocks are published with SPUBLISH
}

func (c *Engine) slot(key string) uint16 {
	cmd := c.rdb.B().Exists().Key(key).Build()
	return cmd.Slot()
}

// counters are what the figures are made of.
type counters struct {
	holds                                          atomic.Int64
	acquired, handOffs, shared, grants, kept, lost atomic.Uint64
	exported, adopted                              atomic.Uint64
}
