package engine

import "github.com/go-rlock/rlock/internal/tenure"

// MaxBatch bounds the locks of one call, and so how long the call blocks Redis: a few milliseconds.
const MaxBatch = 1000

// IsBatchable reports whether one call can take or release the lock with others.
func IsBatchable(m *tenure.Lock) bool {
	return m.Kind.PlainScripts && m.Linger == 0 && m.Client.Options.Replicas == 0
}

// TakeTogether takes all locks by one call, or none, as a TryLock(0) of each would. It needs the turn in every queue of the process (I7),
// so it does not ask Redis if other goroutines wait for one of the locks. refused is the index of a lock that another owner holds or others
// here wait for, and err is about that lock; it is -1 after other failures. UnlockTogether ends the levels.
func TakeTogether(who tenure.Caller, all []*tenure.Lock) (levels []*tenure.Level, refused int, err error) {
	c := all[0].Client
	if !c.Calls.Start() {
		return nil, -1, all[0].FailClosed()
	}
	defer c.Calls.Ended()
	awaitFreed(who, all)
	var l *Attempt
	last := &l
	for i, m := range all {
		x := &Attempt{AcquireRequest: AcquireRequest{Caller: who, Lock: m, Tenure: m.NewTenure(), Count: 1}}
		if i == 0 {
			if err := x.begins(); err != nil {
				return nil, -1, err
			}
		}
		if !x.join(true) {
			l.withdraw((*tenure.Client).SweepInCall)
			return nil, i, x.Failure(nil)
		}
		*last, last = x, &x.next
	}
	a, left, err := l.ask()
	switch {
	case left:
		return nil, -1, l.Failure(err)
	case err != nil:
		l.withdraw((*tenure.Client).SweepInCall)
		if err != ErrAlone { //nolint:errorlint // never wrapped
			err = l.Failure(err)
		}
		return nil, -1, err
	case !a.Granted():
		l.withdraw((*tenure.Client).SweepInCall)
		at := l
		for ; at.delivered.Status == 0; at = at.next {
			refused++
		}
		at.refused = &at.delivered.AcquireReply
		if who.Once {
			at.refusedOnce()
		}
		return nil, refused, at.Failure(nil)
	}
	_, err = l.enter(a)
	for x := l; x != nil && x.level != nil; x = x.next {
		levels = append(levels, x.level)
	}
	if err != nil && len(levels) > 0 {
		for _, l := range levels {
			l.Hold().Tenure().Stays = nil // it was never returned to the caller
		}
		who.LeaveTo(func() { _ = UnlockTogether(levels) }, c)
	}
	if err != nil {
		return nil, -1, err
	}
	return levels, -1, nil
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
