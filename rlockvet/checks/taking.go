package checks

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"reflect"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/cfg"
	"golang.org/x/tools/go/types/typeutil"
)

// rlockPath is the package whose users are checked.
const rlockPath = "github.com/go-rlock/rlock/rlock"

// takings finds the calls that take locks, function by function.
var takings = &analysis.Analyzer{
	Name:       "rlocktakings",
	Doc:        "find the calls that take a lock of package rlock",
	URL:        url,
	Run:        findTakings,
	Requires:   []*analysis.Analyzer{inspect.Analyzer},
	ResultType: reflect.TypeFor[*users](),
}

// users is the package, with its functions that take locks.
type users struct {
	source    *source
	functions []*function
}

// function is a function body that takes locks.
type function struct {
	info    *source
	node    ast.Node     // *ast.FuncDecl or *ast.FuncLit
	results []*types.Var // named results
	graph   *cfg.CFG
	tags    map[ast.Expr]ast.Expr // an expression after case: the value that the switch compares it with
	takings []*taking
	dos     []*do
}

// do is a call of Do, or another function that runs a section, whose error is assigned.
type do struct {
	stmt ast.Node
	call *ast.CallExpr
	err  *types.Var // nil if it is blank
	also ast.Expr   // the target of the value of a DoValue
}

// taking is a call that returns an unlock or a permit, or takes permits of a semaphore, in any statement.
type taking struct {
	stmt ast.Node
	call *ast.CallExpr

	before           ast.Expr   // its ctx argument, if any
	ctx, unlock, err *types.Var // the assigned variable; nil if it is none of this function. The unlock may be a Permit or a Hold
	cancel           *types.Var // the cancel function of its ctx argument, if a variable
	semaphore        ast.Expr   // the semaphore, whose permits have no unlock
	section          ast.Expr   // the target of ctx
	isPermit         bool       // the unlock is a Permit
	isHold           bool       // the unlock is a Hold, nil after an error; the section's ctx is its Context()
	dropped          bool       // the unlock is dropped
	unchecked        bool       // no error is returned, or it is dropped
	errDropped       bool       // err is dropped
	errOnly          bool       // whatever happens to the unlock, see lockerr
	awaits           bool       // an Await of a latch, which fails likewise but takes nothing
}

func findTakings(pass *analysis.Pass) (any, error) {
	source := newSource(pass)
	var all []*function
	in := resultOf[*inspector.Inspector](pass, inspect.Analyzer)
	in.Preorder([]ast.Node{(*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)}, func(n ast.Node) {
		f := &function{info: source, node: n}
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
		if len(f.takings)+len(f.dos) == 0 {
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
	source.findSections(all)
	return &users{source, all}, nil
}

// mayReturn knows the common functions that do not return. Package ctrlflow knows all, but has to read every dependency's source.
func (f *function) mayReturn(call *ast.CallExpr) bool {
	callee := typeutil.Callee(f.info.Info, call)
	if callee == nil {
		return true
	}
	path := ""
	if callee.Pkg() != nil {
		path = callee.Pkg().Path()
	}
	return !slices.Contains(noReturn[path], callee.Name())
}

// noReturn are functions and methods of packages, and of the language.
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

// add records a statement that takes a lock. Without lhs all results are dropped.
func (f *function) add(stmt ast.Node, e ast.Expr, lhs []ast.Expr) {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok {
		return
	}
	results := resultsOf(f.info, call)
	if n := len(lhs); n > 0 && n == len(results) && isError(results[n-1]) && runsSection(f.info, call) {
		d := &do{stmt: stmt, call: call, err: f.local(ast.Unparen(lhs[n-1]))}
		if n > 1 && !isBlank(lhs[0]) {
			d.also = lhs[0]
		}
		if d.err != nil || isBlank(lhs[n-1]) {
			f.dos = append(f.dos, d)
		}
	}
	semaphore := acquired(f.info, call)
	awaits := isMethod(typeutil.Callee(f.info.Info, call), "CountDownLatch", "Await", "TryAwait")
	unlock := f.info.unlockOf(call)
	if !takesLock(results) && unlock < 0 && semaphore == nil && !awaits || lhs != nil && len(lhs) != len(results) {
		return
	}
	t := &taking{stmt: stmt, call: call, semaphore: semaphore, awaits: awaits, unchecked: true}
	if len(call.Args) > 0 && isContext(paramType(f.info, call, 0)) {
		t.before = ast.Unparen(call.Args[0])
		t.cancel = f.cancelOf(t.before)
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
		case isUnlock(typ), isPermit(typ), isHold(typ), i == unlock:
			t.unlock, t.dropped, t.isPermit, t.isHold = f.local(to), blank, isPermit(typ), isHold(typ)
		case isError(typ):
			t.err, t.unchecked, t.errDropped = f.local(to), blank, blank
		}
	}
	f.takings = append(f.takings, t)
}

// cancelOf returns a ctx's cancel function. The one of an rlock.WaitOnly does not end the section.
func (f *function) cancelOf(ctx ast.Expr) *types.Var {
	id, ok := ctx.(*ast.Ident)
	if !ok {
		return nil
	}
	v, ok := f.info.Uses[id].(*types.Var)
	if !ok || f.info.defs[v].cancel == nil || f.local(id) == nil {
		return nil
	}
	waitsOnly := false
	for e := f.info.defs[v].value; e != nil; e = f.info.valueOf(e) {
		if call, ok := ast.Unparen(e).(*ast.CallExpr); ok && len(call.Args) > 0 {
			e = call.Args[0]
			call, _ = ast.Unparen(e).(*ast.CallExpr)
			waitsOnly = waitsOnly || call != nil && isRlock(typeutil.Callee(f.info.Info, call))
		}
	}
	if waitsOnly || f.isCaptured(f.info.defs[v].cancel, f.node.End()) {
		return nil
	}
	return f.info.defs[v].cancel
}

// local returns the variable named by e, if it belongs to the function.
func (f *function) local(e ast.Expr) *types.Var {
	if id, ok := e.(*ast.Ident); ok && id.Name != "_" {
		if v, ok := f.info.ObjectOf(id).(*types.Var); ok && f.node.Pos() <= v.Pos() && v.Pos() < f.node.End() {
			return v
		}
	}
	return nil
}

// isCaptured reports whether a function literal or a pointer before that position captures the variable, and may use it at any time.
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

// key returns the key of the section's ctx.
func (t *taking) key(info *source) string {
	if t.isHold && t.unlock != nil {
		return fmt.Sprintf("%s@%d.Context()", t.unlock.Name(), t.unlock.Pos())
	}
	return key(info, t.section)
}

// what names the taken thing, for messages.
func (t *taking) what() string {
	switch {
	case t.semaphore != nil:
		return "permits"
	case t.isPermit:
		return "permit"
	}
	return "lock"
}

// release names the call that ends the section, for messages.
func (t *taking) release() string {
	switch {
	case t.isPermit:
		return t.unlock.Name() + ".Release"
	case t.isHold:
		return t.unlock.Name() + ".Unlock"
	}
	return t.unlock.Name()
}
