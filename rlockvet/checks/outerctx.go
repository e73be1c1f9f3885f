package checks

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// OuterCtx reports the use of another ctx than that of the section.
var OuterCtx = &analysis.Analyzer{
	Name: "outerctx",
	Doc: `report a ctx from before a Lock of package rlock, or context.Background, that is passed on in its section

The ctx that Lock returns, or that Do gives its function, carries the hold and ends when the lock is lost. Code that gets another one
goes on without the lock, and a Lock of the same name under it waits for itself.

To take another lock with the ctx from before is hand-over-hand locking, and not reported. Neither are functions that only read a
value of the ctx, what follows a look that shows the loss, goroutines and deferred calls, which may outlive the section, and files for
tests, where the one who must not get the lock is played.`,
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

// section is one whose calls should get its own ctx.
type section struct {
	lock   string // the key of the lock that it holds
	cure   string
	over   []ast.Node // code in it that runs only when it has ended
	failed []ast.Node // code that runs only after an error

	// The ctx from before.
	before     string // its key; "" if it cannot be told from others
	from       string // where it is from, for the message
	cureBefore string

	where string // the section, for the message about context.Background
}

func outerCtxOfLock(r *reporter, f *function, t *taking) {
	if t.unlock == nil {
		return
	}
	own := key(f.info, t.section)
	s := section{
		before: key(f.info, t.before),
		lock:   key(f.info, lockOf(t.call)),
		from:   fmt.Sprintf("before the %s in line %d", nameOf(t.call), r.line(t.call.Pos()).number),
		where:  fmt.Sprintf("in the section of the %s in line %d", nameOf(t.call), r.line(t.call.Pos()).number),
		cure:   "name the ctx that it returned, and pass that",
		over:   afterLoss(f.info, f.node, own, t.stmt.End()),
		failed: afterError(f.info, f.node),
	}
	if s.before == own {
		s.before = ""
	}
	if t.ctx != nil {
		s.cure = "pass " + t.ctx.Name()
	}
	s.cureBefore = s.cure
	shadows := false
	if id, ok := t.before.(*ast.Ident); ok && s.before != "" && t.ctx != nil && id.Name == t.ctx.Name() {
		shadows = true
		s.cureBefore = "assign to it with =, or go on in the scope of the one that it returned"
	}
	isIn := func(n ast.Node) bool { return f.use(n, t.unlock) <= deferredVar } // and neither called nor passed on
	if s.before != "" {
		flow{f, t, root(f.info, t.before)}.each(func(n ast.Node, now state) {
			if isIn(n) && (now.must(inside) || shadows && now.can(kept|keptVar)) {
				s.reportBefore(r, n)
			}
		})
	}
	flow{f, t, nil}.each(func(n ast.Node, now state) {
		if isIn(n) && now.must(inside) {
			s.reportBackground(r, n)
		}
	})
}

func outerCtxOfDo(r *reporter, call *ast.CallExpr, fn *ast.FuncLit) {
	info := r.pass.TypesInfo
	s := section{
		before: key(info, call.Args[0]),
		lock:   key(info, lockOf(call)),
		from:   "outside of this " + nameOf(call),
		where:  "in the section of this " + nameOf(call),
		cure:   "name the ctx that it gives its function, and pass that",
		over:   afterLoss(info, fn.Body, "", fn.Body.Pos()),
		failed: afterError(info, fn.Body),
	}
	if assigns(info, fn.Body, root(info, call.Args[0])) {
		s.before = ""
	}
	for _, field := range fn.Type.Params.List[:1] {
		for _, name := range field.Names {
			if !isBlank(name) {
				s.cure = "pass " + name.Name
				s.over = afterLoss(info, fn.Body, key(info, name), fn.Body.Pos())
			}
		}
	}
	s.cureBefore = s.cure
	s.reportBefore(r, fn.Body)
	s.reportBackground(r, fn.Body)
}

// reportBefore reports where n, which is in the section, passes the ctx from before on.
func (s section) reportBefore(r *reporter, n ast.Node) {
	info := r.pass.TypesInfo
	for _, p := range passes(info, n, isKey(info, s.before)) {
		if harm, ok := s.harm(r, p); ok {
			r.report(p.arg, "%s is from %s, and %s: %s", types.ExprString(p.arg), s.from, harm, s.cureBefore)
		}
	}
}

// reportBackground reports where n passes context.Background on. With a time-out of its own, or after an error, it is taken for one of
// clean-up, which may outlive the section.
func (s section) reportBackground(r *reporter, n ast.Node) {
	info := r.pass.TypesInfo
	for _, p := range passes(info, n, func(e ast.Expr) bool { return isBackground(info, e) }) {
		if isFrom(typeutil.Callee(info, p.call), "context") || isWithin(s.failed, p.arg) {
			continue
		}
		if harm, ok := s.harm(r, p); ok {
			r.report(p.arg, "%s %s %s: %s", types.ExprString(p.arg), s.where, harm, s.cure)
		}
	}
}

// harm is what is wrong with p in the section, if anything is.
func (s section) harm(r *reporter, p passed) (string, bool) {
	info := r.pass.TypesInfo
	if isWithin(s.over, p.arg) {
		return "", false
	}
	name, locks := nameOf(p.call), takesLock(resultsOf(info, p.call))
	_, isSection := isSection(info, p.call)
	needsHold := isRlock(typeutil.Callee(info, p.call)) && (name == "Upgrade" || name == "Downgrade")
	switch {
	case (isSection || locks && name == "Lock") && s.lock != "" && s.lock == key(info, lockOf(p.call)):
		return fmt.Sprintf("does not carry the hold, so that this %s waits for itself", name), true
	case isSection, needsHold:
	case locks, r.isHarmless(p.call): // hand over hand
		return "", false
	}
	return "does not end when the lock is lost", true
}

// isBackground reports whether e is a ctx that never ends.
func isBackground(info *types.Info, e ast.Expr) bool {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok {
		return false
	}
	callee := typeutil.Callee(info, call)
	return isFrom(callee, "context") && (callee.Name() == "Background" || callee.Name() == "TODO")
}

// afterLoss lists the code in n, from a position on, that runs only when the ctx with that key has ended, or when an error is ErrLost.
func afterLoss(info *types.Info, n ast.Node, ctx string, from token.Pos) (all []ast.Node) {
	ends := isKey(info, ctx)
	ast.Inspect(n, func(m ast.Node) bool {
		switch m := m.(type) {
		case *ast.IfStmt:
			if m.Pos() >= from && showsLoss(info, m.Cond, ends) {
				all = append(all, m.Body)
			}
		case *ast.CaseClause:
			if m.Pos() >= from && len(m.List) > 0 &&
				!slices.ContainsFunc(m.List, func(e ast.Expr) bool { return !showsLoss(info, e, ends) }) {
				all = append(all, m)
			}
		case *ast.CommClause:
			if m.Pos() >= from && awaits(m.Comm, ends) {
				all = append(all, m)
			}
		case *ast.BlockStmt:
			for i, stmt := range m.List {
				if stmt.Pos() >= from && awaits(stmt, ends) {
					for _, later := range m.List[i+1:] {
						all = append(all, later)
					}
				}
			}
		}
		return true
	})
	return all
}

// showsLoss reports whether a condition is true only if the section has ended.
func showsLoss(info *types.Info, cond ast.Expr, ctx func(ast.Expr) bool) bool {
	switch e := ast.Unparen(cond).(type) {
	case *ast.BinaryExpr:
		switch e.Op {
		case token.LAND:
			return showsLoss(info, e.X, ctx) || showsLoss(info, e.Y, ctx)
		case token.LOR:
			return showsLoss(info, e.X, ctx) && showsLoss(info, e.Y, ctx)
		case token.NEQ:
			call, ok := ast.Unparen(e.X).(*ast.CallExpr)
			if !ok || !info.Types[e.Y].IsNil() {
				return false
			}
			if s, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok && s.Sel.Name == "Err" && ctx(s.X) {
				return true
			}
			callee := typeutil.Callee(info, call)
			return isFrom(callee, "context") && callee.Name() == "Cause" && ctx(call.Args[0])
		default: // of numbers, or the like
		}
	case *ast.CallExpr:
		if callee := typeutil.Callee(info, e); isFrom(callee, "errors") && callee.Name() == "Is" && len(e.Args) == 2 {
			if s, ok := ast.Unparen(e.Args[1]).(*ast.SelectorExpr); ok {
				return isRlock(info.ObjectOf(s.Sel)) && s.Sel.Name == "ErrLost"
			}
		}
	}
	return false
}

// afterError lists the code in n that runs only when an error is not nil.
func afterError(info *types.Info, n ast.Node) (all []ast.Node) {
	ast.Inspect(n, func(m ast.Node) bool {
		if m, ok := m.(*ast.IfStmt); ok {
			if cond, ok := ast.Unparen(m.Cond).(*ast.BinaryExpr); ok && cond.Op == token.NEQ && info.Types[cond.Y].IsNil() &&
				isError(info.TypeOf(cond.X)) {
				all = append(all, m.Body)
			}
		}
		return true
	})
	return all
}

func isWithin(all []ast.Node, n ast.Node) bool {
	return slices.ContainsFunc(all, func(outer ast.Node) bool { return outer.Pos() <= n.Pos() && n.End() <= outer.End() })
}

// awaits reports whether a statement is <-ctx.Done().
func awaits(stmt ast.Stmt, ctx func(ast.Expr) bool) bool {
	e, ok := stmt.(*ast.ExprStmt)
	if !ok {
		return false
	}
	receive, ok := ast.Unparen(e.X).(*ast.UnaryExpr)
	if !ok || receive.Op != token.ARROW {
		return false
	}
	call, ok := ast.Unparen(receive.X).(*ast.CallExpr)
	if !ok {
		return false
	}
	s, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Done" && ctx(s.X)
}

// passed is a ctx that is an argument.
type passed struct {
	call *ast.CallExpr
	arg  ast.Expr
}

// isKey matches expressions with that key, and none if it is "".
func isKey(info *types.Info, k string) func(ast.Expr) bool {
	return func(e ast.Expr) bool { return k != "" && key(info, e) == k }
}

// passes lists the calls in n that get a ctx that matches, and run there: not those of goroutines and deferred calls. Of function
// literals, it looks into those that are called at once, or given to a call and have a result; one without seems to be kept for later.
func passes(info *types.Info, n ast.Node, ctx func(ast.Expr) bool) (all []passed) {
	runs := make(map[*ast.FuncLit]bool)
	ast.Inspect(n, func(m ast.Node) bool {
		switch m := m.(type) {
		case *ast.GoStmt, *ast.DeferStmt:
			return false
		case *ast.FuncLit:
			return runs[m]
		case *ast.CallExpr:
			for i, arg := range m.Args {
				if isContext(paramType(info, m, i)) && ctx(arg) {
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
