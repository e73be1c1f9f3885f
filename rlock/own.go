package rlock

import (
	"context"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// Whoever locks a name again under the ctx from before waits for itself. Errors and the log say so: if the holder's Lock was given the ctx
// of the one that waits, or one around it. Any other holder of the same Client is another goroutine's business.

// takers are the contexts that the Locks of a Client were given whose holds have open levels, by their tags.
type takers struct {
	mu   sync.Mutex // guards the following; no other lock is taken under it
	of   map[uint64]context.Context
	most int // of them since the map was made
}

func (t *takers) add(given context.Context, tag uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = make(map[uint64]context.Context)
	}
	t.of[tag] = given //nolint:fatcontext // one of many, each of which is its own
	t.most = max(t.most, len(t.of))
}

func (t *takers) remove(tag uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, tag)
	if len(t.of) == 0 && t.most > 1000 { // a map keeps its room
		t.of, t.most = nil, 0
	}
}

func (t *takers) given(tag uint64) context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of[tag]
}

// isSelf reports whether a Lock that was given that ctx waits for its own caller, as far as can be told, if it waits for that owner.
func (c *Client) isSelf(given context.Context, owner string) bool {
	if !c.isOwn(owner) || isNobody(owner) {
		return false
	}
	tag, _, _ := strings.Cut(owner[len(c.id)+1:], ":")
	n, err := strconv.ParseUint(tag, 10, 64)
	return err == nil && isUnder(given, c.takers.given(n))
}

// isUnder reports whether ctx is outer, or was derived from it. The second is not seen through everything, and does not count for what all
// are derived from.
func isUnder(ctx, outer context.Context) bool {
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
	ownPackage     = reflect.TypeFor[level]().PkgPath()
)

// parentOf is what ctx embeds, as those of package context do but for WithoutCancel, and ours; nil: it cannot be told. Others may change
// what they embed at any time.
func parentOf(ctx context.Context) context.Context {
	v := reflect.Indirect(reflect.ValueOf(ctx))
	if v.Kind() != reflect.Struct || v.Type().PkgPath() != contextPackage && v.Type().PkgPath() != ownPackage {
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
