package tenure

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
)

// A caller that holds a lock, and locks it again under the ctx from before its first Lock, waits for itself. Errors and the log report
// this if the holder's Lock got the waiter's ctx or one of its parents. Any other holder of the same Client is taken to be another
// goroutine.

// OpenTenures are the tenures of a Client with open levels.
type OpenTenures struct {
	mu      sync.Mutex // guards the following; no other lock is taken under it
	of      map[uint64]*Tenure
	readers map[string]*readers // by key of the read/write lock: the readers that others may join
	most    int                 // most entries since the maps were made
}

// readers are the readers of one lock that others may join (engine/readers.go).
type readers struct {
	tenure *Tenure
	since  time.Time // when a call let the first of them in
	asking bool      // a reader is asking Redis, to lead after them
}

// add makes a tenure known to waiters of its process; LeaveOpen ends that.
func (i *OpenTenures) add(t *Tenure) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.of == nil {
		i.of = make(map[uint64]*Tenure)
	}
	i.of[t.Tag] = t
	i.most = max(i.most, len(i.of))
}

// LeaveOpen takes the tenure out of the open ones.
func (t *Tenure) LeaveOpen() {
	i, key := &t.Lock.Client.Open, t.Lock.Key
	i.mu.Lock()
	defer i.mu.Unlock()
	if r := i.readers[key]; r != nil && r.tenure == i.of[t.Tag] {
		delete(i.readers, key)
	}
	delete(i.of, t.Tag)
	if len(i.of) == 0 && i.most > 1000 { // maps never shrink
		i.of, i.readers, i.most = nil, nil, 0
	}
}

// Reads reports whether the process has readers of that lock.
func (i *OpenTenures) Reads(key string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, t := range i.of {
		if t.Lock.Key == key && t.Lock.Kind.Side == lua.Reader {
			return true
		}
	}
	return false
}

// Tenure returns the tenure with that tag; nil: it has no open level here.
func (i *OpenTenures) Tenure(tag uint64) *Tenure {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.of[tag]
}

// Lead lets others join the tenure of a reader that a call has just let in.
func (i *OpenTenures) Lead(t *Tenure) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.of[t.Tag] != t { // lost or unlocked
		return
	}
	if i.readers == nil {
		i.readers = make(map[string]*readers)
	}
	i.readers[t.Lock.Key] = &readers{tenure: t, since: time.Now()}
}

// Leading returns the tenure that a reader may join now; nil: the reader must ask Redis.
func (i *OpenTenures) Leading(key string, bound time.Duration) *Tenure {
	i.mu.Lock()
	defer i.mu.Unlock()
	r := i.readers[key]
	if r == nil {
		return nil
	}
	age := time.Since(r.since)
	if age >= bound || age >= bound/2 && !r.asking {
		r.asking = true
		return nil
	}
	return r.tenure
}

// IsSelf reports whether a Lock with that ctx, waiting for owner, waits for its own caller, as far as known.
func (c *Client) IsSelf(given context.Context, owner string) bool {
	if !c.IsOwn(owner) || kinds.IsPlaceholder(owner) {
		return false
	}
	tag, _, _ := strings.Cut(owner[len(c.ID)+1:], ":")
	n, err := strconv.ParseUint(tag, 10, 64)
	t := c.Open.Tenure(n)
	return err == nil && t != nil && slices.ContainsFunc(t.givenTo(), func(outer context.Context) bool { return IsUnder(given, outer) })
}
