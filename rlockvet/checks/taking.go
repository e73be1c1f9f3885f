package checks

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/cfg"
	"golang.org/x/tools/go/types/typeutil"
)

// rlockPath is the package whose users are looked at.
const rlockPath = "github.com/go-rlock/rlock/rlock"

// takings finds the calls that take locks, function by function.
var takings = &analysis.Analyzer{
	Name:       "rlocktakings",
	Doc:        "find the calls that take a lock of package rlock",
	URL:        url,
	Run:        findTakings,
	Requires:   []*analysis.Analyzer{inspect.Analyzer},
	ResultType: reflect.TypeFor[[]*function](),
}

// function is a function body that takes locks.
type function struct {
	info    *types.Info
	node    ast.Node     // *ast.FuncDecl or *ast.FuncLit
	results []*types.Var // those with a name
	graph   *cfg.CFG
	tags    map[ast.Expr]ast.Expr // an expression after case: what the switch compares with it
	takings []*taking
}

// taking is a call that returns an unlock or a permit, or that takes permits of a semaphore, in whichever statement.
type taking struct {
	stmt ast.Node
	call *ast.CallExpr

	before           ast.Expr   // the ctx that it was given, if any
	ctx, unlock, err *types.Var // that it was assigned to; nil if that is no variable of this function. The unlock may be a Permit
	semaphore        ast.Expr   // whose permits it takes, which have no unlock
	section          ast.Expr   // what ctx was assigned to
	isPermit         bool       // the unlock is
	dropped          bool       // the unlock was
	unchecked        bool       // it returns no error, or that was dropped
	errDropped       bool       // it was
	errOnly          bool       // whichever way the unlock goes, see lockerr
}

func findTakings(pass *analysis.Pass) (any, error) {
	var all []*function
	in := resultOf[*inspector.Inspector](pass, inspect.Analyzer)
	in.Preorder([]ast.Node{(*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)}, func(n ast.Node) {
		f := &function{info: pass.TypesInfo, node: n}
		var typ *ast.FuncType
		var body *ast.BlockStmt
		switch n := n.(type) {
		case *ast.FuncDecl:
			typ, body = n.Type, n.Body
		case *ast.FuncLit:
			typ, body = n.Type, n.Body
		}
		if body != nil {
			f.find(body)
		}
		if len(f.takings) == 0 {
			return
		}
		if typ.Results != nil {
			for _, field := range typ.Results.List {
				for _, name := range field.Names {
					f.results = append(f.results, f.local(name))
				}
			}
		}
		for _, t := range f.takings {
			if f.isCaptured(t.unlock, t.stmt.Pos()) {
				t.unlock = nil
			}
		}
		f.graph = cfg.New(body, f.mayReturn)
		all = append(all, f)
	})
	return all, nil
}

// mayReturn knows the common functions that do not. Package ctrlflow knows all, but has to read the source of every dependency
// for that.
func (f *function) mayReturn(call *ast.CallExpr) bool {
	callee := typeutil.Callee(f.info, call)
	if callee == nil {
		return true
	}
	path := ""
	if callee.Pkg() != nil {
		path = callee.Pkg().Path()
	}
	return !slices.Contains(noReturn[path], callee.Name())
}

// noReturn are functions and methods of packages, or of the language.
var noReturn = map[string][]string{
	"":        {"panic"},
	"os":      {"Exit"},
	"runtime": {"Goexit"},
	"log":     {"Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln"},
	"testing": {"Fatal", "Fatalf", "FailNow"},
}

// find fills in the takings and the tags.
func (f *function) find(body *ast.BlockStmt) {
	f.tags = make(map[ast.Expr]ast.Expr)
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false // a function of its own
		case *ast.AssignStmt:
			if len(n.Rhs) == 1 {
				f.add(n, n.Rhs[0], n.Lhs)
			}
		case *ast.ValueSpec:
			if len(n.Values) == 1 {
				var lhs []ast.Expr
				for _, name := range n.Names {
					lhs = append(lhs, name)
				}
				f.add(n, n.Values[0], lhs)
			}
		case *ast.ExprStmt:
			f.add(n, n.X, nil)
		case *ast.GoStmt:
			f.add(n, n.Call, nil)
		case *ast.DeferStmt:
			f.add(n, n.Call, nil)
		case *ast.SwitchStmt:
			for _, s := range n.Body.List {
				if clause, ok := s.(*ast.CaseClause); ok {
					for _, e := range clause.List {
						f.tags[e] = n.Tag
					}
				}
			}
		}
		return true
	})
}

// add notes a statement that takes a lock. Without lhs all results are dropped.
func (f *function) add(stmt ast.Node, e ast.Expr, lhs []ast.Expr) {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok {
		return
	}
	results := resultsOf(f.info, call)
	semaphore := acquired(f.info, call)
	if !takesLock(results) && semaphore == nil || lhs != nil && len(lhs) != len(results) {
		return
	}
	t := &taking{stmt: stmt, call: call, semaphore: semaphore, unchecked: true}
	if len(call.Args) > 0 && isContext(paramType(f.info, call, 0)) {
		t.before = ast.Unparen(call.Args[0])
	}
	for i, typ := range results {
		var to ast.Expr
		if lhs != nil {
			to = ast.Unparen(lhs[i])
		}
		blank := to == nil || isBlank(to)
		switch {
		case isContext(typ):
			t.ctx = f.local(to)
			if !blank {
				t.section = to
			}
		case isUnlock(typ), isPermit(typ):
			t.unlock, t.dropped, t.isPermit = f.local(to), blank, isPermit(typ)
		case isError(typ):
			t.err, t.unchecked, t.errDropped = f.local(to), blank, blank
		}
	}
	f.takings = append(f.takings, t)
}

// local is the variable that e names, if it belongs to the function.
func (f *function) local(e ast.Expr) *types.Var {
	if id, ok := e.(*ast.Ident); ok && id.Name != "_" {
		if v, ok := f.info.ObjectOf(id).(*types.Var); ok && f.node.Pos() <= v.Pos() && v.Pos() < f.node.End() {
			return v
		}
	}
	return nil
}

// isCaptured reports whether a function literal or a pointer before that position has the variable, and may use it at any time.
func (f *function) isCaptured(v *types.Var, before token.Pos) bool {
	found := false
	ast.PreorderStack(f.node, nil, func(n ast.Node, stack []ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok || v == nil || id.Pos() >= before || f.info.Uses[id] != v {
			return n.Pos() < before && !found
		}
		for _, n := range stack[1:] {
			switch n := n.(type) {
			case *ast.FuncLit:
				found = true
			case *ast.UnaryExpr:
				found = found || n.Op == token.AND
			}
		}
		return false
	})
	return found
}

// key is the same for expressions that name the same: variables, and fields, methods and calls of these with arguments of that
// kind or constants, such as ctx, s.ctx, r.Context() and client.Mutex("x"). It is "" for others.
func key(info *types.Info, e ast.Expr) string {
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

// root is the variable that an expression with a key begins with.
func root(info *types.Info, e ast.Expr) *types.Var {
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

// what is what it takes, for messages.
func (t *taking) what() string {
	switch {
	case t.semaphore != nil:
		return "permits"
	case t.isPermit:
		return "permit"
	}
	return "lock"
}

// release is what ends the section, for messages.
func (t *taking) release() string {
	if t.isPermit {
		return t.unlock.Name() + ".Release"
	}
	return t.unlock.Name()
}

// lockOf is the lock of m.Lock, as written.
func lockOf(call *ast.CallExpr) ast.Expr {
	if s, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		return s.X
	}
	return nil
}

// nameOf is how messages call what is called.
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

func resultsOf(info *types.Info, call *ast.CallExpr) []types.Type {
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

// takesLock reports whether a function with these results takes a lock.
func takesLock(results []types.Type) bool {
	return slices.ContainsFunc(results, isUnlock) || slices.ContainsFunc(results, isPermit)
}

// isSection reports whether the call is that of a Do, or of another function of package rlock that takes a ctx and runs a function
// of a ctx, and perhaps of more, in a section. The position of the latter comes with it.
func isSection(info *types.Info, call *ast.CallExpr) (int, bool) {
	callee := typeutil.Callee(info, call)
	if !isRlock(callee) || !callee.Exported() || !isContext(paramType(info, call, 0)) {
		return 0, false
	}
	for i := range call.Args {
		s, ok := paramType(info, call, i).(*types.Signature)
		if ok && s.Params().Len() > 0 && isContext(s.Params().At(0).Type()) {
			return i, true
		}
	}
	return 0, false
}

// paramType is the type of the parameter that argument i is for, or nil.
func paramType(info *types.Info, call *ast.CallExpr, i int) types.Type {
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
		return nil // f(g()), with several results of g
	}
	return params.At(i).Type()
}

func isRlock(o types.Object) bool { return isFrom(o, rlockPath) }

// isFrom reports whether a package of that path declares it.
func isFrom(o types.Object, path string) bool {
	return o != nil && o.Pkg() != nil && o.Pkg().Path() == path
}

// isPermit reports whether it is that of a permit of its own, which has its unlock as a method.
func isPermit(t types.Type) bool {
	pointer, ok := types.Unalias(t).(*types.Pointer)
	return ok && isNamed(pointer.Elem(), rlockPath, "Permit")
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
