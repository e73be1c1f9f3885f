// Package kinds defines the kinds of locks as data: the names of their keys and owners in Redis, their scripts, and their needs from
// the engine, which all kinds share. Keys and channels are Redisson's, except the queue of processes and the marks of writers, see
// docs/protocol.md.
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
	Name string // as a Trace has it
	// Channel names the channel of a lock's unlocks.
	Channel func(key string) string
	// Queue names the key of the waiters' entries in Redis, see Queueing.
	Queue    func(key string) string
	Queueing Queueing
	// Timeouts names the key of the times at which waiters give up. It is nil except with PerWaiter.
	Timeouts func(key string) string
	// Fence names the key of the fencing counter; nil for a kind without one.
	Fence func(key string) string
	// Fenced is the same lock with a fencing counter; nil for a kind that has one, or for which there is none with it.
	Fenced *Kind
	// Extra names another key, or key prefix, that the scripts touch. It must hash to the lock's slot; nil if it always
	// does.
	Extra func(key string) string
	// PassesOn says that the scripts are those of acquire and release: an unlock gives the lock to the next waiter, here or in
	// the queue of the processes, or leaves it taken for a while; and many locks can be taken or released by one call. Otherwise
	// no unlock chooses a waiter of this process.
	PassesOn bool
	// Shares says that concurrent holders may share a tenure.
	Shares bool
	// Exports says that a hold can be left to a ticket and continue in another process.
	Exports bool
	// Side is that of a read/write lock that a kind is. A reader gets a share, which others can have, too.
	Side lua.Side

	// The parts of the owner field before the tag and behind it.
	prefix, suffix string

	Renew    func(context.Context, rueidis.Client, time.Duration, []lua.Hold) ([]lua.Renewal, error)
	Force    func(ctx context.Context, rdb rueidis.Client, key string, f lua.Fair, p lua.Publish) (bool, error)
	IsLocked func(ctx context.Context, rdb rueidis.Client, key string) (bool, error)
}

// Queueing says which entries waiters leave in Redis.
type Queueing int8

const (
	PerProcess Queueing = iota // each process one place in a queue
	PerWaiter                  // each waiter one, with a time, which it keeps
	LeavesMark                 // a writer leaves a mark
	HeedsMarks                 // a reader leaves nothing, and looks at the marks
)

// Owner is the hash field of the tenure with that tag of the Client with that id. One that is short must not be trusted to be a hold when it is
// granted; where each waiter has a place, it is known by that.
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

// placeholderTag is that of the owner of a lock that stays taken after its unlock. No hold has that tag, and no thread of Redisson
// is written so. "0" would not do: lockAsync may be given any number.
const placeholderTag = "00"

// Placeholder returns the owner of a lock that stays taken after its unlock by that Client.
func (k *Kind) Placeholder(id string) string { return id + ":" + placeholderTag + k.suffix }

// IsPlaceholder reports whether an owner field is the Placeholder of some Client.
func IsPlaceholder(field string) bool {
	_, tag, _ := strings.Cut(field, ":")
	return tag == placeholderTag
}

// prefixed makes names the way Redisson does: with the lock's name as the hash tag, unless it
// brings its own, so that all of them share a cluster slot.
func prefixed(prefix string) func(string) string {
	return func(name string) string {
		if strings.Contains(name, "{") {
			return prefix + ":" + name
		}
		return prefix + ":{" + name + "}"
	}
}

// Own makes names of keys that only this library has. Unlike Redisson's they differ for x and {x}, which are two locks.
func Own(prefix string) func(string) string {
	return func(name string) string {
		if strings.Contains(name, "{") {
			return prefix + "::" + name
		}
		return prefix + ":{" + name + "}"
	}
}

// ticketTag begins the tag of a lock that was left to a ticket. No hold and no thread of Redisson's has a tag like that: those of fair locks begin with
// two zeros at most, and then another digit.
const ticketTag = "000"

// OfTicket is the owner of a lock that the Client with that id has left to a ticket, which is known in Redis by a number.
func (k *Kind) OfTicket(id, number string) string { return id + ":" + ticketTag + number + k.suffix }

// IsTicket reports whether an owner field is that of a ticket.
func IsTicket(field string) bool {
	_, tag, _ := strings.Cut(field, ":")
	return strings.HasPrefix(tag, ticketTag)
}
