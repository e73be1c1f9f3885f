package rlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
)

// Info is a lock's state in Redis, see [Mutex.Info].
type Info struct {
	// Holders are the current owners, sorted: none if the lock is free, several if readers hold it.
	Holders []Holder
	// TTL is as of [Mutex.TTL].
	TTL time.Duration
	// Token is the highest fencing token given so far; 0 without one. For a [Client.FencedRWMutex], ask the write side.
	Token int64
	// Listening is the number of processes that listen for the unlock, Redisson's included, but not those for a fair lock; -1 if the server does
	// not report it; of one node on a cluster with plain pub/sub.
	Listening int
	// Queue lists the first thousand waiters by their future owners, in order: those of a fair lock, the writers of a read/write lock, and for
	// other locks one for each waiting process of this library.
	Queue []string
}

// Holder is an owner of a lock.
type Holder struct {
	Owner string // as in Redis, and as [Owner] returns it; it begins with the [Client.ID]
	Depth int    // number of levels of its hold; may lag by 100 ms
	Write bool   // it is the writer of a read/write lock
	// Label is its Client's [Options].Label; "" if it has none, or if it is not known: it is then looked up for the next call.
	Label string
	// Exported reports that nobody is inside: a ticket has the lock, see [Export].
	Exported bool
}

// Info returns a snapshot of who holds the lock and who waits for it.
func (m *Mutex) Info(ctx context.Context) (Info, error) {
	m.check(ctx)
	raw, err := m.lock.Inspect(ctx)
	if err != nil {
		return Info{}, err
	}
	info := Info{Token: raw.Token, Listening: int(raw.Subscribers)}
	switch ttl := raw.TTL.Milliseconds(); {
	case ttl == -1:
		info.TTL = NoExpiry
	case ttl > 0:
		info.TTL = raw.TTL
	}
	for field, count := range raw.Fields {
		if field == "mode" {
			continue
		}
		depth, err := strconv.Atoi(count)
		if err != nil {
			err = fmt.Errorf("%w: the key holds a hash with the field %q", lua.ErrForeign, field)
			return Info{}, m.lock.Fail(unreachable(err))
		}
		info.Holders = append(info.Holders, Holder{
			Owner: field, Depth: depth, Write: strings.HasSuffix(field, ":write"), Exported: kinds.IsTicket(field),
			Label: m.lock.Client.LabelOf(field),
		})
	}
	slices.SortFunc(info.Holders, func(a, b Holder) int { return strings.Compare(a.Owner, b.Owner) })
	for _, entry := range raw.Queue {
		entry, _, _ = strings.Cut(entry, " ") // whether it wants a token
		info.Queue = append(info.Queue, entry)
	}
	return info, nil
}
