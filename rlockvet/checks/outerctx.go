package checks

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// OuterCtx reports the use of the ctx from before a Lock in its section.
var OuterCtx = &analysis.Analyzer{
	Name: "outerctx",
	Doc: `report the ctx from before a Lock of package rlock that is passed on in its section

The ctx that Lock returns, or that Do gives its function, carries the hold and ends when the lock is lost. Code that gets the ctx from
before goes on without the lock, and a Lock of the same name under it waits for itself.

To take another lock with the ctx from before is hand-over-hand locking, and not reported. Neither are goroutines and deferred
calls, which may outlive the section, and files for tests, where the one who must not get the lock is played.`,
	URL:      url,
	Run:      runOuterCtx,
	Requires: []*analysis.Analyzer{inspect.Analyzer, takings},
}

func runOuterCtx(pass *analysis.Pass) (any, error) {
	r := newReporter(pass).skipTests()
	for _, f := range resultOf[[]*function](pass, takings) {
		for _, t := range f.takings {
			f.outerCtx(r, t)
		}
	}
	for call := range inspector.All[*ast.CallExpr](resultOf[*inspector.Inspector](pass, inspect.Analyzer)) {
		if i, ok := isSection(pass.TypesInfo, call); ok {
			if body, ok := ast.Unparen(call.Args[i]).(*ast.FuncLit); ok {
				outerCtxOfDo(r, call, body)
			}
		}
	}
	return nil, nil
}

// outer is the ctx from before a section, with the key of the lock that the section holds.
type outer struct {
	ctx, lock string
	found     func(arg ast.Expr, sameLock bool)
}

// look finds the ctx where n passes it on.
func (o outer) look(info *types.Info, n ast.Node) {
	for _, p := range passes(info, n, o.ctx) {
		_, section := isSection(info, p.call)
		locks := takesLock(resultsOf(info, p.call))
		name := nameOf(p.call)
		switch {
		case locks && name == "Lock" && o.lock != "" && o.lock == key(info, lockOf(p.call)):
			o.found(p.arg, true)
		case section, locks && isRlock(typeutil.Callee(info, p.call)) && name != "Lock" && name != "TryLock":
			o.found(p.arg, false) // an Upgrade or a Downgrade, which need a hold; the other locks may go hand over hand
		case !locks && !isHarmless(info, p.call):
			o.found(p.arg, false)
		}
	}
}

func (f *function) outerCtx(r *reporter, t *taking) {
	ctx := f.key(t.before)
	if ctx == "" || ctx == f.key(t.section) || t.unlock == nil {
		return
	}
	pass := "name the ctx that it returned, and pass that"
	shadows := false
	if t.ctx != nil {
		pass = "pass " + t.ctx.Name()
		id, ok := t.before.(*ast.Ident)
		shadows = ok && id.Name == t.ctx.Name()
	}
	if shadows {
		pass = "assign to it with =, or go on in the scope of the one that it returned"
	}
	o := outer{ctx: ctx, lock: f.key(lockOf(t.call)), found: func(arg ast.Expr, sameLock bool) {
		harm := "does not end when the lock is lost"
		if sameLock {
			harm = "does not carry the hold, so that this Lock waits for itself"
		}
		r.report(arg, "%s is from before the %s in line %d, and %s: %s", types.ExprString(arg), nameOf(t.call), r.line(t.call.Pos()).number, harm, pass)
	}}
	flow{f, t, root(f.info, t.before)}.each(func(n ast.Node, s state) {
		use := f.use(n, t.unlock)
		if (use == unused || use == deferred) && (s.must(held|kept) || shadows && s.can(kept)) {
			o.look(f.info, n)
		}
	})
}

func outerCtxOfDo(r *reporter, call *ast.CallExpr, body *ast.FuncLit) {
	info := r.pass.TypesInfo
	before := ast.Unparen(call.Args[0])
	ctx := key(info, before)
	if ctx == "" || assigns(info, body.Body, root(info, before)) {
		return
	}
	pass := "name the ctx that it gives its function, and pass that"
	for _, field := range body.Type.Params.List {
		for _, name := range field.Names {
			if name.Name != "_" {
				pass = "pass " + name.Name
			}
		}
	}
	o := outer{ctx: ctx, lock: key(info, lockOf(call)), found: func(arg ast.Expr, sameLock bool) {
		harm := "does not end when the lock is lost"
		if sameLock {
			harm = "does not carry the hold, so that this Lock waits for itself"
		}
		r.report(arg, "%s is from outside of this %s, and %s: %s", types.ExprString(arg), nameOf(call), harm, pass)
	}}
	o.look(info, body.Body)
}

func (f *function) key(e ast.Expr) string { return key(f.info, e) }

// passed is a ctx that is an argument.
type passed struct {
	call *ast.CallExpr
	arg  ast.Expr
}

// passes lists the calls in n that get the ctx with that key, and run there: not those of goroutines, deferred calls, and functions
// that are kept for later.
func passes(info *types.Info, n ast.Node, ctx string) (all []passed) {
	var runs map[*ast.FuncLit]bool
	ast.Inspect(n, func(m ast.Node) bool {
		switch m := m.(type) {
		case *ast.GoStmt, *ast.DeferStmt:
			return false
		case *ast.FuncLit:
			return runs[m]
		case *ast.CallExpr:
			for i, arg := range m.Args {
				if isContext(paramType(info, m, i)) && key(info, arg) == ctx {
					all = append(all, passed{m, ast.Unparen(arg)})
				}
			}
			for _, e := range append([]ast.Expr{m.Fun}, m.Args...) {
				if lit, ok := ast.Unparen(e).(*ast.FuncLit); ok && !runsLater[nameOf(m)] {
					if runs == nil {
						runs = make(map[*ast.FuncLit]bool)
					}
					runs[lit] = true
				}
			}
		}
		return true
	})
	return all
}

// runsLater are the names of functions that run the one that they are given in a goroutine: those of errgroup and sync.WaitGroup, of
// context and time, and of tests.
var runsLater = map[string]bool{"Go": true, "TryGo": true, "AfterFunc": true, "Cleanup": true}

// isHarmless reports whether a function only reads what a ctx carries, or makes one of it that is to end in another way.
func isHarmless(info *types.Info, call *ast.CallExpr) bool {
	callee := typeutil.Callee(info, call)
	if callee == nil || callee.Pkg() == nil {
		return false
	}
	switch callee.Pkg().Path() {
	case "context":
		return callee.Name() == "Cause" || callee.Name() == "WithoutCancel"
	case "log/slog", rlockPath:
		return true
	}
	return false
}
