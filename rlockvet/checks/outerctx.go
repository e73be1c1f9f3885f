package checks

import (
	"fmt"
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
			outerCtxOfLock(r, f, t)
		}
	}
	for call := range inspector.All[*ast.CallExpr](resultOf[*inspector.Inspector](pass, inspect.Analyzer)) {
		if i, ok := isSection(pass.TypesInfo, call); ok {
			if fn, ok := ast.Unparen(call.Args[i]).(*ast.FuncLit); ok {
				outerCtxOfDo(r, call, fn)
			}
		}
	}
	return nil, nil
}

// outer is the ctx from before a section.
type outer struct {
	ctx, lock string // the keys of it and of the lock that the section holds
	from      string // where it is from, for the message
	cure      string
}

func outerCtxOfLock(r *reporter, f *function, t *taking) {
	o := outer{
		ctx:  key(f.info, t.before),
		lock: key(f.info, lockOf(t.call)),
		from: fmt.Sprintf("before the %s in line %d", nameOf(t.call), r.line(t.call.Pos()).number),
		cure: "name the ctx that it returned, and pass that",
	}
	if o.ctx == "" || o.ctx == key(f.info, t.section) || t.unlock == nil {
		return
	}
	shadows := false
	if t.ctx != nil {
		o.cure = "pass " + t.ctx.Name()
		id, ok := t.before.(*ast.Ident)
		shadows = ok && id.Name == t.ctx.Name()
	}
	if shadows {
		o.cure = "assign to it with =, or go on in the scope of the one that it returned"
	}
	flow{f, t, root(f.info, t.before)}.each(func(n ast.Node, s state) {
		use := f.use(n, t.unlock)
		if (use == unused || use == deferred) && (s.must(held|kept) || shadows && s.can(kept)) {
			o.report(r, n)
		}
	})
}

func outerCtxOfDo(r *reporter, call *ast.CallExpr, fn *ast.FuncLit) {
	info := r.pass.TypesInfo
	o := outer{
		ctx:  key(info, call.Args[0]),
		lock: key(info, lockOf(call)),
		from: "outside of this " + nameOf(call),
		cure: "name the ctx that it gives its function, and pass that",
	}
	if o.ctx == "" || assigns(info, fn.Body, root(info, call.Args[0])) {
		return
	}
	for _, field := range fn.Type.Params.List {
		for _, name := range field.Names {
			if !isBlank(name) {
				o.cure = "pass " + name.Name
			}
		}
	}
	o.report(r, fn.Body)
}

// report reports where n, which is in the section, passes the ctx on.
func (o outer) report(r *reporter, n ast.Node) {
	info := r.pass.TypesInfo
	for _, p := range passes(info, n, o.ctx) {
		name, locks := nameOf(p.call), takesLock(resultsOf(info, p.call))
		_, section := isSection(info, p.call)
		needsHold := isRlock(typeutil.Callee(info, p.call)) && (name == "Upgrade" || name == "Downgrade")
		harm := "does not end when the lock is lost"
		switch {
		case locks && name == "Lock" && o.lock != "" && o.lock == key(info, lockOf(p.call)):
			harm = "does not carry the hold, so that this Lock waits for itself"
		case section, needsHold:
		case locks, isHarmless(info, p.call): // hand over hand
			continue
		}
		r.report(p.arg, "%s is from %s, and %s: %s", types.ExprString(p.arg), o.from, harm, o.cure)
	}
}

// passed is a ctx that is an argument.
type passed struct {
	call *ast.CallExpr
	arg  ast.Expr
}

// passes lists the calls in n that get the ctx with that key, and run there: not those of goroutines and deferred calls. Of function
// literals, it looks into those that are called at once, or given to a call and have a result; one without seems to be kept for later.
func passes(info *types.Info, n ast.Node, ctx string) (all []passed) {
	runs := make(map[*ast.FuncLit]bool)
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
			if fn, ok := ast.Unparen(m.Fun).(*ast.FuncLit); ok {
				runs[fn] = true
			}
			for _, arg := range m.Args {
				if fn, ok := ast.Unparen(arg).(*ast.FuncLit); ok && fn.Type.Results != nil && !isGo[nameOf(m)] {
					runs[fn] = true
				}
			}
		}
		return true
	})
	return all
}

// isGo are the names of functions that run one with a result in a goroutine: those of errgroup.
var isGo = map[string]bool{"Go": true, "TryGo": true}

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
