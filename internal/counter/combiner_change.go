package counter

import (
	"context"
	"slices"
	"time"

	"github.com/go-rlock/rlock/lua"
)

// A change waits in its combiner's list until a call sends it (combiner_call.go). Changes that only add are merged there, so that many
// releases take one call. A change may outlive its caller, since permits must go back even if that has left. The combiner makes some
// itself: it gives back what was granted to callers that have left.

// counterChange is a change of a counter.
type counterChange struct {
	of      *combiner
	what    lua.Change
	n       int64
	back    []lua.PermitID  // to be given back
	ctx     context.Context // for its values
	callers int             // that wait for it
	goesOn  bool            // needed by the combiner itself, or a caller that has left, or was told that it goes on
	over    bool
	ended   chan struct{} // closed when the following is set
	done    int64
	given   []lua.Given // one for each permit given back
	err     error
	pending bool // it failed, and may have changed the number, or may yet
}

// The changes of a latch, beside those of lua.Change for semaphores.
const (
	countDown lua.Change = -1 - iota
	setCount
	deleteLatch
)

// stays reports whether a change that may have run is not undone if nobody learns of it.
func stays(what lua.Change) bool { return what != lua.Drain }

// adds reports whether a change must be made even if its caller leaves, because it gives permits away, or counts down.
func adds(what lua.Change) bool { return merges(what) || what == lua.AddIfExists }

// merges reports whether several such changes can be made as one.
func merges(what lua.Change) bool { return what == lua.Add || what == countDown }

// admission is how a change was admitted, and how long its caller waits for it.
type admission struct {
	leaves  bool             // its caller may leave
	goesOn  bool             // it is made even if Redis refuses it
	counted bool             // see calls.Admit
	done    <-chan struct{}  // the caller leaves when this is closed,
	closed  <-chan struct{}  // or this,
	over    <-chan time.Time // or then
}

// change makes a change for a caller, and gives back those permits; at is their index in the change. Adding changes are merged until sent.
// call is nil if the caller left before its end. The error is that of a failing combiner, which makes only adding changes, later.
func (all *combiners) change(
	ctx context.Context, m Counter, how admission, what lua.Change, n int64, back ...lua.PermitID,
) (call *counterChange, at int, err error) {
	call, at, made, err := all.enter(ctx, m, how, what, n, back...)
	if err != nil {
		return nil, 0, err
	}
	if made != nil {
		made.start(how.leaves, call.ended)
	}
	select {
	case <-call.ended:
	case <-how.done:
	case <-how.closed:
	case <-how.over:
	}
	if !all.isOver(call) {
		return nil, 0, nil
	}
	return call, at, nil
}

// enter adds a change. If made is not nil, the caller must start it.
func (all *combiners) enter(
	ctx context.Context, m Counter, how admission, what lua.Change, n int64, back ...lua.PermitID,
) (call *counterChange, at int, made *combiner, err error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	b, made := all.get(m, how.counted)
	if b.failing != nil && !adds(what) {
		return nil, 0, nil, b.failing
	}
	call = b.add(ctx, what, n, back...)
	if b.failing != nil {
		call.goesOn = true
		return nil, 0, nil, b.failing
	}
	call.callers++
	call.goesOn = call.goesOn || how.goesOn
	return call, len(call.back) - len(back), made, nil
}

// add adds a change. combiners.mu is held.
func (b *combiner) add(ctx context.Context, what lua.Change, n int64, back ...lua.PermitID) *counterChange {
	if last := len(b.changes) - 1; merges(what) && last >= 0 && b.changes[last].what == what {
		call := b.changes[last]
		sum, ids := call.n+n, len(call.back)+len(back)
		told := call.over && b.failing == nil // its callers know of the failure; a new caller must not get it
		if !told && -lua.MaxPermits <= sum && sum <= lua.MaxPermits && ids <= lua.MaxPermitIDs {
			call.n, call.back = sum, append(call.back, back...)
			return call
		}
	}
	call := &counterChange{of: b, what: what, n: n, back: slices.Clone(back), ctx: ctx, ended: make(chan struct{})}
	b.changes = append(b.changes, call)
	b.poke()
	return call
}

// isOver reports whether a change has ended. If it has not, one of its callers leaves.
func (all *combiners) isOver(call *counterChange) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if !call.over {
		call.callers--
		call.goesOn = true
		call.of.left()
	}
	return call.over
}

// giveBack adds a change that returns unclaimed permits. combiners.mu is held.
func (b *combiner) giveBack(n int64, ids ...lua.PermitID) {
	b.add(context.Background(), lua.Add, n, ids...).goesOn = true
}

func (call *counterChange) end(done int64, err error, pending bool) {
	if !call.over {
		call.over, call.done, call.err, call.pending = true, done, err, pending
		close(call.ended)
	}
}
