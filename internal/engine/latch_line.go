package engine

import (
	"context"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
)

// A process makes the calls that change a latch one after the other. So they run in their callers' order, and one number identifies late
// and repeated calls. CountDowns that arrive while another call is under way share one call:
//
//	state    event                                     next
//	in line  the call before it has ended              sent
//	         its callers have left                     out, unless it counts down: then it is sent anyway
//	sent     reply                                     out: its callers go on
//	         error that may pass                       sent again, for 3 s after the first error
//	         other error                               out: its callers fail
//	         3 s over, Close                           failing from now on
//	failing  at once                                   its callers, and all in line or yet to come, get ErrUnreachable
//	         it counts down, or may have set the count sent again, until Redis answers
//	         it may have deleted the latch             out
//	         a minute is over, or Close                out, and all CountDowns in line with it; the log says so
//
// A CountDown counts even if its callers have left, and a count that may be set stays: neither could be undone once others have seen it.
type latchLine struct {
	m       Latch
	calls   []*latchCall // the first is under way
	failing error        // why the first call is still unanswered; nil: the line is not failing
}

type latchChange int8

const (
	latchSet latchChange = iota
	latchDown
	latchDelete
)

// latchCall is one call, shared by all callers it counts down for.
type latchCall struct {
	change  latchChange
	n       int64           // the count, or by how much to count down
	ctx     context.Context // of the first caller, for its values
	callers int             // still waiting
	goesOn  bool            // a caller relies on the call, and has left, or was told that it goes on
	sent    bool
	left    bool          // counted as left behind
	alone   chan struct{} // closed when no caller waits for it, unless it counts down
	ended   chan struct{} // closed when the following is set
	over    bool
	did     bool
	err     error
	pending bool // it failed, and may have changed the latch, or may yet
}

const (
	// latchKept is how long Redis remembers a call: copies are sent for a minute, and may arrive another minute late.
	latchKept = 2 * sweep.Most

	latchCount = "the count of a latch" // that may be wrong
)

// TrySetCount sets the count, if there is none.
func (m Latch) TrySetCount(ctx context.Context, n int64) (bool, error) {
	return m.change(ctx, latchSet, n)
}

// CountDown counts down by one.
func (m Latch) CountDown(ctx context.Context) error {
	_, err := m.change(ctx, latchDown, 1)
	return err
}

// Delete deletes the latch.
func (m Latch) Delete(ctx context.Context) (bool, error) { return m.change(ctx, latchDelete, 0) }

func (m Latch) change(ctx context.Context, what latchChange, n int64) (bool, error) {
	began := time.Now()
	if err := m.begin(ctx, time.Time{}); err != nil {
		return false, err
	}
	c := m.Engine
	defer c.Calls.Ended()
	if ctx.Err() != nil {
		return false, m.notSent(ctx)
	}
	failed, closed := m.failed, c.Calls.Done()
	if what == latchDown {
		failed, closed = m.unreachable, nil // the call is made even so, and Close waits for it
	}
	counted, err := c.Calls.Admit(ctx, m.Slot, time.Time{})
	if err != nil {
		return false, m.notAdmitted(ctx, err)
	}
	call, err := m.enter(ctx, what, n, counted)
	if err != nil {
		return false, m.changeFailed(what == latchDown, m.unreachable(err))
	}
	select {
	case <-call.ended:
	case <-ctx.Done():
	case <-closed:
	}
	switch over, pending := m.isOver(call); {
	case !over:
		return false, m.changeFailed(pending, m.left(ctx, silence(began)))
	case call.err != nil:
		return false, m.changeFailed(call.pending, failed(call.err))
	}
	return call.did, nil
}

// mayStay reports whether the call's effect may come, or stay, if nobody learns of it.
func (call *latchCall) mayStay(mayHaveRun bool) bool { return call.change == latchDown || mayHaveRun }

// enter puts a call in line, for one more caller. It returns the error of a failing line, which has only CountDowns in it. counted: see
// calls.Admit.
func (m Latch) enter(ctx context.Context, what latchChange, n int64, counted bool) (*latchCall, error) {
	c := m.Engine
	all := m.of
	all.mu.Lock()
	defer all.mu.Unlock()
	l := all.lines[m.Key]
	if l == nil {
		if all.lines == nil {
			all.lines = make(map[string]*latchLine)
		}
		l = &latchLine{m: m}
		all.lines[m.Key] = l
		c.Calls.Go(l.run)
	}
	if l.failing != nil && what != latchDown {
		return nil, l.failing
	}
	var call *latchCall
	if last := len(l.calls) - 1; what == latchDown && last >= 0 && l.calls[last].takes(l.failing != nil) {
		call = l.calls[last]
		call.n += n
	} else {
		call = &latchCall{change: what, n: n, ctx: ctx, left: counted, ended: make(chan struct{})}
		counted = false
		if what != latchDown {
			call.alone = make(chan struct{})
		}
		l.calls = append(l.calls, call)
	}
	if counted { // the call under way is another's
		c.Calls.LeftEnds(m.Slot)
	}
	if l.failing != nil {
		call.goesOn = true
		return nil, l.failing
	}
	call.callers++
	return call, nil
}

// takes reports whether a CountDown may join a call. The callers of a failed call got its error, and so does a new one.
func (call *latchCall) takes(failing bool) bool {
	return call.change == latchDown && !call.sent && (!call.over || failing)
}

// isOver reports whether a call has ended. If it has not, one of its callers leaves; pending: it may have changed the latch, or may yet.
func (m Latch) isOver(call *latchCall) (over, pending bool) {
	c := m.Engine
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	if call.over {
		return true, false
	}
	pending = call.mayStay(call.sent)
	call.goesOn = true
	if call.callers--; call.callers > 0 {
		return false, pending
	}
	if call.alone != nil {
		close(call.alone)
	}
	if call.sent && !call.left {
		call.left = true
		c.Calls.Leave(m.Slot)
	}
	return false, pending
}

// run makes the calls, and ends when none are left.
func (l *latchLine) run() {
	for call := l.next(); call != nil; call = l.next() {
		l.make(call)
	}
}

// next returns the call to make; nil if there is none and the line has ended.
func (l *latchLine) next() *latchCall {
	all := l.m.of
	all.mu.Lock()
	defer all.mu.Unlock()
	for len(l.calls) > 0 {
		call := l.calls[0]
		if call.sent = call.callers > 0 || call.change == latchDown; call.sent {
			return call
		}
		l.out(call)
		l.calls = l.calls[1:]
	}
	delete(all.lines, l.m.Key)
	return nil
}

// make makes the first call.
func (l *latchLine) make(call *latchCall) {
	c, args := l.m.Engine, l.args()
	began, mayHaveRun := time.Now(), false
	again := calls.Retry{Least: calls.MinTries}
	for {
		did, err := call.send(c.Calls.Context(call.ctx, time.Now(), 0), c, args)
		c.Calls.Answered(l.m.Slot, err)
		refused := err != nil && !calls.MayPass(err)
		if err == nil || refused && !l.goesOn(call, mayHaveRun) {
			l.end(call, did, err, refused && mayHaveRun)
			break
		}
		mayHaveRun = mayHaveRun || calls.MayHaveRun(err)
		if again.Wait(err, call.alone, c.Calls.Done()) {
			continue
		}
		if refused {
			err = calls.ErrNoAnswer // it is counted all the same, and so was not refused
		}
		l.fail(call, err, mayHaveRun)
		if call.change != latchDelete && call.mayStay(mayHaveRun) && !l.m.insist(began, latchCount, func(ctx context.Context) error {
			_, err := call.send(ctx, c, args)
			return err
		}) {
			l.drop()
		}
		break
	}
	l.shift(call)
}

// goesOn reports whether a refused CountDown must still be made: an earlier copy may have run, or a caller relies on it.
func (l *latchLine) goesOn(call *latchCall, mayHaveRun bool) bool {
	all := l.m.of
	all.mu.Lock()
	defer all.mu.Unlock()
	return call.change == latchDown && (mayHaveRun || call.goesOn)
}

func (l *latchLine) args() lua.LatchCall {
	m, c := l.m, l.m.Engine
	return lua.LatchCall{
		Name: m.Key, Record: m.queue, Client: c.ID, Number: m.of.numbers.Add(1), Keep: latchKept, Publish: lua.Publish(c.KnownChannel(m.Spec)),
	}
}

func (call *latchCall) send(ctx context.Context, c *Engine, args lua.LatchCall) (did bool, err error) {
	switch call.change {
	case latchSet:
		return lua.SetCount(ctx, c.rdb, args, call.n)
	case latchDown:
		return lua.CountDown(ctx, c.rdb, args, call.n)
	default:
		return lua.DeleteLatch(ctx, c.rdb, args)
	}
}

// end gives a call's result to its callers.
func (l *latchLine) end(call *latchCall, did bool, err error, pending bool) {
	all := l.m.of
	all.mu.Lock()
	defer all.mu.Unlock()
	call.end(did, err, pending)
}

func (call *latchCall) end(did bool, err error, pending bool) {
	if !call.over {
		call.over, call.did, call.err, call.pending = true, did, err, pending
		close(call.ended)
	}
}

// fail fails the callers of all calls after no answer to the first. Unsent calls are dropped, unless they count down.
func (l *latchLine) fail(first *latchCall, err error, mayHaveRun bool) {
	all := l.m.of
	all.mu.Lock()
	defer all.mu.Unlock()
	l.failing = err
	for _, call := range l.calls {
		call.end(false, err, call.mayStay(call == first && mayHaveRun))
		call.goesOn = true
	}
	l.calls = slices.DeleteFunc(l.calls, func(call *latchCall) bool {
		dropped := call != first && call.change != latchDown
		if dropped {
			l.out(call)
		}
		return dropped
	})
}

// shift takes the first call out of the line.
func (l *latchLine) shift(call *latchCall) {
	all := l.m.of
	all.mu.Lock()
	defer all.mu.Unlock()
	l.out(call)
	l.calls, l.failing = l.calls[1:], nil
}

// out is called when a call is not made any more.
func (l *latchLine) out(call *latchCall) {
	if call.left {
		call.left = false
		l.m.Engine.Calls.LeftEnds(l.m.Slot)
	}
}

// drop takes all other calls out of the line, after the time for them.
func (l *latchLine) drop() {
	all := l.m.of
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, call := range l.calls[1:] {
		call.end(false, calls.ErrNoAnswer, true)
		l.out(call)
	}
	l.calls = l.calls[:1]
}
