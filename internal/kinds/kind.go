// Package kinds defines the kinds of locks as data: the names of their keys and owners in Redis, their scripts, and their needs from
// the engine, which all kinds share. Keys and channels are Redisson's, except the queue of processes and the marks of writers, see
// docs/internals/protocol.md.
package kinds

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// Kind describes one kind of lock. Functions from string to string derive a key or channel from a lock's key.
type Kind struct {
	Name string // in Traces
	// Channel names the channel of a lock's unlocks.
	Channel func(key string) string
	// Queue names the key of the waiters' entries in Redis, see Queueing.
	Queue    func(key string) string
	Queueing Queueing
	// Timeouts names the key of the times at which waiters give up. It is nil except with PerWaiter.
	Timeouts func(key string) string
	// Fence names the key of the fencing counter; nil for a kind without one.
	Fence func(key string) string
	// Fenced is the same kind with a fencing counter; nil if there is none, or this kind has a counter itself.
	Fenced *Kind
	// Extra names another key, or key prefix, that the scripts touch. It must hash to the lock's slot; nil if it always
	// does.
	Extra func(key string) string
	// PlainScripts means that the kind uses the acquire and release scripts. An unlock gives the lock to the next waiter, here or in the process
	// queue, or leaves it taken for a while. One call can take or release many locks. Without it, no unlock chooses a waiter of this
	// process.
	PlainScripts bool
	// Shares means that concurrent holders may share a tenure.
	Shares bool
	// Exports means that a hold can be left to a ticket and continue in another process.
	Exports bool
	// Side is the kind's side of a read/write lock. Several readers can hold the lock together.
	Side lua.Side

	// Permits means that waiters want numbers of permits.
	Permits bool
	// Beside is behind names, and the Client's id, where another kind's lock of the same name would have the same.
	Beside string
	// Unfit says why a cluster cannot have a lock with braces in its name, whose channel it gets; "": because of Extra.
	Unfit string

	// The parts of the owner field around the tag.
	prefix, suffix string

	Renew    func(context.Context, rueidis.Client, time.Duration, []lua.Hold) ([]lua.Renewal, error)
	Force    func(ctx context.Context, rdb rueidis.Client, key string, f lua.Fair, p lua.Publish, owners ...string) (bool, error)
	IsLocked func(ctx context.Context, rdb rueidis.Client, key string) (bool, error)
}

// Queueing is the kind of entries that waiters leave in Redis.
type Queueing int8

const (
	PerProcess Queueing = iota // one place in a queue for each process
	PerWaiter                  // one place for each waiter, with a time, which the waiter renews
	LeavesMark                 // a writer leaves a mark
	HeedsMarks                 // a reader leaves nothing, and checks the marks
)

// Owner returns the hash field of a Client's tenure, from the Client's id and the tenure's tag. A grant to a short tenure must not be
// trusted as a hold. For PerWaiter kinds the field shows that.
func (k *Kind) Owner(id string, tag uint64, short bool) string {
	var b [64]byte // room for a UUID and any number
	field := append(append(append(b[:0], id...), ':'), k.prefix...)
	if k.Queueing == PerWaiter && short {
		field = append(field, k.prefix...)
	}
	return string(append(strconv.AppendUint(field, tag, 10), k.suffix...))
}

// IsOf reports whether an owner field belongs to the Client with that id.
func IsOf(id, field string) bool {
	rest, ok := strings.CutPrefix(field, id)
	return ok && strings.HasPrefix(rest, ":")
}

// placeholderTag is the owner's tag while a lock stays taken after its unlock. No hold has it, and Redisson writes no thread id so. "0"
// would not do: lockAsync accepts any number.
const placeholderTag = "00"

// Placeholder returns the owner of a lock that stays taken after that Client's unlock.
func (k *Kind) Placeholder(id string) string { return id + ":" + placeholderTag + k.suffix }

// IsPlaceholder reports whether an owner field is the Placeholder of some Client.
func IsPlaceholder(field string) bool {
	_, tag, _ := strings.Cut(field, ":")
	return tag == placeholderTag
}

// prefixed makes names as Redisson does: the lock's name is the hash tag, unless it contains one. So all its keys share a cluster slot.
func prefixed(prefix string) func(string) string {
	return func(name string) string {
		if strings.Contains(name, "{") {
			return prefix + ":" + name
		}
		return prefix + ":{" + name + "}"
	}
}

// Own makes names of keys that only this library uses. Unlike Redisson's they differ for x and {x}, which are two locks.
func Own(prefix string) func(string) string {
	return func(name string) string {
		if strings.Contains(name, "{") {
			return prefix + "::" + name
		}
		return prefix + ":{" + name + "}"
	}
}

// ticketTag begins the owner's tag of a lock left to a ticket. No hold and no Redisson thread has such a tag: fair locks' tags begin with
// at most two zeros before another digit.
const ticketTag = "000"

// OfTicket returns the owner of a lock that a Client has left to a ticket. number is the ticket's number in Redis.
func (k *Kind) OfTicket(id, number string) string { return id + ":" + ticketTag + number + k.suffix }

// IsTicket reports whether an owner field belongs to a ticket.
func IsTicket(field string) bool {
	_, tag, _ := strings.Cut(field, ":")
	tag, _ = strings.CutSuffix(tag, ":write")
	return strings.HasPrefix(tag, ticketTag) && strings.Trim(tag, "0123456789") == "" // other libraries write UUIDs there
}
