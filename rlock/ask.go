package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/lua"
)

// answer is what came of asking Redis: a reply, or the last error.
type answer struct {
	reply lua.AcquireReply
	sent  time.Time // just before the call that was answered: the lease counts from here (G2)
	err   error
}

// The fates of a question: whoever is first, the goroutine with the answer or the caller who gives up,
// decides.
const (
	asked int32 = iota
	answered
	abandoned
)

// ask sends the acquire: on the caller's goroutine if the wait can not end, or if Redis answers promptly (see pulse), else
// on one of its own. It reports false when the caller's wait, or the client, ended first. Then a goroutine that Close waits
// for waits for what Redis still answers, gives it back, and ends the call.
func (l *locking) ask(count int) (a answer, mine bool) {
	c := l.mutex.client
	if l.ctx.Done() == nil && l.limit.IsZero() {
		return l.send(l.ctx, count), true
	}
	if now := time.Now(); c.mayAskHere(l.ctx, l.limit, now) && c.start() {
		a = l.try(c.brief.call(now), l.args(count), now)
		if l.ctx.Err() != nil || !l.limit.IsZero() && time.Now().After(l.limit) || c.isClosed() {
			l.shared = true
			go l.undoStarted(count, a)
			return answer{}, false
		}
		c.running.Done()
		if a.err == nil || !mayPass(a.err) {
			return a, true
		}
	}
	if l.done == nil { // most of those that wait never ask
		l.done = make(chan struct{}, 1)
	}
	l.fate.Store(asked)
	attempt, cancel := l.until(l.limit)
	defer cancel()
	if !c.background(func() { l.question(attempt, count) }) {
		return answer{err: ErrClosed}, true
	}
	select {
	case <-l.done:
		return l.answer, true
	case <-attempt.Done():
	case <-c.done:
	}
	if l.fate.CompareAndSwap(asked, abandoned) {
		l.shared = true
		return answer{}, false
	}
	<-l.done
	return l.answer, true
}

// question sends the acquire for a caller who may give up meanwhile.
func (l *locking) question(attempt context.Context, count int) {
	a := l.send(attempt, count)
	// An error because the caller's wait has ended is no answer: the caller is giving up.
	gaveUp := a.err != nil && attempt.Err() != nil
	if !gaveUp && l.fate.CompareAndSwap(asked, answered) {
		l.answer = a
		l.done <- struct{}{}
		return
	}
	l.undo(count, a)
}

// undoStarted is undo on a goroutine that was counted before, so that Close waits for it.
func (l *locking) undoStarted(count int, a answer) {
	defer l.mutex.client.running.Done()
	l.undo(count, a)
}

// undo gives back what an abandoned ask may have got.
func (l *locking) undo(count int, a answer) {
	h, m, c := l.hold, l.mutex, l.mutex.client
	granted := a.err == nil && a.reply.Status == lua.Acquired
	switch {
	case count > 1:
		if granted {
			h.owner.mu.Lock()
			ttl := h.ttl()
			h.owner.mu.Unlock()
			// If it fails the next call for this hold puts the count right.
			_, _ = c.releaseOnce(m, m.releaseArgs(h, count-1, ttl))
		}
		l.end()
	case granted:
		c.giveBack(m, h)
		l.waiter.Leave()
		l.end()
	default:
		l.leave()
	}
}

// send asks Redis, again if something went wrong that may pass: the script recognises a repeat. It
// stops early when the caller has gone.
func (l *locking) send(attempt context.Context, count int) answer {
	c, args := l.mutex.client, l.args(count)
	sent := time.Now()
	retry := newRetry(sent.Add(patience))
	for ; ; sent = time.Now() {
		a := l.try(c.callAt(sent, args.ReplicaWait), args, sent)
		if a.err == nil || !retry.wait(a.err, attempt.Done(), c.done) {
			return a
		}
	}
}

func (l *locking) args(count int) lua.AcquireArgs {
	m, c := l.mutex, l.mutex.client
	args := lua.AcquireArgs{Name: m.name, Owner: l.hold.field(), Lease: m.ttl(), Count: count, Fence: m.fenceOf()}
	if count == 1 { // a re-entry adds nothing that a failover could let somebody else have
		args.Replicas, args.ReplicaWait = c.options.Replicas, c.options.ReplicaTimeout
	}
	return args
}

// try sends the acquire once, at sent.
func (l *locking) try(ctx context.Context, args lua.AcquireArgs, sent time.Time) answer {
	h, c := l.hold, l.mutex.client
	reply, err := l.mutex.kind.acquire(ctx, c.rdb, args)
	c.pulse.beat(sent, err)
	if err == nil {
		if h.doubt != nil {
			h.doubt.unsure = false
		}
		if l.last.Load() != nil {
			l.last.Store(nil)
		}
		return answer{reply: reply, sent: sent}
	}
	if args.Count == 1 && mayHaveRun(err) {
		h.doubted(time.Now().Add(min(args.Lease, maxSweep))).late++
	}
	failed := err // of its own, so that no other call allocates
	l.last.Store(&failed)
	return answer{err: err}
}
