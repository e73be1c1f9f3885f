package checks

import (
	"fmt"
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// key identifies expressions that denote the same value: variables, and their fields, methods and calls with constants or such expressions
// as arguments, such as ctx, s.ctx, r.Context() and client.Mutex("x"). It is "" for other expressions.
func key(info *source, e ast.Expr) string {
	if e == nil {
		return ""
	}
	e = ast.Unparen(e)
	if tv, ok := info.Types[e]; ok && tv.Value != nil {
		return tv.Value.ExactString()
	}
	switch e := e.(type) {
	case *ast.Ident:
		if v, ok := info.ObjectOf(e).(*types.Var); ok {
			return fmt.Sprintf("%s@%d", e.Name, v.Pos())
		}
	case *ast.SelectorExpr:
		if x := key(info, e.X); x != "" {
			return x + "." + e.Sel.Name
		}
	case *ast.CallExpr:
		parts := []string{key(info, e.Fun)}
		for _, arg := range e.Args {
			parts = append(parts, key(info, arg))
		}
		if slices.Contains(parts, "") {
			return ""
		}
		return parts[0] + "(" + strings.Join(parts[1:], ",") + ")"
	}
	return ""
}

// root returns the variable at the start of an expression with a key.
func root(info *source, e ast.Expr) *types.Var {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		v, _ := info.ObjectOf(e).(*types.Var)
		return v
	case *ast.SelectorExpr:
		return root(info, e.X)
	case *ast.CallExpr:
		return root(info, e.Fun)
	case *ast.IndexExpr:
		return root(info, e.X)
	case *ast.StarExpr:
		return root(info, e.X)
	}
	return nil
}

// lockOfSection returns the lock of m.Do, or of rlock.DoValue(ctx, m, …), as written.
func lockOfSection(info *source, call *ast.CallExpr) ast.Expr {
	if fn, ok := typeutil.Callee(info.Info, call).(*types.Func); ok && isRlock(fn) && fn.Signature().Recv() == nil && len(call.Args) > 1 {
		return call.Args[1]
	}
	return lockOf(call)
}

// madeBy returns the call that made a lock: that of client.Mutex("a"), whose value may be in a variable; nil if it is out of sight.
func madeBy(info *source, lock ast.Expr) *ast.CallExpr {
	if value := info.valueOf(lock); value != nil {
		lock = value
	}
	call, ok := ast.Unparen(lock).(*ast.CallExpr)
	if !ok || !isRlock(typeutil.Callee(info.Info, call)) {
		return nil
	}
	return call
}

// nameArg returns the name that a visible call of a Client's method gave a lock, or nil.
func nameArg(info *source, lock ast.Expr) ast.Expr {
	if lock == nil {
		return nil
	}
	made := madeBy(info, lock)
	if made == nil || len(made.Args) == 0 || !isString(paramType(info, made, 0)) {
		return nil
	}
	return made.Args[0]
}

func isString(t types.Type) bool {
	return t != nil && types.Identical(t, types.Typ[types.String])
}

// lockOf returns the lock of m.Lock, as written.
func lockOf(call *ast.CallExpr) ast.Expr {
	if s, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		return s.X
	}
	return nil
}

// nameOf returns the called function's name for messages.
func nameOf(call *ast.CallExpr) string {
	fun := ast.Unparen(call.Fun)
	if index, ok := fun.(*ast.IndexExpr); ok {
		fun = index.X
	}
	switch fun := fun.(type) {
	case *ast.SelectorExpr:
		return fun.Sel.Name
	case *ast.Ident:
		return fun.Name
	}
	return "call"
}

func resultsOf(info *source, call *ast.CallExpr) []types.Type {
	switch t := info.TypeOf(call).(type) {
	case nil:
		return nil
	case *types.Tuple:
		var all []types.Type
		for v := range t.Variables() {
			all = append(all, v.Type())
		}
		return all
	default:
		if info.Types[call.Fun].IsType() {
			return nil // a conversion
		}
		return []types.Type{t}
	}
}

// takesLock reports whether a function with these results takes a lock. One that returns a Hold without an error may just look it up.
func takesLock(results []types.Type) bool {
	return slices.ContainsFunc(results, isUnlock) || slices.ContainsFunc(results, isPermit) ||
		slices.ContainsFunc(results, isHold) && slices.ContainsFunc(results, isError)
}

// paramType returns the type of the parameter for argument i, or nil.
func paramType(info *source, call *ast.CallExpr, i int) types.Type {
	fun := info.TypeOf(call.Fun)
	if fun == nil || info.Types[call.Fun].IsType() {
		return nil
	}
	s, ok := fun.Underlying().(*types.Signature)
	if !ok {
		return nil
	}
	params := s.Params()
	if last := params.Len() - 1; s.Variadic() && i >= last {
		if slice, ok := params.At(last).Type().(*types.Slice); ok && !call.Ellipsis.IsValid() {
			return slice.Elem()
		}
		return nil
	}
	if i >= params.Len() {
		return nil // f(g()), where g has several results
	}
	return params.At(i).Type()
}

func isRlock(o types.Object) bool { return isFrom(o, rlockPath) }

// isBusy reports whether it is rlock.IsBusy, which is false for all errors but one.
func isBusy(callee types.Object) bool { return isRlock(callee) && callee.Name() == "IsBusy" }

// isFrom reports whether the package with that path declares it.
func isFrom(o types.Object, path string) bool {
	return o != nil && o.Pkg() != nil && o.Pkg().Path() == path
}

// isPermit reports whether a type is a Permit, whose unlock is a method.
func isPermit(t types.Type) bool { return isPointerTo(t, "Permit") }

// isHold reports whether a type is a Hold, whose unlock and ctx are methods.
func isHold(t types.Type) bool { return isPointerTo(t, "Hold") }

func isPointerTo(t types.Type, name string) bool {
	pointer, ok := types.Unalias(t).(*types.Pointer)
	return ok && isNamed(pointer.Elem(), rlockPath, name)
}

func isUnlock(t types.Type) bool  { return isNamed(t, rlockPath, "UnlockFunc") }
func isContext(t types.Type) bool { return isNamed(t, "context", "Context") }
func isError(t types.Type) bool   { return types.Identical(t, types.Universe.Lookup("error").Type()) }

func isNamed(t types.Type, path, name string) bool {
	if t == nil {
		return false
	}
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Name() == name && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == path
}

func isBlank(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "_"
}
