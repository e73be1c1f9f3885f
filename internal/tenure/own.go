package tenure

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/go-rlock/rlock/lua"
)

// A caller that holds a lock, and locks it again under the ctx from before its first Lock, waits for itself. Errors and the log report
// this if the holder's Lock got the waiter's ctx or one of its parents. Any other holder of the same Client is taken to be another
// goroutine.

// insiders are the tenures of a Client with open levels.
type OpenTenures struct {
	mu      sync.Mutex // guards the following; no other lock is taken under it
	of      map[uint64]insider
	readers map[string]*readers // by key of the read/write lock: the readers that others may join
	most    int                 // most entries since the maps were made
}

// insider is a waiter's view of a [Tenure].
type insider interface {
	givenTo() []context.Context // the contexts given to its Locks
}

// readers are the readers of one lock that others may join (readers.go).
type readers struct {
	tenure insider
	since  time.Time // when a call let the first of them in
	asking bool      // a reader is asking Redis, to lead after them
}

func (i *OpenTenures) add(tag uint64, t insider) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.of == nil {
		i.of = make(map[uint64]insider)
	}
	i.of[tag] = t
	i.most = max(i.most, len(i.of))
}

func (i *OpenTenures) remove(tag uint64, key string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if r := i.readers[key]; r != nil && r.tenure == i.of[tag] {
		delete(i.readers, key)
	}
	delete(i.of, tag)
	if len(i.of) == 0 && i.most > 1000 { // maps never shrink
		i.of, i.readers, i.most = nil, nil, 0
	}
}

// reads reports whether the process has readers of that lock.
func (i *OpenTenures) Reads(key string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, in := range i.of {
		if t, ok := in.(*Tenure); ok && t.Lock.Key == key && t.Lock.Kind.Side == lua.Reader {
			return true
		}
	}
	return false
}

// given returns the contexts given to the Locks of the tenure with that tag.
func (i *OpenTenures) Given(tag uint64) []context.Context {
	t := i.tenure(tag)
	if t == nil {
		return nil
	}
	return t.givenTo()
}

// OpenTenure returns the tenure with that tag; nil: it has no open level here.
func (c *Engine) OpenTenure(tag uint64) *Tenure {
	t, _ := c.Open.tenure(tag).(*Tenure)
	return t
}

// tenure returns the tenure with that tag; nil: it has no open level.
func (i *OpenTenures) tenure(tag uint64) insider {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.of[tag]
}

// IsUnder reports whether ctx is outer or derived from it. It cannot look through every type of context, and ignores roots such as
// [context.Background].
func IsUnder(ctx, outer context.Context) bool {
	if outer == nil || !reflect.ValueOf(outer).Comparable() {
		return false
	}
	root := isSame(outer, context.Background()) || isSame(outer, context.TODO())
	for at, n := ctx, 0; at != nil && n < 100; at, n = parentOf(at), n+1 {
		if isSame(at, outer) {
			return true
		}
		if root {
			break
		}
	}
	return false
}

func isSame(a, b context.Context) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// The packages whose contexts embed their parent and never change it.
var (
	contextPackage = reflect.TypeOf(context.Background()).PkgPath()
	ownPackage     = reflect.TypeFor[OpenTenures]().PkgPath()
)

// parentOf returns the parent embedded in ctx, for our contexts and for package context's except WithoutCancel; nil: unknown. Other
// types may change their embedded context at any time.
func parentOf(ctx context.Context) context.Context {
	v := reflect.Indirect(reflect.ValueOf(ctx))
	if v.Kind() != reflect.Struct {
		return nil
	}
	if _, ours := ctx.(Section); !ours && v.Type().PkgPath() != contextPackage && v.Type().PkgPath() != ownPackage {
		return nil
	}
	f, ok := v.Type().FieldByName("Context")
	if !ok {
		return nil
	}
	embedded, err := v.FieldByIndexErr(f.Index)
	if err != nil || !embedded.CanInterface() {
		return nil
	}
	parent, _ := reflect.TypeAssert[context.Context](embedded)
	return parent
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
	return r.tenure.(*Tenure) //nolint:errcheck // no other value is ever set
}
