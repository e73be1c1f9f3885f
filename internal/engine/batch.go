package engine

import (
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

// rlock.All takes several locks of one Client by one call where it can: that is one round trip, and Redis takes all or none. So does this
// file: it joins the queue of each, or leaves them all, and releases what was taken if not all can be entered. It does not wait; after a
// refusal, All does. The attempts are a chain (attempt.go), and UnlockTogether ends what they took.

// MaxBatch bounds the locks of one call, and so how long the call blocks Redis: a few milliseconds.
const MaxBatch = 1000

// IsBatchable reports whether one call can take or release the lock with others.
func IsBatchable(m *tenure.Lock) bool {
	return m.Kind.PlainScripts && m.Linger == 0 && m.Client.Options.Replicas == 0
}

// Together is what came of TakeTogether: levels, or an error, or neither.
type Together struct {
	Levels  []*tenure.Level // in the order of the locks; UnlockTogether ends them
	Err     error
	Refused int  // the index of a lock that another owner holds or others here wait for, which Err is about; -1 after other failures
	Apart   bool // without an error: Redis refused the call because of one of the locks; calls for each alone show which
}

func failedTogether(err error) Together { return Together{Err: err, Refused: -1} }

// TakeTogether takes all locks by one call, or none, as a TryLock(0) of each would. It needs the turn in every queue of the process (I7),
// so it does not ask Redis if other goroutines wait for one of the locks.
func TakeTogether(who tenure.Caller, all []*tenure.Lock) Together {
	c := all[0].Client
	if !c.Calls.Start() {
		return failedTogether(all[0].FailClosed())
	}
	defer c.Calls.Ended()
	awaitFreed(who, all)
	var l *Attempt
	last := &l
	for i, m := range all {
		x := &Attempt{AcquireRequest: AcquireRequest{Caller: who, Lock: m, Tenure: m.NewTenure(), Count: 1}}
		if i == 0 {
			if err := x.begins(); err != nil {
				return failedTogether(err)
			}
		}
		if !x.join(true) {
			l.withdraw()
			return Together{Refused: i, Err: x.Failure(nil)}
		}
		*last, last = x, &x.next
	}
	a, left, err := l.ask()
	switch {
	case left:
		return failedTogether(l.Failure(err))
	case l.apart:
		l.withdraw()
		return Together{Apart: true}
	case err != nil:
		l.withdraw()
		return failedTogether(l.Failure(err))
	case a.Status != lua.Acquired:
		l.withdraw()
		at, refused := l, 0
		for ; at.delivered.Status == 0; at = at.next {
			refused++
		}
		at.refused = &at.delivered.AcquireReply
		if who.Once {
			at.refusedOnce()
		}
		return Together{Refused: refused, Err: at.Failure(nil)}
	}
	o := l.enter(a)
	var levels []*tenure.Level
	for x := l; x != nil && x.level != nil; x = x.next {
		levels = append(levels, x.level)
	}
	if o.Err != nil && len(levels) > 0 {
		for _, l := range levels {
			l.Hold.Tenure.Stays = nil // it was never returned to the caller
		}
		who.LeaveTo(func() { _ = UnlockTogether(levels) }, c.Options.Tell, c)
	}
	if o.Err != nil {
		return failedTogether(o.Err)
	}
	return Together{Levels: levels}
}

// awaitFreed waits for the end of tenures that the process keeps of those locks, for as long as a call of the Lock may take.
func awaitFreed(c tenure.Caller, all []*tenure.Lock) {
	var ended []<-chan struct{}
	for _, m := range all {
		if e := m.Client.FreeKept(m.Key); e != nil {
			ended = append(ended, e)
		}
	}
	until := c.CallEnds()
	for _, e := range ended {
		c.AwaitEnd(e, until)
	}
}
