package engine

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// Whoever waits for an owner with a mark asks it for the lock: one message to the ear of its Client, beside the wait. It is sent once while
// that owner has the lock, and again when a Lock here is refused because of it some seconds later: after the end of the time that it was
// told, or with a new connection. What the ear misses in between, the holder looks for when it is live again.

// saidAsked is the kind of the message; its payload is the tag of the owner.
const saidAsked = "asked"

const (
	// askAgain is for how long an owner is not asked again.
	askAgain = 3 * time.Second
	// mostAsking bounds the messages that are under way. Those who come then are not sent: the next refusal is for that.
	mostAsking = 64
	// mostAsked bounds how many owners are remembered.
	mostAsked = 1000
	// mostReaders bounds how many of the readers of a lock are asked for it.
	mostReaders = 1000
)

// askings are what this process has asked others.
type askings struct {
	refused  atomic.Bool // the user may not
	underWay atomic.Int32

	mu sync.Mutex           // guards the following; no other lock is taken under it
	at map[string]time.Time // when owners were asked
}

// asksHolder asks the one that a Lock waits for, if it can be asked. The Lock goes to sleep meanwhile.
func (l *attempt) asksHolder(holder string) { l.Spec.AskHolder(l.Ctx, holder) }

// AskHolder asks an owner that a Lock waits for, if it can be asked. It returns at once.
func (m *Spec) AskHolder(ctx context.Context, holder string) {
	mark, id, tag := kinds.MarkOf(holder)
	c := m.Engine
	if mark == 0 || !mark.Wants(kinds.WantsAsked) || id == c.ID || !c.askings.begin(holder) {
		return
	}
	c.inBackground(func() { // ends when Redis has answered, or after some seconds
		defer c.askings.underWay.Add(-1)
		again := calls.Retry{}
		for {
			err := m.askAll(ctx, holder, id, tag)
			if err == nil {
				return
			}
			if refusal := isRefusal(err); refusal || !again.Wait(err, nil, c.Calls.Done()) {
				c.askings.failed(c, holder, err, refusal)
				return
			}
		}
	})
}

// begin reports whether that owner is to be asked now.
func (a *askings) begin(owner string) bool {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refused.Load() || now.Sub(a.at[owner]) < askAgain || a.underWay.Load() >= mostAsking {
		return false
	}
	if len(a.at) >= mostAsked {
		maps.DeleteFunc(a.at, func(_ string, at time.Time) bool { return now.Sub(at) >= askAgain })
	}
	if a.at == nil || len(a.at) >= mostAsked { // some are asked once more
		a.at = make(map[string]time.Time)
	}
	a.at[owner] = now
	a.underWay.Add(1)
	return true
}

// failed has an owner be asked again at the next refusal, or nobody any more if the user may not.
func (a *askings) failed(c *Engine, owner string, err error, refusal bool) {
	if !refusal {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.at, owner)
		return
	}
	if strings.HasPrefix(err.Error(), "NOPERM") && !a.refused.Swap(true) {
		c.Options.Tell.Warn("rlock: this Client cannot ask other processes for their locks; the user needs the right to publish to "+
			pubsub.EarChannel("*"), "client", c.ID, "err", err)
	}
}

// askAll asks that owner. A writer asks all readers: the refusal names but one of them.
func (m *Spec) askAll(ctx context.Context, holder, id string, tag uint64) error {
	if m.Kind.Side != lua.Writer || strings.HasSuffix(holder, ":write") {
		_, err := m.Engine.askOne(id, tag)
		return err
	}
	fields, err := m.fields(m.Engine.Calls.Context(ctx, time.Now(), 0))
	if err != nil {
		return err
	}
	_, err = m.askEach(fields, nil) // those of this process know, see askHere
	return err
}

// fields are those of the lock's hash.
func (m *Spec) fields(ctx context.Context) ([]string, error) {
	rdb := m.Engine.rdb
	return rdb.Do(ctx, rdb.B().Hrandfield().Key(m.Key).Count(mostReaders).Build()).AsStrSlice()
}

// askEach asks those of the owners that can be asked, and returns how many heard it. One of this process is told by own, if that is not nil.
func (m *Spec) askEach(fields []string, own func(tag uint64)) (heard int, err error) {
	c := m.Engine
	for _, field := range fields {
		mark, id, tag := kinds.MarkOf(field)
		if mark == 0 || !mark.Wants(kinds.WantsAsked) {
			continue
		}
		if id == c.ID {
			if own != nil {
				heard++
				own(tag)
			}
			continue
		}
		n, failed := c.askOne(id, tag)
		if failed != nil {
			err = failed
		}
		heard += min(n, 1)
	}
	return heard, err
}

// askOne asks one owner, and returns how many processes heard it; at least one where Redis does not tell.
func (c *Engine) askOne(id string, tag uint64) (heard int, err error) {
	ch := c.earOf(id)
	heard, err = c.publish(ch, pubsub.Spoken{Kind: saidAsked, Payload: strconv.FormatUint(tag, 10)})
	if err == nil && c.Cluster != nil && !ch.Sharded { // it counts those at one node
		heard = max(heard, 1)
	}
	return heard, err
}

// publish says something to another process, and returns how many heard it; on a cluster with plain channels, those at one node.
func (c *Engine) publish(ch pubsub.Channel, said pubsub.Spoken) (heard int, err error) {
	var cmd rueidis.Completed
	if ch.Sharded {
		cmd = c.rdb.B().Spublish().Channel(ch.Name).Message(said.String()).Build()
	} else {
		cmd = c.rdb.B().Publish().Channel(ch.Name).Message(said.String()).Build()
	}
	n, err := c.rdb.Do(c.Calls.Context(context.Background(), time.Now(), 0), cmd).AsInt64()
	return int(n), err
}

// Ask asks whoever has the lock for it, without waiting for it. It returns how many holders heard that.
func (m *Spec) Ask(ctx context.Context) (heard int, err error) {
	return query(ctx, m, func(ctx context.Context) (int, error) {
		fields, err := m.fields(ctx)
		if err != nil {
			return 0, err
		}
		return m.askEach(fields, m.Engine.askables.heardOf)
	})
}
