package ear

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
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
	// mostAsking bounds the messages in flight, on a cluster to the ears of each slot: its node may hang. Further ones wait.
	mostAsking = 64
	// mostReaders bounds how many of the readers of a lock are asked for it.
	mostReaders = 1000
)

// askings records which owners this process has asked.
type askings struct {
	refused atomic.Bool // the user may not

	mu       sync.Mutex               // guards the following; no other lock is taken under it
	asked    recentKeys               // owners that are not asked again
	sending  map[string]bool          // owners with a message under way; true: they caused another refusal since
	underWay map[uint16]chan struct{} // by the slot of the ear; of mostAsking
}

// AskHolder asks an owner that blocks a Lock, if it can be asked, and looks up its label, if it has one. It returns at once.
func (e *Ear) AskHolder(ctx context.Context, m *tenure.Lock, holder string) {
	e.ask(ctx, m, holder, saidAsked)
	e.LabelOf(holder)
}

func (e *Ear) ask(ctx context.Context, m *tenure.Lock, holder, what string) {
	mark, id, tag := kinds.CapabilityOf(holder)
	about, own := what+holder, id == e.ID
	if own && isAskable(mark) {
		e.Free(m.Key) // any other hold of this process is known to tellHere
	}
	switch {
	case !isAskable(mark), own && !isAmongReaders(m, holder), !e.askings.begin(about):
		return
	}
	e.Calls.Background(func() { // ends when Redis has answered, or after some seconds
		for {
			heard, err := e.askRepeatedly(ctx, m, holder, what, id, tag)
			if err != nil {
				e.askings.failed(e, about, err)
				return
			}
			unknown := heard == 0 && !own || e.Cluster.IsOne() && !e.Channel(id).Sharded // which does not tell
			if !e.askings.sent(about, unknown) {
				return
			}
		}
	})
}

// askRepeatedly is askAll, repeated after transient errors.
func (e *Ear) askRepeatedly(ctx context.Context, m *tenure.Lock, holder, what, id string, tag uint64) (heard int, err error) {
	for again := (calls.Retry{}); ; {
		if heard, err = e.askAll(ctx, m, holder, what, id, tag); err == nil || calls.IsRefusal(err) || !again.Wait(err, nil, e.Calls.Done()) {
			return heard, err
		}
	}
}

// underWayTo has a token for each message in flight to the ears of that slot.
func (a *askings) underWayTo(slot uint16) chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.underWay[slot] == nil {
		if a.underWay == nil {
			a.underWay = make(map[uint16]chan struct{})
		}
		a.underWay[slot] = make(chan struct{}, mostAsking)
	}
	return a.underWay[slot]
}

// isAskable reports whether an owner with that mark can be asked.
func isAskable(m kinds.Capability) bool { return m.Wants(kinds.WantsAsked) || m.Wants(kinds.Lingers) }

// begin reports whether that owner is to be asked now. If so, sent or failed follows.
func (a *askings) begin(owner string) bool {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	_, sending := a.sending[owner]
	switch {
	case a.refused.Load():
		return false
	case sending:
		a.sending[owner] = true
		return false
	case a.asked.has(owner, now):
		return false
	}
	if a.sending == nil {
		a.sending = make(map[string]bool)
	}
	a.sending[owner] = false
	a.asked.add(owner, now, askAgain)
	return true
}

// sent reports whether the owner is to be asked once more: if it may not have heard the message, and caused another refusal since. In between
// it may have begun to listen, and looked for waiters before this one was in line. Otherwise the next refusal asks an owner that may not
// have heard.
func (a *askings) sent(owner string, unheard bool) (again bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if unheard && a.sending[owner] {
		a.sending[owner] = false
		return true
	}
	delete(a.sending, owner)
	if unheard {
		a.asked.remove(owner)
	}
	return false
}

// failed makes the next refusal ask the owner again; if the user lacks the right, nobody is asked any more.
func (a *askings) failed(e *Ear, owner string, err error) {
	refusal := calls.IsRefusal(err)
	a.mu.Lock()
	delete(a.sending, owner)
	if !refusal {
		a.asked.remove(owner)
	}
	a.mu.Unlock()
	if isForbidden(err) && !a.refused.Swap(true) {
		e.Options.Tell.Warn("rlock: this Client cannot ask other processes for their locks; the user needs the right to publish to "+
			pubsub.EarChannel("*"), "client", e.ID, "err", err)
	}
}

// askAll asks that owner and returns the number known to have heard. A writer asks all readers, because the refusal names only one.
func (e *Ear) askAll(ctx context.Context, m *tenure.Lock, holder, what, id string, tag uint64) (heard int, err error) {
	if !isAmongReaders(m, holder) {
		return e.askOne(id, what, tag)
	}
	fields, err := e.fields(e.Calls.Context(ctx), m)
	if err != nil {
		return 0, err
	}
	return e.askEach(fields, nil) // those of this process know, see tellHere
}

// isAmongReaders reports whether m is a writer that this holder refused, which may be one reader of many.
func isAmongReaders(m *tenure.Lock, holder string) bool {
	return m.Kind.Side == lua.Writer && !strings.HasSuffix(holder, kinds.WriterSuffix)
}

func (e *Ear) fields(ctx context.Context, m *tenure.Lock) ([]string, error) {
	return e.RDB.Do(ctx, e.RDB.B().Hrandfield().Key(m.Key).Count(mostReaders).Build()).AsStrSlice()
}

// askEach asks those of the owners that can be asked, side by side, and returns the number that heard. Owners of this process go to own,
// unless it is nil.
func (e *Ear) askEach(fields []string, own func(tag uint64)) (heard int, err error) {
	var others sync.WaitGroup
	var mu sync.Mutex // guards the results meanwhile
	for _, field := range fields {
		mark, id, tag := kinds.CapabilityOf(field)
		switch {
		case !isAskable(mark):
		case id != e.ID:
			others.Go(func() {
				n, failed := e.askOne(id, saidAsked, tag)
				mu.Lock()
				defer mu.Unlock()
				heard, err = heard+min(n, 1), cmp.Or(failed, err)
			})
		case own != nil:
			mu.Lock()
			heard++
			mu.Unlock()
			own(tag)
		}
	}
	others.Wait()
	return heard, err
}

// askOne asks one owner when there is room for the message, and returns the number of processes that heard: at least one where Redis does not
// say.
func (e *Ear) askOne(id, what string, tag uint64) (heard int, err error) {
	underWay := e.askings.underWayTo(e.SlotOf(e.Channel(id).Name))
	select {
	case underWay <- struct{}{}:
		defer func() { <-underWay }()
	case <-e.Calls.Done():
		return 0, context.Canceled
	}
	heard, err = e.Say(id, what, strconv.FormatUint(tag, 10))
	if err == nil && e.Cluster.IsOne() && !e.Channel(id).Sharded { // it counts those at one node
		heard = max(heard, 1)
	}
	return heard, err
}

// AskAll asks the holders of m for the lock without waiting for it. It returns the number of holders that heard.
func AskAll(ctx context.Context, m *tenure.Lock) (heard int, err error) {
	return tenure.Query(ctx, m, func(ctx context.Context) (int, error) {
		e := Of(m.Client)
		fields, err := e.fields(ctx, m)
		if err != nil {
			return 0, lua.OfKey(err)
		}
		return e.askEach(fields, e.isAsked)
	})
}

// heardAsked handles a message that another process waits for the owner with that tag.
func (e *Ear) heardAsked(payload string) {
	if tag, ok := ownTag(payload); ok {
		e.isAsked(tag)
	}
}

// isAsked handles that another process waits for the owner with that tag. A holder that is told may unlock at once, so it is known before
// that the lock is not to be kept.
func (e *Ear) isAsked(tag uint64) {
	e.keepNot(tag)
	e.askables.heardOf(tag)
}
