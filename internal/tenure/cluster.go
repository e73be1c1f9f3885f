package tenure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// Whether Redis is a cluster, and what of a lock depends on that: its slot, its channel, its queue.

// Late is a rueidis client that connects when asked to. What it does before that fails. Its Mode is known when it is connected.
type Late interface {
	rueidis.Client
	// Connect returns when the client is connected, or with the error of one attempt, which concurrent calls share.
	Connect() error
	// MayRepeat reports whether its connections have a lifetime, see package calls.
	MayRepeat() bool
}

// Topology says what Redis is. The first call that begins learns it, before the caller does anything that depends on it.
type Topology struct {
	late  Late // nil: it is a cluster, and connected
	plain bool // see Options.PlainPubSub

	// Set by Learn, known last.
	known   atomic.Bool
	one     atomic.Bool // it is a cluster
	sharded atomic.Bool // of Redis 7 or later: unlocks are published with SPUBLISH
}

func newTopology(rdb rueidis.Client, plain bool) *Topology {
	t := &Topology{plain: plain}
	if late, ok := rdb.(Late); ok {
		t.late = late
		return t
	}
	if rdb.Mode() != rueidis.ClientModeCluster {
		return nil
	}
	t.one.Store(true)
	t.known.Store(plain)
	return t
}

// Slot returns the slot of the cluster; 0 without one.
func (m *Lock) Slot() uint16 {
	if !m.Client.Cluster.IsOne() {
		return 0
	}
	return m.slot
}

// SlotOf returns the slot of a key or channel; 0 without a cluster.
func (c *Client) SlotOf(key string) uint16 {
	if !c.Cluster.IsOne() {
		return 0
	}
	return c.slot(key)
}

// slot is for the builder of a cluster client, and of others, which add a mark.
func (c *Client) slot(key string) uint16 {
	const slots = 1 << 14
	cmd := c.RDB.B().Exists().Key(key).Build()
	return cmd.Slot() % slots
}

// KnownChannel returns the unlock channel of m. The cluster must be known.
//
// A script can publish to a sharded channel only if the channel hashes to the slot of its keys. It does, except for names with an empty or
// misplaced pair of braces, where a prefix changes the hashed part. These use plain pub/sub; Redisson fails to unlock them.
func (c *Client) KnownChannel(m *Lock) pubsub.Channel {
	ch := pubsub.Channel{Name: m.Channel}
	if c.Cluster.IsOne() && c.Cluster.IsSharded() {
		ch.Sharded = c.slot(ch.Name) == c.slot(m.Key)
	}
	return ch
}

// Waiters returns the hub queue of this process's waiters for a lock that was asked for before.
func (m *Lock) Waiters() pubsub.Queue {
	ch := m.Client.KnownChannel(m)
	return pubsub.Queue{
		Lock: m.Key + m.Kind.Beside, Channel: ch, Places: (m.Kind.PlainScripts || m.Kind.Permits) && m.Client.seesOn(ch),
		Each: m.Kind.Queueing == kinds.PerWaiter, Shared: m.Kind.Side != lua.Whole, Counts: m.Kind.Permits,
	}
}

// QueueKey returns the key of the waiters' entries in Redis: the queue of processes, or marks; "" if there is none, or each waiter has
// its own place.
func (m *Lock) QueueKey() string {
	c := m.Client
	switch {
	case c.Forbidden(m.Kind.Side).Load(), m.Kind.Queueing == kinds.PerWaiter, m.Kind.PlainScripts && !m.SeesProcesses():
		return ""
	case c.Cluster.IsOne() && c.slot(m.Queue) != c.slot(m.Key):
		return ""
	}
	return m.Queue
}

// Forbidden says whether the ACL user lacks access to the waiters' entries for locks of that side.
func (c *Client) Forbidden(s lua.Side) *atomic.Bool {
	if s == lua.Whole {
		return &c.noQueues
	}
	return &c.noMarks
}

// SeesProcesses reports whether scripts can tell if a process still listens: not on a cluster with plain channels, nor if the
// processes have no channels of their own.
func (m *Lock) SeesProcesses() bool { return m.Client.seesOn(m.Client.KnownChannel(m)) }

func (c *Client) seesOn(ch pubsub.Channel) bool {
	return c.HandsOff && (ch.Sharded || !c.Cluster.IsOne())
}

// IsOne reports whether Redis is a cluster, as far as is known.
func (t *Topology) IsOne() bool { return t != nil && t.one.Load() }

// MayBeOne reports whether Redis is a cluster, or may turn out to be one.
func (t *Topology) MayBeOne() bool { return t != nil && (t.one.Load() || !t.known.Load()) }

// IsSharded reports whether unlocks are published with SPUBLISH.
func (t *Topology) IsSharded() bool { return t.sharded.Load() }

// IsUnknown reports whether Learn is still needed.
func (t *Topology) IsUnknown() bool { return t != nil && !t.known.Load() }

// Learn connects, if that is still to do, and asks the node of a cluster that serves m for its version. It reports false if the topology is
// still unknown: the caller left, or err says why.
func (t *Topology) Learn(ctx context.Context, limit time.Time, m *Lock) (known bool, err error) {
	if !t.IsUnknown() {
		return true, nil
	}
	c := m.Client
	again := calls.Retry{Until: limit}
	var last error // of an attempt
	for {
		_, left, err := Leavable(ctx, m, limit, func(<-chan struct{}) (struct{}, error) { return struct{}{}, t.learn(ctx, m) }, nil)
		switch {
		case left:
			return false, cmp.Or(err, last)
		case err == nil:
			return true, nil
		case !again.Wait(err, ctx.Done(), c.Calls.Done()):
			return false, err
		}
		last = err
	}
}

// learn is one attempt.
func (t *Topology) learn(ctx context.Context, m *Lock) error {
	c := m.Client
	if t.late != nil {
		if err := t.late.Connect(); err != nil {
			return err
		}
		t.one.Store(t.late.Mode() == rueidis.ClientModeCluster)
	}
	if t.one.Load() && !t.plain {
		sharded, err := c.askSharded(c.Calls.Context(ctx), m)
		if err != nil {
			return fmt.Errorf("ask for the server's version: %w", err)
		}
		t.sharded.Store(sharded)
	}
	t.known.Store(true)
	return nil
}

func (c *Client) askSharded(ctx context.Context, m *Lock) (bool, error) {
	// HELLO is allowed to every user, unlike INFO.
	info, err := c.RDB.Do(ctx, c.RDB.B().Hello().Build().SetSlot(m.Key)).AsMap()
	var redisErr *rueidis.RedisError
	if errors.As(err, &redisErr) && !calls.IsTransient(err) {
		return false, nil // a Redis imitation without this form of HELLO
	}
	if err != nil {
		return false, err
	}
	version := info["version"]
	text, _ := version.ToString()
	major, _, _ := strings.Cut(text, ".")
	n, _ := strconv.Atoi(major)
	return n >= 7, nil
}

// Fits reports an error for a lock that a cluster cannot have.
func (m *Lock) Fits() error {
	c, extra := m.Client, m.Kind.Extra
	if !c.Cluster.IsOne() || extra == nil || c.slot(extra(m.Key)) == c.slot(m.Key) {
		return nil
	}
	if m.Kind.Unfit != "" {
		return fmt.Errorf(m.Kind.Unfit, m.Channel)
	}
	return fmt.Errorf("on a cluster the name of such a lock may have braces only around what is hashed, "+
		"or the key %q beside it would be in another slot", extra(m.Key))
}

// Fair returns the scripts' arguments about a queue with a place for each waiter. On a cluster with plain channels no script can tell
// whether a process still listens; then it notifies the head of the queue, which asks.
func (m *Lock) Fair() lua.Fair {
	c, k := m.Client, m.Kind
	if k.Queueing != kinds.PerWaiter {
		return lua.Fair{}
	}
	f := lua.Fair{
		List: m.Queue, Times: k.Timeouts(m.Key), Place: c.PlaceLease,
		Counts: !c.Cluster.IsOne() || c.KnownChannel(m).Sharded,
	}
	if f.Counts && c.HandsOff {
		f.GrantLease = c.GrantLease
	}
	return f
}

// ReleaseOf returns the arguments of a release by that owner: the lock goes to the first of the queue in Redis, if it has one.
func (m *Lock) ReleaseOf(owner string) lua.ReleaseArgs {
	c := m.Client
	args := lua.ReleaseArgs{Name: m.Key, Side: m.Kind.Side, Owner: owner, Publish: lua.Publish(c.KnownChannel(m)), Fair: m.Fair()}
	if key := m.QueueKey(); key != "" {
		args.Fence, args.Queue = m.Fence, lua.Queue{Key: key, GrantLease: c.GrantLease}
	}
	return args
}
