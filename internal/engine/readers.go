package engine

import (
	"time"

	"github.com/go-rlock/rlock/internal/tenure"
)

// Readers of one process share a tenure. A reader that Redis lets in leads: readers that arrived while it asked get in with it. For a while
// others join it in memory, as separate holds on its tenure, which ends with the last of them.
//
// The leader's call has checked the marks of waiting writers. So a writer waits only for readers let in by calls, and for those that joined
// within HandOff.For of the reply. After half of that time the next reader asks Redis and leads from its reply on; the others go on as
// before.
//
// A reader does not join if it would have to wait in the process's own queue, for example behind a writer.

// mayShare reports whether a Lock asks Redis for the same as every other reader (see Lock.shares), has nothing unresolved there, and is not
// inside the writer.
func (l *Attempt) mayShare() bool {
	m := l.Lock
	return m.Shares && l.within == nil && l.Tenure.IsClean()
}

// lead lets other readers join a Lock that a call let in.
func (l *Attempt) lead(a tenure.AcquireResult) {
	if a.Path == tenure.ByCall && l.mayShare() {
		l.leads = true
		l.Lock.Client.Open.Lead(l.Tenure)
	}
}

// share joins the readers of this process, unless there are none, their lease is too short, or they came too long ago.
func (l *Attempt) share() (o tenure.Outcome) {
	m := l.Lock
	if !l.mayShare() || !m.Client.Hub.MayShare(m.Waiters()) {
		return o
	}
	t := m.Client.Open.Leading(m.Key, m.Client.Options.HandOff.For)
	if t == nil || !m.CanHave(t) {
		return o
	}
	if left := time.Until(m.Client.Leases.Until(&t.Lease)); left < m.TTL/3 || left > m.TTL { // nor a longer one than it asks for
		return o
	}
	ctx, cancel := m.LevelCtx(l.Parent())
	if o = t.Admitted(ctx, cancel, &l.Caller, m, tenure.AcquireResult{Path: tenure.Shared}, false); o.Level == nil {
		cancel(nil)
		return l.explained(o)
	}
	l.level = o.Level
	l.Tenure = t
	l.observed(o.Level.Hold, tenure.Alone)
	l.isShared()
	return o
}

// explained has the error that the caller gets, if there is one.
func (l *Attempt) explained(o tenure.Outcome) tenure.Outcome {
	if o.Err != nil {
		o.Err = l.Failure(o.Err)
	}
	return o
}

// isShared reports to the tracer and the stats that the Lock joined other readers.
func (l *Attempt) isShared() {
	l.Took(tenure.PathShared)
	l.Lock.Client.Counts.Shared.Add(1)
}

// Share makes the Lock join with, an earlier one that leads. The Lock sleeps, and reads its tenure only under the hub's mutex.
func (l *Attempt) Share(with any) bool {
	first := with.(*Attempt) //nolint:errcheck // no other value is ever set
	if !first.leads || !l.mayShare() || !l.Lock.CanHave(first.Tenure) {
		return false
	}
	first.Tenure.Expect()
	l.Tenure, l.delivered = first.Tenure, tenure.AcquireResult{Path: tenure.LetIn}
	return true
}
