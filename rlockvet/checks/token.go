package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// tokens reports fencing tokens whose ok is dropped, and which are passed on: without a hold they are 0.
func tokens(r *reporter, functions []*function, in *inspector.Inspector) {
	for c := range in.Root().Preorder((*ast.AssignStmt)(nil)) {
		a, ok := c.Node().(*ast.AssignStmt)
		if !ok || len(a.Lhs) != 2 || len(a.Rhs) != 1 || !isBlank(a.Lhs[1]) {
			continue
		}
		id, isName := a.Lhs[0].(*ast.Ident)
		call, isCall := ast.Unparen(a.Rhs[0]).(*ast.CallExpr)
		if !isName || !isCall {
			continue
		}
		callee := typeutil.Callee(r.info.Info, call)
		v, isVar := r.info.ObjectOf(id).(*types.Var)
		if !isVar || !isRlock(callee) || callee.Name() != "FencingToken" || len(call.Args) == 0 {
			continue
		}
		var outer []ast.Node
		for c := range c.Enclosing() {
			outer = append(outer, c.Node())
		}
		if !r.isInSection(functions, outer, call) && r.isPassedOn(outer[len(outer)-1], v) {
			r.report(call, "the ok of this %s is dropped, and without a hold of that lock %s is 0, which a store may accept: check ok",
				nameOf(call), id.Name)
		}
	}
}

// isInSection reports whether a FencingToken is visibly taken under the ctx of a section of its own lock.
func (r *reporter) isInSection(functions []*function, outer []ast.Node, call *ast.CallExpr) bool {
	var ctxs []string // and those that it is derived from
	for _, e := range r.info.origins(call.Args[0], false) {
		ctxs = append(ctxs, key(r.info, e))
	}
	is := func(lock ast.Expr) bool {
		if len(call.Args) == 2 { // of the package
			name := key(r.info, nameArg(r.info, lock))
			return name != "" && name == key(r.info, call.Args[1])
		}
		k := key(r.info, lock)
		return k != "" && k == key(r.info, lockOf(call))
	}
	for i, n := range outer {
		section, ok := n.(*ast.CallExpr)
		if !ok || i == 0 {
			continue
		}
		at, ok := isSection(r.info, section)
		if !ok || !is(lockOfSection(r.info, section)) {
			continue
		}
		if fn, ok := ast.Unparen(section.Args[at]).(*ast.FuncLit); ok && slices.Contains(outer, ast.Node(fn)) {
			for _, name := range fn.Type.Params.List[0].Names {
				if slices.Contains(ctxs, key(r.info, name)) {
					return true
				}
			}
		}
	}
	return slices.ContainsFunc(functions, func(f *function) bool {
		return slices.ContainsFunc(f.takings, func(t *taking) bool {
			return slices.Contains(ctxs, t.key(r.info)) && is(lockOfSection(r.info, t.call))
		})
	})
}

// isPassedOn reports whether the token is given to a call that does not just write it to a log, and is compared with nothing.
func (r *reporter) isPassedOn(n ast.Node, v *types.Var) bool {
	passed, compared := false, false
	ast.PreorderStack(n, nil, func(n ast.Node, stack []ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok || r.info.Uses[id] != v {
			return true
		}
		for _, outer := range slices.Backward(stack) {
			switch outer := outer.(type) {
			case *ast.BinaryExpr:
				compared = compared || outer.Op != token.ADD
			case *ast.CallExpr:
				if r.info.Types[outer.Fun].IsType() {
					continue // a conversion
				}
				callee := typeutil.Callee(r.info.Info, outer)
				passed = passed || !r.isLogger(outer) && !isFrom(callee, "fmt") && !isFrom(callee, "strconv")
				return true
			case ast.Stmt:
				return true
			}
		}
		return true
	})
	return passed && !compared
}
