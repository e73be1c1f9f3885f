package checks

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// source is the analyzed package: its types and functions.
type source struct {
	*types.Info

	pkg      *types.Package
	bodies   map[*types.Func]*ast.FuncDecl
	sections map[*types.Func]int // functions that run a parameter in a section, with its index
	unlocks  map[*types.Func]int // functions that return an unlock as another type, with the index of that result

	defs    map[*types.Var]definition
	changes map[*types.Var][]token.Pos // positions of later assignments, or of taking the address
}

// definition is the only value of a variable.
type definition struct {
	value  ast.Expr
	cancel *types.Var // its cancel function, if context.WithCancel or the like returned both
}

func newSource(pass *analysis.Pass) *source {
	s := &source{
		Info: pass.TypesInfo, pkg: pass.Pkg, bodies: make(map[*types.Func]*ast.FuncDecl), sections: make(map[*types.Func]int),
		unlocks: make(map[*types.Func]int), defs: make(map[*types.Var]definition), changes: make(map[*types.Var][]token.Pos),
	}
	for _, file := range pass.Files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if fn, ok := s.Defs[n.Name].(*types.Func); ok && n.Body != nil {
					s.bodies[fn] = n
				}
			case *ast.AssignStmt:
				s.assign(n.Lhs, n.Rhs)
			case *ast.ValueSpec:
				var lhs []ast.Expr
				for _, name := range n.Names {
					lhs = append(lhs, name)
				}
				s.assign(lhs, n.Values)
			case *ast.UnaryExpr:
				if v := root(s, n.X); n.Op == token.AND && v != nil {
					s.changes[v] = append(s.changes[v], n.Pos())
				}
			}
			return true
		})
	}
	for v := range s.changes {
		delete(s.defs, v)
	}
	for fn, decl := range s.bodies {
		s.findUnlock(fn, decl)
	}
	return s
}

// findUnlock records a function that returns an unlock as a func() error.
func (s *source) findUnlock(fn *types.Func, decl *ast.FuncDecl) {
	results := fn.Signature().Results()
	ast.Inspect(decl.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			for i, e := range n.Results {
				if len(n.Results) == results.Len() && isUnlock(s.TypeOf(e)) && !isUnlock(results.At(i).Type()) {
					s.unlocks[fn] = i
				}
			}
		}
		return true
	})
}

// unlockOf returns the index of the result that is an unlock of another type, or -1.
func (s *source) unlockOf(call *ast.CallExpr) int {
	if fn, ok := typeutil.Callee(s.Info, call).(*types.Func); ok {
		if i, ok := s.unlocks[fn.Origin()]; ok {
			return i
		}
	}
	return -1
}

// assign records the values of the variables on the left.
func (s *source) assign(lhs, rhs []ast.Expr) {
	for i, e := range lhs {
		id, isName := e.(*ast.Ident)
		if isName {
			if v, ok := s.Defs[id].(*types.Var); ok {
				switch {
				case len(lhs) == len(rhs):
					s.defs[v] = definition{value: rhs[i]}
				case len(rhs) == 1:
					s.defs[v] = definition{value: rhs[0], cancel: s.cancelAmong(lhs)}
				}
				continue
			}
		}
		if v := root(s, e); v != nil {
			s.changes[v] = append(s.changes[v], e.Pos())
		}
	}
}

// cancelAmong returns the variable that gets a cancel function, if any.
func (s *source) cancelAmong(lhs []ast.Expr) *types.Var {
	for _, e := range lhs {
		if id, ok := e.(*ast.Ident); ok {
			v, ok := s.ObjectOf(id).(*types.Var)
			if ok && (isNamed(v.Type(), "context", "CancelFunc") || isNamed(v.Type(), "context", "CancelCauseFunc")) {
				return v
			}
		}
	}
	return nil
}

// valueOf returns the value of a variable with only one value, or nil.
func (s *source) valueOf(e ast.Expr) ast.Expr {
	if id, ok := ast.Unparen(e).(*ast.Ident); ok {
		if v, ok := s.Uses[id].(*types.Var); ok {
			return s.defs[v].value
		}
	}
	return nil
}

// bodyOf returns the body and type of a function literal, of a variable holding one, or of a function of the package; nil if out of sight.
func (s *source) bodyOf(fun ast.Expr) (*ast.FuncType, *ast.BlockStmt) {
	if value := s.valueOf(fun); value != nil {
		fun = value
	}
	fun = ast.Unparen(fun)
	var id *ast.Ident
	switch fun := fun.(type) {
	case *ast.FuncLit:
		return fun.Type, fun.Body
	case *ast.Ident:
		id = fun
	case *ast.SelectorExpr:
		id = fun.Sel
	default:
		return nil, nil
	}
	if fn, ok := s.Uses[id].(*types.Func); ok {
		if decl := s.bodies[fn.Origin()]; decl != nil {
			return decl.Type, decl.Body
		}
	}
	return nil, nil
}

// origins returns a ctx and its ancestors, as far as they have keys. context.WithoutCancel and rlock.Detach start a new ctx, unless through
// is set.
func (s *source) origins(e ast.Expr, through bool) (all []ast.Expr) {
	if key(s, e) != "" {
		all = append(all, e)
	}
	if value := s.valueOf(e); value != nil {
		return append(all, s.origins(value, through)...)
	}
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok || takesLock(resultsOf(s, call)) {
		return all
	}
	callee := typeutil.Callee(s.Info, call)
	if !through && callee != nil && (isFrom(callee, "context") && callee.Name() == "WithoutCancel" || isRlock(callee)) {
		return all
	}
	for i, arg := range call.Args {
		if isContext(paramType(s, call, i)) {
			all = append(all, s.origins(arg, through)...)
		}
	}
	return all
}
