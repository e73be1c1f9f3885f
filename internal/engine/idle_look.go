package engine

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/lua"
)

// A look asks Redis whether other processes wait for an idle tenure's lock. It runs in the background when the tenure is idle for the first
// time, and when the ear is live again. If it finds earlier waiters, which may not have asked, the tenure is released. While a process
// keeps using the lock, it looks again every third of the watchdog time, for waiters that cannot ask: Redisson.
//
// For a fenced lock a look also reserves tokens, and again when at most half of them are left. They belong to this tenure, because they are
// reserved while it has the lock (reserve.lua); the next owner raises the counter further.

// spareTokens is how many tokens a look reserves: enough for that many Locks of the process while the next look is under way.
const spareTokens = 1000

// look holds the results of looks, and the look under way. idleTenures.mu guards it.
type look struct {
	ear      uint64    // the ear's live period (idleTenures.ear) in which a look found no waiters; 0: none yet
	at       time.Time // when that look began
	tokens   tokens
	underWay bool
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
	due := !k.underWay && (!alone || m.Kind.Fence != nil && k.tokens.left <= spareTokens/2)
	started := due && c.Calls.Start()
	if started {
		k.underWay = true
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
		k.spare(spare)
	}
	k.underWay = false
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
	spare, err = c.reserve(context.Background(), t)
	return spare, err == nil && spare.left > 0
}

// reserve reserves tokens for an idle tenure; none, if it no longer has the lock.
func (c *Engine) reserve(values context.Context, t *Tenure) (tokens, error) {
	m := t.Spec
	first, n, err := lua.Reserve(c.Calls.Context(values, time.Now(), 0), c.RDB, m.Key, m.fenceOf(), t.Field(), spareTokens)
	c.Calls.Answered(m.Slot, err)
	return tokens{first, n}, err
}

// spareToken takes a token of an idle tenure; 0 if there is none. While the first look is under way, which takes several round trips, it
// reserves tokens itself, by one. If the caller leaves meanwhile, or it takes until then, left is true.
func (l *attempt) spareToken(x *idle, until time.Time) (token int64, left bool, err error) {
	c := l.Spec.Engine
	token, looking := c.idle.token(x)
	if token > 0 || !looking {
		return token, false, nil
	}
	spare, left, err := Leavable(l.Ctx, l.Spec, until, func(<-chan struct{}) (tokens, error) { return c.reserve(l.Ctx, x.tenure) }, nil)
	if left {
		return 0, true, err
	}
	c.idle.spare(x, spare)
	token, _ = c.idle.token(x)
	return token, false, nil
}

// token takes a token of an idle tenure, if it has one. looking reports whether a look is under way.
func (i *idleTenures) token(x *idle) (token int64, looking bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if k := &x.look.tokens; k.left > 0 {
		token, *k = k.next, tokens{k.next + 1, k.left - 1}
	}
	return token, x.look.underWay
}

// spare adds reserved tokens to an idle tenure.
func (i *idleTenures) spare(x *idle, spare tokens) {
	i.mu.Lock()
	defer i.mu.Unlock()
	x.look.spare(spare)
}

// spare takes in reserved tokens, unless later ones have been used: a hold has a higher one than those before. mu is held.
func (k *look) spare(spare tokens) {
	if spare.left > 0 && spare.next >= k.tokens.next {
		k.tokens = spare
	}
}
