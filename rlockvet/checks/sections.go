package checks

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/types/typeutil"
)

// isSection reports whether a call runs a function in a section: a Do, or a function of package rlock or this package that takes a ctx and
// a function of a ctx. It also returns the position of that function.
func isSection(info *source, call *ast.CallExpr) (int, bool) {
	callee := typeutil.Callee(info.Info, call)
	if fn, ok := callee.(*types.Func); ok {
		if i, ok := info.sections[fn.Origin()]; ok && i < len(call.Args) {
			return i, true
		}
	}
	if !isRlock(callee) || !callee.Exported() || !isContext(paramType(info, call, 0)) {
		return 0, false
	}
	for i := range call.Args {
		if t := paramType(info, call, i); t != nil && isFuncOfContext(t) {
			return i, true
		}
	}
	return 0, false
}

// runsSection reports whether a call of package rlock runs a section.
func runsSection(info *source, call *ast.CallExpr) bool {
	_, ok := isSection(info, call)
	return ok && isRlock(typeutil.Callee(info.Info, call))
}

// findSections records the package's own functions like Do: their first parameter is a ctx, and they pass a section's ctx to a function
// parameter.
func (s *source) findSections(all []*function) {
	for found := true; found; { // one may call another
		found = false
		for fn, decl := range s.bodies {
			if _, known := s.sections[fn]; known || !isContext(firstParam(fn.Signature())) {
				continue
			}
			for i := range fn.Signature().Params().Len() {
				param := fn.Signature().Params().At(i)
				if isFuncOfContext(param.Type()) && s.runsInSection(all, decl, param) {
					s.sections[fn], found = i, true
				}
			}
		}
	}
}

func firstParam(s *types.Signature) types.Type {
	if s.Params().Len() == 0 {
		return nil
	}
	return s.Params().At(0).Type()
}

func isFuncOfContext(t types.Type) bool {
	s, ok := t.Underlying().(*types.Signature)
	return ok && isContext(firstParam(s))
}

// runsInSection reports whether the function passes param to a Do, or calls it with a ctx returned by Lock.
func (s *source) runsInSection(all []*function, decl *ast.FuncDecl, param *types.Var) bool {
	is := func(e ast.Expr) bool {
		id, ok := ast.Unparen(e).(*ast.Ident)
		return ok && s.Uses[id] == param
	}
	found := false
	ast.Inspect(decl.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || found {
			return !found
		}
		if i, ok := isSection(s, call); ok && is(call.Args[i]) {
			found = true
		}
		if is(call.Fun) && len(call.Args) > 0 {
			for _, f := range all {
				found = found || f.node == decl && slices.ContainsFunc(f.takings, func(t *taking) bool {
					return t.section != nil && key(s, t.section) == key(s, call.Args[0])
				})
			}
		}
		return !found
	})
	return found
}
