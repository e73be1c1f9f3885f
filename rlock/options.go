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

// MinWatchdogTimeout is the shortest watchdog time that [New] and [WithWatchdog] accept. Renewals are sent every third of it, and a lease
// that expires before a slow renewal arrives protects nothing.
const MinWatchdogTimeout = 100 * time.Millisecond

// Options configure a [Client]. The zero value is valid.
type Options struct {
	// WatchdogTimeout is the lease of a hold taken without [WithLease]. It is renewed every third of this time for as long as the hold
	// lives. It is also the longest wait for a crashed holder's lock; [WithWatchdog] sets it for one handle. 0 means
	// DefaultWatchdogTimeout; less than MinWatchdogTimeout is an error.
	//
	// A hold survives an outage or a failover for two thirds of this time: docs/operating.md helps to choose it. It should be at least
	// fifteen round trips to Redis, and no longer than the watchdog time of Redisson's readers of the same locks (docs/redisson.md).
	WatchdogTimeout time.Duration

	// Prefix is put before every name, like a Redisson NameMapper. The result is the key of the lock, and its channels and other keys are
	// named after it. Errors, [Mutex.Name] and [FencingToken] use the names without the prefix. The same name under two prefixes is two
	// locks. If the Prefix has a hash tag, as in "{shop}:", all locks are in one slot of a cluster.
	Prefix string

	// Replicas makes each first acquire wait until that many replicas have it, so that a failover to one of them keeps the lock. 0 means
	// none.
	//
	// If too few replicas confirm within ReplicaTimeout, or the server refuses WAIT, the hold is given back and Lock returns
	// [ErrNotReplicated]; also if rueidis's blocking pool (BlockingPoolSize), of which each such Lock needs a connection, has none within
	// that time. A re-entry does not wait for replicas. Hand-offs are off: each unlock wakes one waiter in every process, and all of them
	// ask.
	Replicas int
	// ReplicaTimeout bounds the wait for replicas, and the preceding wait for a connection. 0 means one second, which is also Redisson's
	// default; less than a millisecond is an error.
	ReplicaTimeout time.Duration

	// UnlockTimeout bounds how long an unlock, and so a Do after its function, waits for Redis, whether or not the section's ctx is done.
	// After that the unlock returns [ErrUnreachable] and continues in the background. Nested sections that are unlocked one after the
	// other share that time. 0 means 3 seconds; less than a millisecond is an error. The first unlock on a server that does not know the
	// script yet sends its text, 5 KB: allow for that on slow networks.
	UnlockTimeout time.Duration

	// HandOff bounds how long a process may pass a lock on among its own goroutines while other processes want it.
	HandOff HandOff

	// Deadlock makes a Lock look for a deadlock when it waits for long under other holds. Off by default.
	Deadlock Deadlock

	// Logger, if set, gets a warning for
	//
	//   - each loss, each late renewal and each reported deadlock,
	//   - a Lock that waits for a hold of this Client for longer than the watchdog time,
	//   - waiters that are not woken, since Redis answers but takes no subscription, as at maxclients (once, until it does),
	//   - a command refused by Redis that [WithAsked], [WithLinger], Deadlock or labels need (once),
	//   - fields that could not be removed from Redis after an unanswered call.
	//
	// It is called on a goroutine of its own, and may block: only [Client.Close] waits for it, for up to a second. While 1024 lines
	// are queued, further lines are dropped, and the next line written has their number as the attribute "dropped".
	Logger *slog.Logger

	// Trace receives the events of the locks. nil, the default, costs nothing. See [Trace] for the rules for its functions.
	Trace *Trace

	// Label names the owner of the Client's locks for people, for example a pod or host: at most 100 bytes of printable UTF-8, on one line.
	// It appears in [NotAcquiredError], in [Holder], in the output of "rlock show", "ls" and "top", and in the Logger's lines
	// as the attribute "label". Empty, the default, costs nothing.
	//
	// From its first Lock on, the Client keeps the label in Redis, and deletes it when it is closed. docs/internals/protocol.md has the key
	// and the ACL rights; without these the Logger gets one warning, and locks work without the label.
	Label string

	// ConnectOnUse makes [Open], [OpenWith] and rlockgoredis.Open return at once, without a connection, so that a program can start before
	// its Redis. The first call that needs Redis connects, and its error says why it could not: [ErrUnreachable], or a refusal such as
	// WRONGPASS. Concurrent first calls share one attempt; after a failed attempt, a call tries again as for any other failure, and so does
	// the next call. A call may leave an attempt, which goes on: [Client.Close] waits for it, two seconds for each server by default. With
	// [WithWaitForRedis] a Lock waits until Redis is there. What Open checks without a connection, it still reports itself. [New] ignores the
	// option: its client is connected.
	ConnectOnUse bool

	// PlainPubSub makes a cluster client announce unlocks with PUBLISH and listen with SUBSCRIBE. Without it, a cluster client uses
	// SPUBLISH and SSUBSCRIBE if the servers are Redis 7 or later. All clients of a lock have to agree, or they exclude each other without
	// waking each other. Set it to share locks with Redisson 3.27 or older, or with a Redisson whose ShardedSubscriptionMode is OFF. Locks
	// are then handed on between goroutines of a process, but not between processes: each unlock wakes one waiter in every process.
	PlainPubSub bool
}

// HandOff bounds a run of hand-offs of a lock inside one process. When a goroutine unlocks and others of the same Client wait, the lock
// goes to the next one, mostly without a command. When the run is over, the lock goes to the first waiting process. Other processes wait
// for at most one run, plus the section that is under way at its end.
//
// The zero value means the defaults, which are for short sections. A run has DefaultHandOffMost sections if they take no time, and about
// ten if each takes a millisecond. With Options.Replicas there are no hand-offs, inside the process or between processes.
type HandOff struct {
	// Most is how many hand-offs inside the process may follow each other. It is one at most while a waiter that does not hand off, such
	// as Redisson, is waiting. 0 means DefaultHandOffMost. A negative number turns off all hand-offs, also those to other processes: each
	// unlock then wakes one waiter in every process, and all of them ask.
	Most int
	// For is how long they may follow each other, counted from the first; the section that is running when it ends is not cut short. For
	// the same time readers join a reader that Redis has let in, see [RWMutex]. It also bounds how long a process without hand-offs has a
	// lock in a row before it lets others ask first. 0 means DefaultHandOffFor; less is an error.
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
