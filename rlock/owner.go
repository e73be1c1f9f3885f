package rlock

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
)

// owner is who holds locks: the first Lock of a call chain mints one, and the ctx it returns
// carries it. A Lock under that ctx acts for the same owner and re-enters.
//
// Invariant I-retire: an owner that has no live hold left never gets another. A ctx that escaped
// from its section finds its owner retired and mints a new one, so that two stragglers never share
// a hold.
type owner struct {
	// mu guards the following, and of each hold what hold says. It is never held while
	// waiting, and no other lock is taken under it.
	mu      sync.Mutex
	tag     uint64 // plays Redisson's thread id in new holds
	live    int32  // holds with a count
	retired bool
	first   hold              // the first record; most owners have no other
	others  map[holdKey]*hold // the rest of them
}

// holdKey names a hold of an owner: one owner may hold many locks, through several Clients.
type holdKey struct {
	client *Client
	name   string
	suffix string // see kind
}

var lastTag atomic.Uint64

func newOwner() *owner { return &owner{tag: lastTag.Add(1)} }

// hold returns the owner's record for m, a new one if there is none, and notes that the caller
// uses it; forget ends that. It returns nil if the owner is retired.
func (o *owner) hold(m *Mutex) *hold {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.retired {
		return nil
	}
	h := o.find(m)
	if h == nil {
		h = o.record(m.key())
		h.owner, h.mutex, h.tag = o, m, o.tag
	}
	h.users++
	return h
}

// find returns the record for m, or nil. o.mu is held.
func (o *owner) find(m *Mutex) *hold {
	if h := &o.first; h.owner != nil && !h.over && h.mutex.key() == m.key() {
		return h
	}
	return o.others[m.key()]
}

// record returns an empty record. No record is used twice, see drop. o.mu is held.
func (o *owner) record(key holdKey) *hold {
	if o.first.owner == nil {
		return &o.first
	}
	if o.others == nil {
		o.others = make(map[holdKey]*hold)
	}
	h := new(hold)
	o.others[key] = h
	return h
}

// heldField returns the owner's field in the lock of m, if it has a live hold on it.
func (o *owner) heldField(m *Mutex) (field string, held bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h := o.find(m); h != nil && h.count > 0 {
		return h.field(), true
	}
	return "", false
}

// forget ends a use of the record, which is dropped with the last use if there is no hold.
func (o *owner) forget(h *hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h.users--
	if h.users == 0 && h.count == 0 {
		o.drop(h)
	}
}

// drop takes the record out. Who waits for its ops finds it over and looks for another:
// its lease has been used, and its field may be one on which a call still acts. o.mu is held.
func (o *owner) drop(h *hold) {
	h.over = true
	if key := h.mutex.key(); o.others[key] == h {
		delete(o.others, key)
	}
}

// burn gives the owner another tag for holds to come, because a command whose outcome is not known
// may still act on the present one. o.mu is held.
func (o *owner) burn() { o.tag = lastTag.Add(1) }

// disown makes sure that nobody uses a record or its field any more.
func (o *owner) disown(h *hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.burn()
	o.drop(h)
}

func (o *owner) isRetired() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.retired
}

// field is the owner as Redis has it. It is made anew each time, for there may be many holds, and calls for
// each of them are rare.
func (h *hold) field() string {
	var b [64]byte // room for a UUID and any number
	field := strconv.AppendUint(append(append(b[:0], h.mutex.client.id...), ':'), h.tag, 10)
	return string(append(field, h.mutex.kind.suffix...))
}

// ctxKey is the key of the innermost *scope in a context.
type ctxKey struct{}

func scopeOf(ctx context.Context) *scope {
	s, _ := ctx.Value(ctxKey{}).(*scope)
	return s
}

// Detach returns a ctx that carries no owner: a Lock under it competes with the holds of ctx
// instead of re-entering them. It is for goroutines that are started inside a section but do not
// belong to it. Deadline, values and cancellation of ctx stay, so that it still ends with the
// section; add [context.WithoutCancel] for one that should not.
func Detach(ctx context.Context) context.Context {
	return context.WithValue(ctx, ctxKey{}, (*scope)(nil))
}

// Owner returns the owner of the innermost hold that ctx carries as it is written in Redis,
// `<client UUID>:<tag>`, or "" if there is none. It is meant for logs.
func Owner(ctx context.Context) string {
	if s := scopeOf(ctx); s != nil {
		return s.hold.field()
	}
	return ""
}

// FencingToken returns the token of the innermost hold on name that ctx carries, taken by a lock of
// [Client.FencedMutex]. Every acquire of one name has a higher token than those before, so a store
// that refuses writes with a token lower than one it has seen is safe from holders that do not
// know yet that they lost the lock.
func FencingToken(ctx context.Context, name string) (token int64, ok bool) {
	for s := scopeOf(ctx); s != nil; s = scopeOf(s.Context) {
		if s.mutex.name == name && s.token != 0 {
			return s.token, true
		}
	}
	return 0, false
}
