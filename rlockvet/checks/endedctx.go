package checks

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// EndedCtx reports the use of a section's ctx after its unlock.
var EndedCtx = &analysis.Analyzer{
	Name: "endedctx",
	Doc: `report uses of a section's ctx after its unlock, for package rlock

The unlock cancels the ctx that Lock returned. Calls that still use it fail, and so does the next Lock under it. This is easily missed if a
Lock in a loop assigns to a ctx declared outside, or if "ctx, unlock, err := m.Lock(ctx)" assigns to a function's parameter.

Cancelling the ctx passed to Lock ends the section too. Often that ctx has a timeout meant only for the wait. And a function that defers the
unlock returns a cancelled ctx.

A ctx that was derived from the section's ends with it, and so does a copy in a field. A deferred call that gets the ctx must be deferred
after the unlock, to run before it. And a goroutine that is started as the last step of a section gets a ctx that ends at once.`,
	URL:      url,
	Run:      runEndedCtx,
	Requires: []*analysis.Analyzer{inspect.Analyzer, takings},
}

func runEndedCtx(pass *analysis.Pass) (any, error) {
	r := newReporter(pass)
	for _, f := range resultOf[*users](pass, takings).functions {
		for _, t := range f.takings {
			if (t.ctx != nil || t.isHold) && t.unlock != nil {
				f.endedCtx(r, t)
				f.deferredTooEarly(r, t)
				f.leavesGoroutines(r, t)
			}
		}
	}
	for call := range inspector.All[*ast.CallExpr](resultOf[*inspector.Inspector](pass, inspect.Analyzer)) {
		if i, ok := isSection(r.info, call); ok {
			leavesGoroutinesOfDo(r, call, call.Args[i])
		}
	}
	return nil, nil
}

func (f *function) endedCtx(r *reporter, t *taking) {
	by := fmt.Sprintf("the unlock of the %s in line %d", nameOf(t.call), r.line(t.call.Pos()).number)
	flow{f, t, t.ctx}.each(func(n ast.Node, s state) {
		if ret, ok := n.(*ast.ReturnStmt); ok && s.must(kept) && f.use(n, t.unlock) == unused {
			f.returnsEnded(r, t, ret, by)
		}
		if !s.can(ended) {
			return
		}
		for _, p := range f.uses(n, t) {
			name := types.ExprString(p.arg)
			_, section := isSection(f.info, p.call)
			switch {
			case section, takesLock(resultsOf(f.info, p.call)): // an error on this path, whatever the other paths do
				r.report(p.arg, "%s was cancelled by %s: give this %s a ctx from before that, and the section a ctx of its own name",
					name, by, nameOf(p.call))
			case s.must(ended) && !r.survives(p.call):
				r.report(p.arg, "%s was cancelled by %s: pass a ctx from before that, and give the section a ctx of its own name", name, by)
			}
		}
	})
	if t.cancel == nil || t.isHold { // the ctx of an Acquire bounds only the wait
		return
	}
	cancelled := &taking{stmt: t.stmt, err: t.err, unlock: t.cancel}
	flow{f, cancelled, t.ctx}.each(func(n ast.Node, s state) {
		for _, p := range f.uses(n, t) {
			if s.must(ended) && !r.survives(p.call) {
				r.report(p.arg, "%s was cancelled by %s, whose ctx the %s in line %d was given: defer %s, or bound the wait with TryLock",
					types.ExprString(p.arg), t.cancel.Name(), nameOf(t.call), r.line(t.call.Pos()).number, t.cancel.Name())
			}
		}
	})
}

// uses lists the calls in n that get the section's ctx, or one that ends with it.
func (f *function) uses(n ast.Node, t *taking) []passed {
	return passesOf(f.info, n, func(e ast.Expr) bool { return f.endsWith(e, t) })
}

// endsWith reports whether e is the section's ctx, or ends with it: derived from it, or its copy in a field.
func (f *function) endsWith(e ast.Expr, t *taking) bool {
	own := t.key(f.info)
	for from := e; from != nil; from = f.info.parentOf(from, t.stmt.End()) {
		if k := key(f.info, from); k != "" && (k == own || f.isCopy(k, own, t.stmt)) {
			return true
		}
	}
	return false
}

// parentOf returns the ctx from which a variable was derived by package context or errgroup, after a position, or the Context() of a hold that
// it is; nil if that is out of sight.
func (s *source) parentOf(e ast.Expr, after token.Pos) ast.Expr {
	call, isCall := ast.Unparen(e).(*ast.CallExpr)
	if !isCall {
		value := s.valueOf(e)
		if value == nil || value.Pos() < after {
			return nil
		}
		var ok bool
		if call, ok = ast.Unparen(value).(*ast.CallExpr); !ok {
			return value
		}
	}
	callee := typeutil.Callee(s.Info, call)
	if !isCall && isMethod(callee, "Hold", "Context") {
		return call
	}
	derives := isFrom(callee, "context") && strings.HasPrefix(callee.Name(), "With") && callee.Name() != "WithoutCancel" ||
		isFrom(callee, "golang.org/x/sync/errgroup") && callee.Name() == "WithContext"
	if !derives || len(call.Args) == 0 {
		return nil
	}
	return call.Args[0]
}

// survives reports whether a call does the same with a ctx that has ended. Requests of package rlock fail.
func (r *reporter) survives(call *ast.CallExpr) bool {
	results := resultsOf(r.info, call)
	asks := isRlock(typeutil.Callee(r.info.Info, call)) && len(results) > 0 && isError(results[len(results)-1])
	return !asks && r.isHarmless(call)
}

// isCopy reports whether the function assigns the ctx to a field after the Lock, and nothing else to that.
func (f *function) isCopy(field, ctx string, stmt ast.Node) bool {
	copies, others := 0, 0
	ast.Inspect(f.node, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if !ok {
			return true
		}
		for i, e := range a.Lhs {
			switch _, isField := ast.Unparen(e).(*ast.SelectorExpr); {
			case !isField || key(f.info, e) != field:
			case len(a.Lhs) == len(a.Rhs) && a.Pos() > stmt.Pos() && key(f.info, a.Rhs[i]) == ctx:
				copies++
			default:
				others++
			}
		}
		return true
	})
	return copies == 1 && others == 0
}

// deferredTooEarly reports calls with the section's ctx that were deferred before the unlock, and so run after it.
func (f *function) deferredTooEarly(r *reporter, t *taking) {
	var early []passed
	flow{f, t, t.ctx}.each(func(n ast.Node, s state) {
		d, ok := n.(*ast.DeferStmt)
		switch {
		case !ok:
		case f.use(d, t.unlock) == unused && s.must(fresh|held):
			early = append(early, f.uses(d.Call, t)...)
		case f.use(d, t.unlock) == deferred || f.use(d, t.unlock) == deferredVar:
			for _, p := range early {
				if !r.survives(p.call) {
					r.report(p.arg, "%s is cancelled by then, since the unlock in line %d is deferred later, and so runs first: defer the unlock first",
						types.ExprString(p.arg), r.line(d.Pos()).number)
				}
			}
		}
	})
}

// leavesGoroutines reports goroutines with the section's ctx that a function starts just before it unlocks.
func (f *function) leavesGoroutines(r *reporter, t *taking) {
	var body *ast.BlockStmt
	switch n := f.node.(type) {
	case *ast.FuncDecl:
		body = n.Body
	case *ast.FuncLit:
		body = n.Body
	}
	last, waits := f.info.lastGos(body.List), false
	flow{f, t, t.ctx}.each(func(n ast.Node, s state) {
		d, isDefer := n.(*ast.DeferStmt)
		g, isGo := n.(*ast.GoStmt)
		switch {
		case isDefer: // it waits before the unlock, if that is deferred already, or here: last in, first out
			waits = waits || (s.must(kept|keptVar) || f.use(d, t.unlock) != unused) && f.info.waitsInDefer(d, body)
		case isGo && slices.Contains(last, g) && s.must(inside) && f.use(g, t.unlock) == unused && !waits:
			r.leftBehind(f.uses(g.Call, t), nameOf(t.call))
		}
	})
}

// leavesGoroutinesOfDo reports goroutines with the section's ctx that are the last step of a Do's function.
func leavesGoroutinesOfDo(r *reporter, call *ast.CallExpr, fn ast.Expr) {
	literal, ok := ast.Unparen(fn).(*ast.FuncLit)
	if !ok {
		return
	}
	waits := false
	ast.Inspect(literal.Body, func(n ast.Node) bool {
		if d, ok := n.(*ast.DeferStmt); ok {
			waits = waits || r.info.waitsInDefer(d, literal.Body)
		}
		_, isLiteral := n.(*ast.FuncLit)
		return !isLiteral
	})
	if waits {
		return
	}
	for _, g := range r.info.lastGos(literal.Body.List) {
		for _, name := range literal.Type.Params.List[0].Names {
			r.leftBehind(passesOf(r.info, g.Call, isKey(r.info, key(r.info, name))), nameOf(call))
		}
	}
}

func (r *reporter) leftBehind(all []passed, section string) {
	for _, p := range all {
		if !r.survives(p.call) {
			r.report(p.arg, "%s is cancelled as soon as this goroutine has begun, since the section of this %s ends here: wait for the goroutine, "+
				"or give it a ctx that may outlive the lock", types.ExprString(p.arg), section)
		}
	}
}

// waitsInDefer reports whether a deferred call of a function waits for goroutines, as far as can be seen: by a Wait, or a channel, also in
// functions of the package that it calls.
func (s *source) waitsInDefer(d *ast.DeferStmt, body *ast.BlockStmt) bool {
	seen := make(map[ast.Node]bool)
	var waits func(n ast.Node) bool
	waits = func(n ast.Node) bool {
		if seen[n] {
			return false
		}
		seen[n] = true
		found := false
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.UnaryExpr:
				found = found || n.Op == token.ARROW && s.receivesFromGoroutine(body, n.X)
			case *ast.RangeStmt:
				_, isChan := s.TypeOf(n.X).Underlying().(*types.Chan)
				found = found || isChan && s.receivesFromGoroutine(body, n.X)
			case *ast.SendStmt: // as to all slots of a semaphore
				own, others := s.channelUses(body, n.Chan)
				found = found || (others.receives || others.escapes) && !own.receives
			case *ast.CallExpr:
				_, called := s.bodyOf(n.Fun)
				found = found || strings.Contains(nameOf(n), "Wait") || called != nil && waits(called)
			}
			return !found
		})
		return found
	}
	return waits(d)
}

// receivesFromGoroutine reports whether a deferred receive may wait for a goroutine. It does not if it gives back the slot of a semaphore that
// the function itself has taken, by a send.
func (s *source) receivesFromGoroutine(body *ast.BlockStmt, channel ast.Expr) bool {
	own, others := s.channelUses(body, channel)
	return !own.sends || own.escapes || others.escapes || others.sends && !others.receives
}

// channelUse is what some code does with a channel.
type channelUse struct {
	sends    bool // or closes
	receives bool
	escapes  bool // out of sight
}

// channelUses returns what a function itself does with a channel, without deferred calls, and what its goroutines and other literals do.
func (s *source) channelUses(body *ast.BlockStmt, channel ast.Expr) (own, others channelUse) {
	k := key(s, channel)
	ast.PreorderStack(body, nil, func(n ast.Node, stack []ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok || k == "" || key(s, e) != k {
			return true
		}
		use := &own
		for _, outer := range stack {
			switch outer.(type) {
			case *ast.DeferStmt:
				if use == &own {
					return false
				}
			case *ast.GoStmt, *ast.FuncLit:
				use = &others
			}
		}
		switch parent := stack[len(stack)-1].(type) {
		case *ast.SendStmt:
			use.sends = use.sends || parent.Chan == e
			use.escapes = use.escapes || parent.Chan != e
		case *ast.UnaryExpr:
			use.receives = use.receives || parent.Op == token.ARROW
			use.escapes = use.escapes || parent.Op != token.ARROW
		case *ast.RangeStmt:
			use.receives = true
		case *ast.CallExpr:
			switch nameOf(parent) {
			case "close":
				use.sends = true
			case "len", "cap":
			default:
				use.escapes = true
			}
		case *ast.AssignStmt:
			use.escapes = use.escapes || !slices.Contains(parent.Lhs, e)
		case *ast.ValueSpec:
		default:
			use.escapes = true
		}
		return false
	})
	return own, others
}

// lastGos lists the go statements at the end of a function, in loops as well, behind which at most a return follows that calls nothing but
// an unlock.
func (s *source) lastGos(list []ast.Stmt) (all []*ast.GoStmt) {
	if n := len(list); n > 0 {
		if ret, ok := list[n-1].(*ast.ReturnStmt); ok {
			if !s.isQuiet(ret) {
				return nil
			}
			list = list[:n-1]
		}
	}
	for _, stmt := range slices.Backward(list) {
		var body *ast.BlockStmt
		switch stmt := stmt.(type) {
		case *ast.GoStmt:
			all = append(all, stmt)
			continue
		case *ast.ForStmt:
			body = stmt.Body
		case *ast.RangeStmt:
			body = stmt.Body
		default:
			return all
		}
		inner := s.lastGos(body.List)
		all = append(all, inner...)
		if len(inner) < len(body.List) {
			return all
		}
	}
	return all
}

// isQuiet reports whether a statement neither waits nor works: it calls at most an unlock, or a function of package errors or context.
func (s *source) isQuiet(stmt ast.Stmt) bool {
	quiet := true
	ast.Inspect(stmt, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.UnaryExpr:
			quiet = quiet && n.Op != token.ARROW
		case *ast.CallExpr:
			callee := typeutil.Callee(s.Info, n)
			quiet = quiet && (isUnlock(s.TypeOf(n.Fun)) || isFrom(callee, "errors") || isFrom(callee, "context"))
		}
		return quiet
	})
	return quiet
}

// returnsEnded reports a returned section's ctx whose unlock is deferred.
func (f *function) returnsEnded(r *reporter, t *taking, ret *ast.ReturnStmt, by string) {
	for _, e := range ret.Results {
		if isContext(f.info.TypeOf(e)) && f.endsWith(e, t) {
			r.report(e, "%s is cancelled by %s, which is deferred, so the caller gets a ctx that has ended: return the unlock as well, and do not defer it",
				types.ExprString(e), by)
		}
	}
}
