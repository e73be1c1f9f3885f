package counter

import (
	"context"
	"slices"

	"github.com/go-rlock/rlock/lua"
)

// A change waits in its combiner's list until a call sends it (combiner_call.go). Changes that only add are merged there, so that many
// releases take one call. A change may outlive its caller, since permits must go back even if that has left. The combiner makes some
// itself: it gives back what was granted to callers that have left.

// counterChange is a change of a counter.
type counterChange struct {
	what   lua.Change
	n      int64
	back   []lua.PermitID  // to be given back
	ctx    context.Context // for its values
	goesOn bool            // needed by the combiner itself, or a caller that has left, or was told that it goes on
	over   bool
	ended  chan struct{} // closed when it is over
	Outcome
}

// Outcome is what came of a change.
type Outcome struct {
	Done    int64       // the script's result
	given   []lua.Given // one for each permit given back
	err     error
	pending bool // it failed, and may have changed the number, or may yet
}

// The changes of a latch, beside those of lua.Change for semaphores.
const (
	CountDown   lua.Change = -1 - iota
	SetCount               // if there is no count
	DeleteLatch            // if there is one
)

// adds reports whether a change must be made even if its caller leaves, because it gives permits away, or counts down.
func adds(what lua.Change) bool { return merges(what) || what == lua.AddIfExists }

// merges reports whether several such changes can be made as one.
func merges(what lua.Change) bool { return what == lua.Add || what == CountDown }

// make makes a change for a caller, and gives back those permits. goesOn: even if Redis refuses it. A failing combiner makes only changes that
// add, later. left: the caller left before its end, and the outcome has no error: when ctx was done, or, unless the change adds, on Close.
func (m Counter) make(
	ctx context.Context, counted, goesOn bool, what lua.Change, n int64, back ...lua.PermitID,
) (o Outcome, left bool) {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	b := m.combiner(false, counted)
	if b.failing != nil {
		if adds(what) {
			b.add(ctx, what, n, back...).goesOn = true
		}
		return Outcome{err: b.failing, pending: adds(what)}, false
	}
	call := b.add(ctx, what, n, back...)
	at := len(call.back) - len(back)
	call.goesOn = call.goesOn || goesOn
	closed := m.Client.Calls.Done()
	if adds(what) { // the call is made even so, and Close waits for it
		closed = nil
	}
	m.of.mu.Unlock()
	select {
	case <-call.ended:
	case <-ctx.Done():
	case <-closed:
	}
	m.of.mu.Lock()
	if !call.over {
		call.goesOn = true
		b.left()
		return Outcome{pending: what != lua.Drain}, true // that is undone
	}
	o = call.Outcome
	if o.err == nil {
		o.given = o.given[at : at+len(back)]
	}
	return o, false
}

// add adds a change, by itself or to the last one. Counters.mu is held.
func (b *combiner) add(ctx context.Context, what lua.Change, n int64, back ...lua.PermitID) *counterChange {
	if last := len(b.changes) - 1; merges(what) && last >= 0 && b.changes[last].what == what {
		call := b.changes[last]
		sum, ids := call.n+n, len(call.back)+len(back)
		if -lua.MaxPermits <= sum && sum <= lua.MaxPermits && ids <= lua.MaxPermitIDs {
			call.n, call.back = sum, append(call.back, back...)
			return call
		}
	}
	call := &counterChange{what: what, n: n, back: slices.Clone(back), ctx: ctx, ended: make(chan struct{})}
	b.changes = append(b.changes, call)
	b.poke()
	return call
}

// giveBack adds a change that returns unclaimed permits. Counters.mu is held.
func (b *combiner) giveBack(n int64, ids ...lua.PermitID) {
	if n > 0 || len(ids) > 0 {
		b.add(context.Background(), lua.Add, n, ids...).goesOn = true
	}
}

func (call *counterChange) end(o Outcome) {
	call.over, call.Outcome = true, o
	close(call.ended)
}
