package engine

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// A waiter asks an owner whose mark says so for the lock: one message to the ear of its Client, sent while the waiter sleeps. It is sent
// once for each owner, and again if that owner causes another refusal some seconds later: after the reported remaining time, or with a new
// connection. The holder looks for messages missed in between when its ear is live again.

// The kinds of messages; their payload is the tag of the owner.
const (
	saidAsked = "asked" // somebody waits for the lock
	saidTried = "tried" // somebody would have taken it who does not wait: it is wanted if nobody is inside
)

const (
	// askAgain is the time within which an owner is not asked again.
	askAgain = 3 * time.Second
	// mostAsking bounds the messages in flight; further ones wait.
	mostAsking = 64
	// mostReaders bounds how many of the readers of a lock are asked for it.
	mostReaders = 1000
)

// askings records which owners this process has asked.
type askings struct {
	refused  atomic.Bool   // the user may not
	underWay chan struct{} // of mostAsking

	mu    sync.Mutex // guards the following; no other lock is taken under it
	asked recentKeys // owners that are not asked again
}

// asksHolder is AskHolder for a Lock. The Lock goes to sleep meanwhile.
func (l *Attempt) asksHolder(holder string) { l.Spec.AskHolder(l.Ctx, holder) }

// AskHolder asks an owner that blocks a Lock, if it can be asked, and looks up its label, if it has one. It returns at once.
func (m *Spec) AskHolder(ctx context.Context, holder string) {
	m.ask(ctx, holder, saidAsked)
	m.Engine.seekLabel(holder)
}

// triesHolder tells an owner that may be idle that it caused a refusal of a Lock that does not wait.
func (l *Attempt) triesHolder(holder string) {
	if mark, _, _ := kinds.MarkOf(holder); mark.Wants(kinds.Lingers) {
		l.Spec.ask(l.Ctx, holder, saidTried)
	}
}

func (m *Spec) ask(ctx context.Context, holder, what string) {
	mark, id, tag := kinds.MarkOf(holder)
	c := m.Engine
	about := what + holder
	switch {
	case !isAskable(mark):
		return
	case id == c.ID:
		c.giveIdle(m.Key) // any other hold of this process is known to askHere
		return
	case !c.askings.begin(about):
		return
	}
	c.inBackground(func() { // ends when Redis has answered, or after some seconds
		if !c.askings.enter(c.Calls.Done()) {
			return
		}
		defer c.askings.leave()
		again := calls.Retry{}
		for {
			heard, err := m.askAll(ctx, holder, what, id, tag)
			if err == nil {
				if heard == 0 || c.Cluster != nil && !c.earOf(id).Sharded { // which does not tell
					c.askings.forget(about)
				}
				return
			}
			if refusal := isRefusal(err); refusal || !again.Wait(err, nil, c.Calls.Done()) {
				c.askings.failed(c, about, err, refusal)
				return
			}
		}
	})
}

// isAskable reports whether an owner with that mark can be asked.
func isAskable(m kinds.Mark) bool { return m.Wants(kinds.WantsAsked) || m.Wants(kinds.Lingers) }

// begin reports whether that owner is to be asked now.
func (a *askings) begin(owner string) bool {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refused.Load() || a.asked.has(owner, now) {
		return false
	}
	a.asked.add(owner, now, askAgain)
	return true
}

// enter waits until a message may be sent. It reports false if the Client is closed.
func (a *askings) enter(closed <-chan struct{}) bool {
	select {
	case a.underWay <- struct{}{}:
		return true
	case <-closed:
		return false
	}
}

func (a *askings) leave() { <-a.underWay }

// forget makes the next refusal ask the owner again.
func (a *askings) forget(owner string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked.remove(owner)
}

// failed makes the next refusal ask the owner again; if the user lacks the right, nobody is asked any more.
func (a *askings) failed(c *Engine, owner string, err error, refusal bool) {
	if !refusal {
		a.forget(owner)
		return
	}
	if strings.HasPrefix(err.Error(), "NOPERM") && !a.refused.Swap(true) {
		c.Options.Tell.Warn("rlock: this Client cannot ask other processes for their locks; the user needs the right to publish to "+
			pubsub.EarChannel("*"), "client", c.ID, "err", err)
	}
}

// askAll asks that owner and returns the number known to have heard. A writer asks all readers, because the refusal names only one.
func (m *Spec) askAll(ctx context.Context, holder, what, id string, tag uint64) (heard int, err error) {
	if m.Kind.Side != lua.Writer || strings.HasSuffix(holder, ":write") {
		return m.Engine.askOne(id, what, tag)
	}
	fields, err := m.fields(m.Engine.Calls.Context(ctx, time.Now(), 0))
	if err != nil {
		return 0, err
	}
	return m.askEach(fields, nil) // those of this process know, see askHere
}

// fields are those of the lock's hash.
func (m *Spec) fields(ctx context.Context) ([]string, error) {
	rdb := m.Engine.RDB
	return rdb.Do(ctx, rdb.B().Hrandfield().Key(m.Key).Count(mostReaders).Build()).AsStrSlice()
}

// askEach asks those of the owners that can be asked, and returns the number that heard. Owners of this process go to own, unless it is
// nil.
func (m *Spec) askEach(fields []string, own func(tag uint64)) (heard int, err error) {
	c := m.Engine
	for _, field := range fields {
		mark, id, tag := kinds.MarkOf(field)
		if !isAskable(mark) {
			continue
		}
		if id == c.ID {
			if own != nil {
				heard++
				own(tag)
			}
			continue
		}
		n, failed := c.askOne(id, saidAsked, tag)
		if failed != nil {
			err = failed
		}
		heard += min(n, 1)
	}
	return heard, err
}

// askOne asks one owner and returns the number of processes that heard: at least one where Redis does not say.
func (c *Engine) askOne(id, what string, tag uint64) (heard int, err error) {
	ch := c.earOf(id)
	heard, err = c.publish(ch, pubsub.Spoken{Kind: what, Payload: strconv.FormatUint(tag, 10)}.String())
	if err == nil && c.Cluster != nil && !ch.Sharded { // it counts those at one node
		heard = max(heard, 1)
	}
	return heard, err
}

// publish sends a message and returns the number of processes that heard it; on a cluster with plain channels, those at one node.
func (c *Engine) publish(ch pubsub.Channel, text string) (heard int, err error) {
	n, err := c.RDB.Do(c.Calls.Context(context.Background(), time.Now(), 0), ch.Publish(c.RDB.B(), text)).AsInt64()
	return int(n), err
}

// Ask asks the holders for the lock without waiting for it. It returns the number of holders that heard.
func (m *Spec) Ask(ctx context.Context) (heard int, err error) {
	return Query(ctx, m, func(ctx context.Context) (int, error) {
		fields, err := m.fields(ctx)
		if err != nil {
			return 0, err
		}
		return m.askEach(fields, m.Engine.askedFor)
	})
}
