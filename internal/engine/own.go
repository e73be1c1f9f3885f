package engine

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/go-rlock/rlock/lua"
)

// Whoever locks a name again under the ctx from before waits for itself. Errors and the log say so: if the holder's Lock was given the ctx
// of the one that waits, or one around it. Any other holder of the same Client is another goroutine's business.

// insiders are the tenures of a Client with open levels.
type insiders struct {
	mu      sync.Mutex // guards the following; no other lock is taken under it
	of      map[uint64]insider
	readers map[string]*readers // those of each read/write lock that others may join, by its key
	most    int                 // of them since the maps were made
}

// insider is a tenure as those see it that wait for it: a [Tenure], which stands above the engine.
type insider interface {
	givenTo() []context.Context // the contexts that its Locks were given
}

// readers are those of one lock that others may join (readers.go).
type readers struct {
	tenure insider
	since  time.Time // when the first of them was let in by a call
	asking bool      // one asks, to lead after them
}

func (i *insiders) add(tag uint64, t insider) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.of == nil {
		i.of = make(map[uint64]insider)
	}
	i.of[tag] = t
	i.most = max(i.most, len(i.of))
}

func (i *insiders) remove(tag uint64, key string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if r := i.readers[key]; r != nil && r.tenure == i.of[tag] {
		delete(i.readers, key)
	}
	delete(i.of, tag)
	if len(i.of) == 0 && i.most > 1000 { // a map keeps its room
		i.of, i.readers, i.most = nil, nil, 0
	}
}

// reads reports whether readers of that lock are inside.
func (i *insiders) reads(key string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, in := range i.of {
		if t, ok := in.(*Tenure); ok && t.Spec.Key == key && t.Spec.Kind.Side == lua.Reader {
			return true
		}
	}
	return false
}

// given are the contexts that the Locks of the tenure with that tag were given.
func (i *insiders) given(tag uint64) []context.Context {
	t := i.tenure(tag)
	if t == nil {
		return nil
	}
	return t.givenTo()
}

// tenure is the one with that tag; nil: nobody is inside of it.
func (i *insiders) tenure(tag uint64) insider {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.of[tag]
}

// IsUnder reports whether ctx is outer, or was derived from it. The second is not seen through everything, and does not count for what all
// are derived from.
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

// The packages whose contexts embed what they were derived from, for good.
var (
	contextPackage = reflect.TypeOf(context.Background()).PkgPath()
	ownPackage     = reflect.TypeFor[insiders]().PkgPath()
)

// parentOf is what ctx embeds, as those of package context do but for WithoutCancel, and ours; nil: it cannot be told. Others may change
// what they embed at any time.
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
