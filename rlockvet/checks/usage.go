package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/types/typeutil"
)

// usage is a statement's use of a variable. Of several uses, the last counts.
type usage int

const (
	unused usage = iota
	deferred
	deferredVar // in a closure, which captures the variable and not its value
	called
	escaped // or is read
	assigned
)

func (f *function) use(n ast.Node, v *types.Var) (most usage) {
	if v == nil {
		return unused
	}
	ast.PreorderStack(n, nil, func(m ast.Node, stack []ast.Node) bool {
		switch m := m.(type) {
		case *ast.Ident:
			if f.info.ObjectOf(m) == v {
				most = max(most, f.useOf(m, stack))
			}
		case *ast.ReturnStmt:
			if m.Results == nil && slices.Contains(f.results, v) {
				most = max(most, escaped)
			}
		}
		return true
	})
	return most
}

func (f *function) useOf(id *ast.Ident, stack []ast.Node) usage {
	if len(stack) == 0 {
		return escaped
	}
	inLiteral := slices.ContainsFunc(stack, func(n ast.Node) bool { _, ok := n.(*ast.FuncLit); return ok })
	_, inDefer := stack[0].(*ast.DeferStmt)
	_, inGo := stack[0].(*ast.GoStmt)
	if f.onlyLooks(id, stack) {
		return unused
	}
	switch {
	case inDefer && inLiteral:
		return deferredVar
	case inDefer:
		return deferred
	case inGo, inLiteral:
		return escaped
	}
	switch parent := stack[len(stack)-1].(type) {
	case *ast.CallExpr:
		if parent.Fun == id {
			return called
		}
	case *ast.SelectorExpr:
		if call, ok := stackEnd[*ast.CallExpr](stack, 2); ok && call.Fun == parent && endsSection(f.info.Uses[parent.Sel]) {
			return called
		}
	case *ast.AssignStmt:
		if slices.Contains(parent.Lhs, ast.Expr(id)) {
			return assigned
		}
		if !slices.ContainsFunc(parent.Lhs, func(e ast.Expr) bool { return !isBlank(e) }) {
			return unused // _ = unlock
		}
	case *ast.ValueSpec:
		if slices.Contains(parent.Names, id) {
			return assigned
		}
	}
	return escaped
}

// onlyLooks reports whether id is a permit used only for its slot, or its id for a log: with the id, others could release it. Or it is a hold,
// used for anything but its Unlock.
func (f *function) onlyLooks(id *ast.Ident, stack []ast.Node) bool {
	parent, ok := stackEnd[*ast.SelectorExpr](stack, 1)
	if !ok || parent.X != id {
		return false
	}
	method := f.info.Uses[parent.Sel]
	return isMethod(method, "Permit", "Slot", "Slots") || isMethod(method, "Hold", "Context", "Done", "Err", "Asked") || isMethod(method, "Permit", "ID", "IDs") &&
		slices.ContainsFunc(stack, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return false
			}
			callee := typeutil.Callee(f.info.Info, call)
			return isFrom(callee, "log") || isFrom(callee, "log/slog")
		})
}

// overwrites reports whether n assigns to a variable a value unrelated to its current one.
func (f *function) overwrites(n ast.Node, v *types.Var) bool {
	a, ok := n.(*ast.AssignStmt)
	if !ok || f.defines(n, v) || f.use(n, v) != assigned {
		return false
	}
	return !slices.ContainsFunc(a.Rhs, func(e ast.Expr) bool { return f.use(e, v) != unused })
}

// defines reports whether n declares the variable. A value it already has is from an earlier round of a loop.
func (f *function) defines(n ast.Node, v *types.Var) bool {
	switch n := n.(type) {
	case *ast.AssignStmt:
		return slices.ContainsFunc(n.Lhs, func(e ast.Expr) bool {
			id, ok := e.(*ast.Ident)
			return ok && f.info.Defs[id] == v
		})
	case *ast.ValueSpec:
		return slices.ContainsFunc(n.Names, func(id *ast.Ident) bool { return f.info.Defs[id] == v })
	}
	return false
}

// takes reports whether n is one of the function's statements that take a lock.
func (f *function) takes(n ast.Node) bool {
	return slices.ContainsFunc(f.takings, func(t *taking) bool { return t.stmt == n })
}

// assigns reports whether n assigns to the variable or a part of it, or takes its address.
func assigns(info *source, n ast.Node, v *types.Var) bool {
	if v == nil {
		return false
	}
	found := false
	ast.Inspect(n, func(m ast.Node) bool {
		switch m := m.(type) {
		case *ast.AssignStmt:
			for _, e := range m.Lhs {
				found = found || root(info, e) == v
			}
		case *ast.ValueSpec:
			for _, name := range m.Names {
				found = found || info.Defs[name] == v
			}
		case *ast.UnaryExpr:
			found = found || m.Op == token.AND && root(info, m.X) == v
		}
		return !found
	})
	return found
}
