package rlock

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
)

// DefaultWatchdogTimeout is the lease of a hold that the watchdog renews, as in Redisson.
const DefaultWatchdogTimeout = 30 * time.Second

// MinWatchdogTimeout is the shortest watchdog time.
const MinWatchdogTimeout = 100 * time.Millisecond

// Options configure a [Client]. The zero value is valid.
type Options struct {
	// WatchdogTimeout is the lease of a hold without [WithLease], renewed every third of it: the longest wait for a crashed holder's lock
	// (docs/operating.md). 0 means DefaultWatchdogTimeout; less than MinWatchdogTimeout is an error.
	WatchdogTimeout time.Duration

	// Prefix is put before every name to make the Redis key. Errors, [Mutex.Name] and [FencingToken] use the names without it. With a hash tag, as
	// in "{shop}:", all locks are in one slot of a cluster.
	Prefix string

	// Replicas makes each first acquire wait until that many replicas have it, so that a failover to one of them keeps the lock. If too few confirm
	// in time, the server refuses WAIT, or rueidis's pool (BlockingPoolSize) has no connection for it, Lock returns [ErrNotReplicated]. There are
	// no hand-offs.
	Replicas int
	// ReplicaTimeout bounds the wait for replicas, and the preceding wait for a connection. 0 means one second; less than 1 ms is an error.
	ReplicaTimeout time.Duration

	// UnlockTimeout bounds how long an unlock, and so a Do after its function, waits for Redis, whatever the ctx. Sections that are unlocked one
	// after the other share that time. 0 means 3 seconds; less than 1 ms is an error.
	UnlockTimeout time.Duration

	// HandOff bounds hand-offs inside a process.
	HandOff HandOff

	// Deadlock makes Locks that wait for long under other holds look for a deadlock.
	Deadlock Deadlock

	// Logger, if set, gets a warning for each loss, late renewal and other event that docs/operating.md lists. It is called on a goroutine of its
	// own, and may block; while 1024 lines are queued, further ones are dropped.
	Logger *slog.Logger

	// Trace, if set, receives the events of the locks.
	Trace *Trace

	// Label names the owner of the Client's locks for people, for example a pod or host: at most 100 bytes of printable UTF-8, on one line. It
	// appears in [NotAcquiredError], [Holder] and the Logger's lines. The Client keeps it in Redis until it is closed, if the ACL allows that.
	Label string

	// ConnectOnUse makes [Open], [OpenWith] and rlockgoredis.Open return at once. The first call that needs Redis connects, and its error says why
	// it could not: [ErrUnreachable], or a refusal such as WRONGPASS; the next call tries again. Those that wait for the connection go on in any
	// order, even for a [FairMutex]. See also [WithWaitForRedis].
	ConnectOnUse bool

	// PlainPubSub makes a cluster client use PUBLISH and SUBSCRIBE also on Redis 7 or later, which has SPUBLISH and SSUBSCRIBE. All clients of a
	// lock have to agree, or they exclude but do not wake each other; docs/redisson.md says which Redissons need it. There are then no hand-offs
	// between processes.
	PlainPubSub bool
}

// HandOff bounds how long a process may pass a lock on among its own goroutines, mostly without a command, while other processes wait. These get
// it after at most one such run, plus the section under way at its end. The zero value means the defaults. With [Options].Replicas there are no
// hand-offs.
type HandOff struct {
	// Most is how many hand-offs may follow each other; one while Redisson, or another waiter that does not hand off, is waiting. 0 means
	// DefaultHandOffMost. Below 0 there are none: each unlock wakes one waiter in every process.
	Most int
	// For is how long they may follow each other, and readers may join a reader. 0 means DefaultHandOffFor; less is an error.
	For time.Duration
}

// The default bounds of a run of hand-offs, see [HandOff].
const (
	DefaultHandOffMost = 64
	DefaultHandOffFor  = 10 * time.Millisecond
)

func (h HandOff) validate() (HandOff, error) {
	if h.For < 0 {
		return h, fmt.Errorf("rlock: Options.HandOff.For is %v, want 0 or more", h.For)
	}
	switch {
	case h.Most < 0:
		h.Most = 0
	case h.Most == 0:
		h.Most = DefaultHandOffMost
	}
	if h.For == 0 {
		h.For = DefaultHandOffFor
	}
	return h, nil
}

func (o Options) validate() (Options, error) {
	if o.WatchdogTimeout == 0 {
		o.WatchdogTimeout = DefaultWatchdogTimeout
	}
	if o.WatchdogTimeout < MinWatchdogTimeout {
		return o, fmt.Errorf("rlock: Options.WatchdogTimeout is %v, want 0 or at least %v",
			o.WatchdogTimeout, MinWatchdogTimeout)
	}
	if o.ReplicaTimeout == 0 {
		o.ReplicaTimeout = time.Second
	}
	if o.UnlockTimeout == 0 {
		o.UnlockTimeout = calls.Timeout
	}
	if o.UnlockTimeout < time.Millisecond {
		return o, fmt.Errorf("rlock: Options.UnlockTimeout is %v, want 0 or at least 1ms", o.UnlockTimeout)
	}
	if o.Replicas < 0 {
		return o, fmt.Errorf("rlock: Options.Replicas is %d, want 0 or more", o.Replicas)
	}
	if o.ReplicaTimeout < time.Millisecond {
		return o, fmt.Errorf("rlock: Options.ReplicaTimeout is %v, want 0 or at least 1ms", o.ReplicaTimeout)
	}
	if i := strings.IndexAny(o.Prefix, "{}"); i >= 0 && (o.Prefix[i] == '}' || strings.IndexByte(o.Prefix[i:], '}') <= 1) {
		return o, fmt.Errorf("rlock: Options.Prefix is %s, want no braces, or a hash tag first, as in \"{shop}:\"", tenure.Quote(o.Prefix))
	}
	if o.Label != "" && !kinds.IsLabel(o.Label) {
		return o, fmt.Errorf("rlock: Options.Label is %s, want at most %d bytes of printable UTF-8, on one line", tenure.Quote(o.Label), kinds.MaxLabel)
	}
	if err := o.Deadlock.validate(); err != nil {
		return o, err
	}
	handOff, err := o.HandOff.validate()
	if err != nil {
		return o, err
	}
	o.HandOff = handOff
	o.WatchdogTimeout = o.WatchdogTimeout.Truncate(time.Millisecond) // as Redis gets it
	return o, nil
}
