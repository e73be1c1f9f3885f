package tenure

import (
	"context"
	"reflect"
)

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

type here struct{}

// The packages whose contexts embed their parent and never change it.
var (
	contextPackage = reflect.TypeOf(context.Background()).PkgPath()
	ownPackage     = reflect.TypeFor[here]().PkgPath()
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
