package faults

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// histLate is how long after its trusted time a ctx may be cancelled on a loaded machine; later is a
// violation of G2, unless the process stood still, see isLate.
const histLate = time.Second

// histHold is one level of a worker's hold.
type histHold struct {
	name, owner string
	hold        string // its name in the history
	outer       *histHold
	ctx         context.Context
	cancel      context.CancelFunc // of the ctx passed to Lock
	release     rlock.UnlockFunc
	keeps       bool        // the Client may keep the lock after the unlock
	ticket      string      // to which it was exported; the owner in Redis from then on
	base        *histBase   // shared by all levels
	left        atomic.Bool // unlocked
	crowded     atomic.Bool // other goroutines are inside as well
}

// histBase is a hold. It records a loss, at the earliest moment at which a goroutine inside noticed.
type histBase struct {
	mu         sync.Mutex // guards the following
	open       int        // levels
	last       int64      // time of the last call of an unlock
	low, heard int64      // the hold ended between low and heard, or when its trust ended
	trust      int64      // end of trust, known at heard

	keeps atomic.Bool // one of the levels may
}

func (b *histBase) enter() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open++
}

// leave is called before a level is unlocked.
func (b *histBase) leave(call int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
	b.last = max(b.last, call)
}

// over is the earliest time at which a returned unlock may have ended the hold: of several at once, any may be the
// last in Redis.
func (b *histBase) over(returned int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open > 0 {
		return returned
	}
	return b.last
}

// hear records a loss, and returns the first record.
func (b *histBase) hear(low, heard, trust int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.heard == 0 {
		b.low, b.heard, b.trust = low, heard, trust
	}
	return b.heard
}

func (b *histBase) isLost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.heard != 0
}

// of returns the innermost level of that lock around h, or nil.
func (h *histHold) of(name string) *histHold {
	for h != nil && h.name != name {
		h = h.outer
	}
	return h
}

// says reports whether err reports the loss of this hold.
func (h *histHold) says(err error) bool {
	var loss *rlock.LostError
	return errors.As(err, &loss) && loss.Name == h.name && loss.Owner == h.owner
}

// watch records the cancellation of the level's ctx by the loss of this hold, not of an outer one. The unlock
// reports the losses that it finds.
func (h *histHold) watch(w *histWorker) {
	context.AfterFunc(h.ctx, func() {
		now := histNow()
		if !h.left.Load() && h.says(context.Cause(h.ctx)) {
			h.base.hear(now, now, w.log.trusted(histKey{h.name, h.owner}))
		}
	})
}

// unlock ends the level, if it is still open.
func (h *histHold) unlock(w *histWorker) {
	if !h.left.CompareAndSwap(false, true) {
		return
	}
	defer h.cancel()
	k := histKey{h.name, h.owner}
	e := histEntry{Name: h.name, Owner: h.hold, Worker: w.id, Keeps: h.keeps || h.base.keeps.Load(), Call: histNow()}
	h.base.leave(e.Call)
	err := h.release()
	e.Return = histNow()
	switch {
	case err == nil && h.ticket != "":
		e.Kind, e.Ticket = histExport, h.ticket
	case err == nil:
		e.Kind = histUnlock
	case errors.Is(err, rlock.ErrNotHeld):
		e.Kind = histRefused
		if h.says(err) {
			if h.base.hear(h.base.over(e.Return), e.Return, w.log.trusted(k)) >= e.Call {
				w.log.doubt(k) // lost while the release was under way, which may have lowered the count
			}
		}
	default:
		e.Kind = histUnknown
		w.log.doubt(k)
		w.didNot(err)
		if errors.Is(err, context.Canceled) { // no caller cancels an unlock
			w.wrong(err)
		}
	}
	w.log.add(e)
	if again := h.release(); !errors.Is(again, rlock.ErrNotHeld) {
		w.wrong(errors.New("a second unlock did not return ErrNotHeld"))
	}
}

// finish is called when all levels of a hold are unlocked. It records any earlier end of the hold, and a hold that
// lasted too long.
func (h *histHold) finish(w *histWorker) {
	h.base.mu.Lock()
	low, end, trust, last := h.base.low, h.base.heard, h.base.trust, h.base.last
	h.base.mu.Unlock()
	e := histEntry{Kind: histLost, Name: h.name, Owner: h.hold, Worker: w.id, Call: low, Return: end}
	if end != 0 {
		w.did(lost)
		if w.plan.Sabotage != histDeaf { // a section that ignores its ctx is inside until the unlock
			e.Call = min(low, trust)
		}
		w.log.add(e)
	} else {
		end, trust = last, w.log.trusted(histKey{h.name, h.owner})
	}
	if trust == 0 { // histRedis no longer understands the library's commands
		w.wrong(fmt.Errorf("saw no lease of %s", h.owner))
	}
	if over := trust + int64(histLate); isLate(trust, end) {
		e.Kind, e.Call, e.Return = histOver, over, over
		w.log.add(e)
	}
}

// histGrants records the grants that a client got from other processes.
type histGrants struct {
	lease map[string]time.Duration // of each granted owner
	over  map[string]int64         // end of a grant delayed by a sabotage
	late  sync.WaitGroup           // messages delayed by a sabotage
}

func newHistGrants() histGrants {
	return histGrants{lease: make(map[string]time.Duration), over: make(map[string]int64)}
}

// histGrant is the message '<owner> <lease> <grants> <token>' to one process.
func histGrant(payload string) (owner string, lease time.Duration, ok bool) {
	words := strings.Fields(payload)
	if len(words) != 4 {
		return "", 0, false
	}
	ms, err := strconv.Atoi(words[1])
	return words[0], time.Duration(ms) * time.Millisecond, err == nil
}

// Dedicate returns the connection for subscriptions, and records its messages.
func (r histRedis) Dedicate() (rueidis.DedicatedClient, func()) {
	conn, cancel := r.Client.Dedicate()
	return histConn{conn, r}, cancel
}

// histConn is a subscribing connection.
type histConn struct {
	rueidis.DedicatedClient

	redis histRedis
}

func (c histConn) SetPubSubHooks(hooks rueidis.PubSubHooks) <-chan error {
	next := hooks.OnMessage
	hooks.OnMessage = func(m rueidis.PubSubMessage) {
		if !c.redis.log.heard(c.redis.sabotage, m, next) {
			next(m)
		}
	}
	return c.DedicatedClient.SetPubSubHooks(hooks)
}

// heard records a message. It reports true if a sabotage has taken the message.
func (l *histLog) heard(sabotage string, m rueidis.PubSubMessage, next func(rueidis.PubSubMessage)) (taken bool) {
	owner, lease, ok := histGrant(m.Message)
	if !ok {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grants.lease[owner] = lease
	if l.ending {
		return false
	}
	switch sabotage {
	case histOldGrant: // the process gets no message until the grant is over
		l.grants.over[owner] = histNow() + int64(lease+lease/4)
		return true
	case histOtherGrant: // the waiter at its second delivery takes it for its own
		l.later(lease/20, func() {
			if other := l.placed(m.Channel, owner); other != "" {
				again := m
				again.Message = strings.Replace(m.Message, owner, other, 1)
				next(again)
			}
		})
	}
	return false
}

// later runs f after d, on a goroutine that ends with f.
func (l *histLog) later(d time.Duration, f func()) {
	l.grants.late.Add(1)
	time.AfterFunc(d, func() {
		defer l.grants.late.Done()
		f()
	})
}

// placed returns the owner, other than granted, that last asked for a place in the queue of that channel's lock.
func (l *histLog) placed(channel, granted string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var last histKey
	for k, at := range l.queued {
		if k.Owner != granted && at > l.queued[last] && l.trust[k] == 0 && strings.Contains(channel, "{"+k.Name+"}") {
			last = k
		}
	}
	if last.Owner == "" {
		return ""
	}
	l.grants.lease[last.Owner] = l.grants.lease[granted]
	l.forged++
	return last.Owner
}
