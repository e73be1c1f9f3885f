package engine

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/lua"
)

// A look asks Redis whether other processes wait for an idle tenure's lock. It runs in the background when the tenure is idle for the first
// time, and when the ear is live again. If it finds earlier waiters, which may not have asked, the tenure is released. While a process
// keeps using the lock, it looks again every third of the watchdog time, for waiters that cannot ask: Redisson and older versions.
//
// For a fenced lock a look also reserves tokens, and again when at most half of them are left. They belong to this tenure, because they are
// reserved while it has the lock (reserve.lua); the next owner raises the counter further.

// spareTokens is how many tokens a look reserves: enough for that many Locks of the process while the next look is under way.
const spareTokens = 1000

// look holds the results of looks, and the look under way. idleTenures.mu guards it.
type look struct {
	ear    uint64    // the ear's live period (idleTenures.ear) in which a look found no waiters; 0: none yet
	at     time.Time // when that look began
	tokens tokens
	over   chan struct{} // closed when the look under way has ended; nil: no look is under way
}

// failed reports that keeping the tenure is useless because all tokens are taken. mu is held.
func (k *look) failed(m *Spec) bool { return m.Kind.Fence != nil && k.ear != 0 && k.tokens.left == 0 }

// lookIfDue begins a look, unless one is under way or none is needed.
func (c *Engine) lookIfDue(x *idle) {
	m, ear := x.tenure.Spec, c.idle.ear.Load()
	c.idle.mu.Lock()
	k := &x.look
	anew := k.ear != ear // earlier messages may have been missed
	alone := !anew && time.Since(k.at) < c.Options.WatchdogTimeout/3
	due := k.over == nil && (!alone || m.Kind.Fence != nil && k.tokens.left <= spareTokens/2)
	started := due && c.Calls.Start()
	if started {
		k.over = make(chan struct{})
	}
	c.idle.mu.Unlock()
	if started {
		if anew {
			c.idle.early.Add(1)
		}
		go func() { // ends with its calls, and Close waits for it
			defer c.Calls.Ended()
			c.lookFor(x, ear, anew)
			if anew {
				c.idle.early.Add(-1)
			}
		}()
	}
}

// lookFor makes the calls of a look. If there are waiters, or that is unknown, the tenure is not kept.
func (c *Engine) lookFor(x *idle, ear uint64, anew bool) {
	began := time.Now()
	spare, alone := c.askForIdle(x.tenure, anew)
	c.idle.mu.Lock()
	k := &x.look
	if alone {
		k.ear, k.at = ear, began
		if spare.left > 0 {
			k.tokens = spare
		}
	}
	close(k.over)
	k.over = nil
	c.idle.mu.Unlock()
	if !alone {
		c.wanted(x.tenure)
	}
}

// askForIdle reports whether the lock has no waiters, and then reserves tokens if the kind has them. In a new live period of the ear it
// also wakes waiters that it may not see; when they ask, the tenure is released.
func (c *Engine) askForIdle(t *Tenure, anew bool) (spare tokens, alone bool) {
	m := t.Spec
	if anew && !c.wakeUnseen(m) {
		return tokens{}, false
	}
	found, err := c.sight([]*askable{{spec: m, tag: t.Tag}})
	if err != nil || found[0].queued || found[0].outside {
		return tokens{}, false
	}
	if m.Kind.Fence == nil {
		return tokens{}, true
	}
	ctx := c.Calls.Context(context.Background(), time.Now(), 0)
	first, n, err := lua.Reserve(ctx, c.rdb, m.Key, m.fenceOf(), t.Field(), spareTokens)
	c.Calls.Answered(m.Slot, err)
	return tokens{first, n}, err == nil && n > 0
}

// spareToken takes a token of an idle tenure; 0 if there is none. It waits for the first look. If the caller leaves meanwhile, left is true
// and the tenure is released.
func (l *attempt) spareToken(x *idle) (token int64, left bool, err error) {
	i := &l.Spec.Engine.idle
	i.mu.Lock()
	over := x.look.over
	if x.look.tokens.left > 0 {
		over = nil
	}
	i.mu.Unlock()
	if over != nil {
		_, left, err = Leavable(l.Ctx, l.Spec, l.Limit, func(<-chan struct{}) (struct{}, error) {
			<-over
			return struct{}{}, nil
		}, func(struct{}, error) { x.tenure.endIdle()() })
		if left {
			return 0, true, err
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if k := &x.look.tokens; k.left > 0 {
		token, *k = k.next, tokens{k.next + 1, k.left - 1}
	}
	return token, false, nil
}
