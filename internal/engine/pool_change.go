package engine

import (
	"context"
	"slices"

	"github.com/go-rlock/rlock/lua"
)

// permitChange is a change of the number of permits.
type permitChange struct {
	of      *pool
	what    lua.Change
	n       int64
	back    []lua.PermitID  // to be given back
	ctx     context.Context // for its values
	callers int             // that wait for it
	goesOn  bool            // needed by the pool itself, or a caller that has left, or was told that it goes on
	over    bool
	ended   chan struct{} // closed when the following is set
	done    int64
	given   []lua.Given // one for each permit given back
	err     error
	pending bool // it failed, and may have changed the number, or may yet
}

// stays reports whether a change that may have run is not undone if nobody learns of it.
func stays(what lua.Change) bool { return what != lua.Drain }

// adds reports whether a change must be made even if its caller leaves, because it gives permits away.
func adds(what lua.Change) bool { return what == lua.Add || what == lua.AddIfExists }

// change adds a change for a caller, and gives back those permits; at is their index in the change. Adding changes are merged until
// sent. The error is that of a failing pool, which makes only adding changes, later. If the caller cannot leave and nothing else is
// under way, it returns when the change has ended.
func (all *pools) change(
	ctx context.Context, m Semaphore, how admission, what lua.Change, n int64, back ...lua.PermitID,
) (call *permitChange, at int, err error) {
	var made *pool
	if call, at, made, err = all.enter(ctx, m, how, what, n, back...); made != nil {
		made.start(how.leaves, call.ended)
	}
	return call, at, err
}

// admission is how a change was admitted.
type admission struct {
	leaves  bool // its caller may leave
	goesOn  bool // it is made even if Redis refuses it
	counted bool // see calls.Admit
}

// enter is change without starting a new pool, which is returned.
func (all *pools) enter(
	ctx context.Context, m Semaphore, how admission, what lua.Change, n int64, back ...lua.PermitID,
) (call *permitChange, at int, made *pool, err error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	p, made := all.get(m, how.counted)
	if p.failing != nil && !adds(what) {
		return nil, 0, nil, p.failing
	}
	call = p.add(ctx, what, n, back...)
	if p.failing != nil {
		call.goesOn = true
		return nil, 0, nil, p.failing
	}
	call.callers++
	call.goesOn = call.goesOn || how.goesOn
	return call, len(call.back) - len(back), made, nil
}

// add adds a change. pools.mu is held.
func (p *pool) add(ctx context.Context, what lua.Change, n int64, back ...lua.PermitID) *permitChange {
	if last := len(p.changes) - 1; what == lua.Add && last >= 0 && p.changes[last].what == lua.Add {
		call := p.changes[last]
		sum, ids := call.n+n, len(call.back)+len(back)
		told := call.over && p.failing == nil // its callers know of the failure; a new caller must not get it
		if !told && -lua.MaxPermits <= sum && sum <= lua.MaxPermits && ids <= lua.MaxPermitIDs {
			call.n, call.back = sum, append(call.back, back...)
			return call
		}
	}
	call := &permitChange{of: p, what: what, n: n, back: slices.Clone(back), ctx: ctx, ended: make(chan struct{})}
	p.changes = append(p.changes, call)
	p.poke()
	return call
}

// isOver reports whether a change has ended. If it has not, one of its callers leaves.
func (all *pools) isOver(call *permitChange) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if !call.over {
		call.callers--
		call.goesOn = true
		call.of.left()
	}
	return call.over
}

// giveBack adds a change that returns unclaimed permits. pools.mu is held.
func (p *pool) giveBack(n int64, ids ...lua.PermitID) {
	p.add(context.Background(), lua.Add, n, ids...).goesOn = true
}

func (call *permitChange) end(done int64, err error, pending bool) {
	if !call.over {
		call.over, call.done, call.err, call.pending = true, done, err, pending
		close(call.ended)
	}
}
