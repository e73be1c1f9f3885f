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

// OuterCtx reports the use of another ctx than the section's.
var OuterCtx = &analysis.Analyzer{
	Name: "outerctx",
	Doc: `report an outer ctx, or context.Background, passed on inside a section, for package rlock

The ctx that Lock returns, or that Do passes to its function, carries the hold and ends when the lock is lost. Code with another ctx
continues without the lock, and locking the same name under it waits for itself.

Taking another lock with the outer ctx is hand-over-hand locking, and not reported. Neither are functions that only read a value of the
ctx, code after a check that shows the loss, goroutines and deferred calls, which may outlive the section, and test files, which often play
a competitor.

A FencingToken of the section's lock is looked for in the section's ctx. And the write side of a read/write lock cannot be locked under the
ctx of its read side.`,
	URL:      url,
	Run:      runOuterCtx,
	Requires: []*analysis.Analyzer{inspect.Analyzer, takings},
}

func runOuterCtx(pass *analysis.Pass) (any, error) {
	r := newReporter(pass).skipTests()
	for _, f := range resultOf[*users](pass, takings).functions {
		for _, t := range f.takings {
			outerCtxOfLock(r, f, t)
		}
	}
	for call := range inspector.All[*ast.CallExpr](resultOf[*inspector.Inspector](pass, inspect.Analyzer)) {
		if i, ok := isSection(r.info, call); ok {
			outerCtxOfDo(r, call, call.Args[i])
		}
	}
	return nil, nil
}

// section is a section whose calls should get its own ctx.
type section struct {
	lock    string     // the key of the held lock
	named   string     // the key of its name
	reads   string     // the key of the read/write lock of which it is the read side
	own     string     // the key of its ctx; "" if unnamed
	ignored bool       // its ctx is unused
	name    string     // of its ctx, if it can be passed on
	over    []ast.Node // code in it that runs only after its end
	failed  []ast.Node // code that runs only after an error
	waited  []string   // the goroutine groups it waits for

	// The ctx from before the section.
	before  map[string]bool     // its key, and the keys of the ctxs it was derived from
	begin   token.Pos           // variables declared from here on belong to the section
	isOuter func(ast.Expr) bool // other ctxs from before
	from    string              // its origin, for the message

	where string // the section, for the message about context.Background
}

// addBefore records the ctx that the section began with and its ancestors, unless their variables change in the section.
func (s *section) addBefore(info *source, before ast.Expr, changes func(*types.Var) bool) {
	s.before = make(map[string]bool)
	if before == nil {
		return
	}
	for _, e := range info.origins(before, true) {
		if k := key(info, e); k != s.own && !changes(root(info, e)) {
			s.before[k] = true
		}
	}
}

// isBefore reports whether e is a ctx from before the section: the one it began with, or a variable derived from it.
func (s *section) isBefore(info *source, e ast.Expr) bool {
	k := key(info, e)
	if k == "" || k == s.own {
		return false
	}
	if s.before[k] || s.isOuter != nil && s.isOuter(e) {
		return true
	}
	id, ok := ast.Unparen(e).(*ast.Ident)
	if !ok || info.Uses[id] == nil || info.Uses[id].Pos() >= s.begin {
		return false
	}
	return slices.ContainsFunc(info.origins(e, false), func(e ast.Expr) bool { return s.before[key(info, e)] })
}

func outerCtxOfLock(r *reporter, f *function, t *taking) {
	if t.unlock == nil || t.isHold && !f.isSectionOf(t) {
		return
	}
	own := key(f.info, t.section)
	s := section{
		own:     own,
		ignored: own == "" || t.ctx != nil && f.info.isIgnored(f.node, t.ctx),
		over:    afterLoss(f.info, f.node, f.ofSection(t), t.stmt.End()),
		failed:  afterError(f.info, f.node),
		begin:   t.stmt.Pos(),
		from:    fmt.Sprintf("before the %s in line %d", nameOf(t.call), r.line(t.call.Pos()).number),
		where:   fmt.Sprintf("in the section of the %s in line %d", nameOf(t.call), r.line(t.call.Pos()).number),
	}
	s.holds(f.info, lockOf(t.call))
	switch {
	case t.ctx != nil:
		s.name = t.ctx.Name()
	case t.isHold:
		s.holds(f.info, lockOfSection(f.info, t.call))
		s.name = t.unlock.Name() + ".Context()"
	}
	watch := f.watchOf(t.before)
	s.addBefore(f.info, t.before, func(v *types.Var) bool {
		return v != watch && slices.ContainsFunc(f.info.changes[v], func(at token.Pos) bool { return at >= t.stmt.Pos() })
	})
	isIn := func(n ast.Node) bool { return f.use(n, t.unlock) <= deferredVar } // neither called nor passed on
	flow{f, t, nil}.each(func(n ast.Node, now state) {
		if now.must(inside) {
			s.waited = append(s.waited, waits(f.info, n)...)
		}
	})
	flow{f, t, watch}.each(func(n ast.Node, now state) {
		if isIn(n) && (now.must(inside) || now.can(kept|keptVar)) {
			s.reportBefore(r, n, now.must(inside))
		}
	})
	flow{f, t, nil}.each(func(n ast.Node, now state) {
		if isIn(n) && now.must(inside) {
			s.reportBackground(r, n)
			s.reportUpgrade(r, n)
			s.reportAcquire(r, n)
		}
	})
}

// isSectionOf reports whether the function defers the Unlock of a hold, so that its rest is the section, and does not look at the hold's end.
func (f *function) isSectionOf(t *taking) bool {
	ends, looks := false, false
	ast.PreorderStack(f.node, nil, func(n ast.Node, stack []ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok || f.info.Uses[id] != t.unlock {
			return true
		}
		method, ok := stackEnd[*ast.SelectorExpr](stack, 1)
		switch {
		case !ok || !isMethod(f.info.Uses[method.Sel], "Hold", "Unlock"):
			looks = true
		case slices.ContainsFunc(stack, func(n ast.Node) bool { _, ok := n.(*ast.DeferStmt); return ok }):
			ends = true
		}
		return true
	})
	return ends && !looks
}

// holds records the lock of the section.
func (s *section) holds(info *source, lock ast.Expr) {
	s.lock, s.named = key(info, lock), key(info, nameArg(info, lock))
	s.reads = sideOf(info, lock, "Read")
}

// sideOf returns the key of rw for the lock rw.Read(), or that other side; "" for other locks.
func sideOf(info *source, lock ast.Expr, side string) string {
	if lock == nil {
		return ""
	}
	made := madeBy(info, lock)
	if made == nil || nameOf(made) != side || len(made.Args) > 0 {
		return ""
	}
	return key(info, lockOf(made))
}

// watchOf returns a ctx's variable, as written.
func (f *function) watchOf(ctx ast.Expr) *types.Var {
	if key(f.info, ctx) == "" {
		return nil
	}
	return root(f.info, ctx)
}

// isIgnored reports whether n never uses the variable; _ = v does not count.
func (s *source) isIgnored(n ast.Node, v *types.Var) bool {
	used := false
	ast.PreorderStack(n, nil, func(n ast.Node, stack []ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && s.Uses[id] == v {
			a, ok := stackEnd[*ast.AssignStmt](stack, 1)
			used = used || !ok || slices.ContainsFunc(a.Lhs, func(e ast.Expr) bool { return !isBlank(e) && e != n })
		}
		return !used
	})
	return !used
}

func outerCtxOfDo(r *reporter, call *ast.CallExpr, fn ast.Expr) {
	typ, body := r.info.bodyOf(fn)
	if body == nil {
		return
	}
	s := section{
		from:    "outside of this " + nameOf(call),
		where:   "in the section of this " + nameOf(call),
		ignored: true,
		begin:   call.Pos(),
		waited:  waits(r.info, body),
	}
	if isRlock(typeutil.Callee(r.info.Info, call)) {
		s.holds(r.info, lockOfSection(r.info, call))
	}
	for _, name := range typ.Params.List[0].Names {
		if v, ok := r.info.Defs[name].(*types.Var); ok && !isBlank(name) {
			s.name, s.own, s.ignored = name.Name, key(r.info, name), r.info.isIgnored(body, v)
		}
	}
	s.over, s.failed = afterLoss(r.info, body, isKey(r.info, s.own), body.Pos()), afterError(r.info, body)
	if s.ignored {
		s.isOuter = func(e ast.Expr) bool { // whatever it is
			v := root(r.info, e)
			return isContext(r.info.TypeOf(e)) && v != nil && !isWithin([]ast.Node{body}, v)
		}
	}
	if _, isLiteral := ast.Unparen(fn).(*ast.FuncLit); !isLiteral { // a function that may also be called elsewhere
		s.from = fmt.Sprintf("outside of the section of the %s in line %d", nameOf(call), r.line(call.Pos()).number)
		if s.ignored {
			s.reportBefore(r, body, true)
		}
		return
	}
	s.addBefore(r.info, call.Args[0], func(v *types.Var) bool { return assigns(r.info, body, v) })
	s.reportBefore(r, body, true)
	s.reportBackground(r, body)
	s.reportUpgrade(r, body)
	s.reportAcquire(r, body)
}

// reportBefore reports where n, inside the section, passes on the ctx from before. If only some paths to n are inside, it is reported if it
// has the name of the section's ctx.
func (s *section) reportBefore(r *reporter, n ast.Node, always bool) {
	p := passes{
		source: r.info,
		ctx:    func(e ast.Expr) bool { return s.isBefore(r.info, e) },
		keys:   func(k string) bool { return s.before[k] },
		heeded: s.ignored,
		waited: s.waited,
	}
	for _, p := range p.in(n) {
		id, isName := p.arg.(*ast.Ident)
		shadowed := isName && id.Name == s.name
		harm, ok := s.harm(r, p)
		if !ok || !always && !shadowed {
			continue
		}
		what := types.ExprString(p.arg)
		switch p.how {
		case inRequest:
			r.report(p.arg, "%s has the ctx from %s, which %s: pass what its method WithContext returns for the section's ctx", what, s.from, harm)
		case inFunction:
			r.report(p.arg, "%s uses a ctx from %s, which %s: give it the ctx as a parameter", what, s.from, harm)
		default:
			r.report(p.arg, "%s is from %s, and %s: %s", what, s.from, harm, s.cure(shadowed))
		}
	}
}

// cure returns the advice for the message.
func (s *section) cure(shadowed bool) string {
	switch {
	case shadowed:
		return "assign to it with =, or go on in the scope of the one that it returned"
	case s.name != "":
		return "pass " + s.name
	case strings.HasPrefix(s.from, "before"):
		return "name the ctx that it returned, and pass that"
	}
	return "name the ctx that it gives its function, and pass that"
}

// reportBackground reports where n passes context.Background on. With its own time-out, or after an error, it counts as cleanup, which may
// outlive the section.
func (s *section) reportBackground(r *reporter, n ast.Node) {
	for _, p := range passesOf(r.info, n, func(e ast.Expr) bool { return isBackground(r.info, e) }) {
		if isFrom(typeutil.Callee(r.info.Info, p.call), "context") || isWithin(s.failed, p.arg) {
			continue
		}
		if harm, ok := s.harm(r, p); ok {
			r.report(p.arg, "%s %s %s: %s", types.ExprString(p.arg), s.where, harm, s.cure(false))
		}
	}
	for _, p := range passesOf(r.info, n, func(e ast.Expr) bool { return isDetached(r.info, e) }) {
		if s.waitsForItself(r.info, p.call) {
			r.report(p.arg, "%s %s does not carry the hold, so that this %s waits for itself: %s",
				types.ExprString(p.arg), s.where, nameOf(p.call), s.cure(false))
		}
	}
}

// harm describes the problem with p in the section, if any.
func (s *section) harm(r *reporter, p passed) (string, bool) {
	if isWithin(s.over, p.arg) {
		return "", false
	}
	_, isSection := isSection(r.info, p.call)
	locks := takesLock(resultsOf(r.info, p.call)) || acquired(r.info, p.call) != nil
	switch {
	case s.waitsForItself(r.info, p.call):
		return fmt.Sprintf("does not carry the hold, so that this %s waits for itself", nameOf(p.call)), true
	case s.needsHold(r.info, p.call):
		return "does not carry the hold", true
	case isSection:
	case locks, r.isHarmless(p.call): // hand over hand
		return "", false
	}
	return "does not end when the lock is lost", true
}

// waitsForItself reports whether a call under a ctx without the hold takes the section's lock.
func (s *section) waitsForItself(info *source, call *ast.CallExpr) bool {
	_, isSection := isSection(info, call)
	isSection = isSection && isRlock(typeutil.Callee(info.Info, call))
	isLock := takesLock(resultsOf(info, call)) && nameOf(call) == "Lock"
	return (isSection || isLock) && s.lock != "" && s.lock == key(info, lockOfSection(info, call))
}

// reportUpgrade reports where n locks the write side of the lock of which the section has the read side.
func (s *section) reportUpgrade(r *reporter, n ast.Node) {
	for _, p := range passesOf(r.info, n, isKey(r.info, s.own)) {
		_, isSection := isSection(r.info, p.call)
		if !isSection && !takesLock(resultsOf(r.info, p.call)) {
			continue
		}
		if rw := sideOf(r.info, lockOfSection(r.info, p.call), "Write"); rw != "" && rw == s.reads {
			r.report(p.call, "a reader cannot become the writer, so this %s %s fails with ErrUpgrade: use Upgradeable, or end the read section first",
				nameOf(p.call), s.where)
		}
	}
}

// reportAcquire reports where n acquires the section's lock, which it does not re-enter under any ctx.
func (s *section) reportAcquire(r *reporter, n ast.Node) {
	for _, p := range passesOf(r.info, n, func(ast.Expr) bool { return true }) {
		if isAcquire(typeutil.Callee(r.info.Info, p.call)) && s.lock != "" && s.lock == key(r.info, lockOfSection(r.info, p.call)) {
			r.report(p.call, "%s never re-enters, so that %s it waits for itself: use Lock, or end the section first", nameOf(p.call), s.where)
		}
	}
}

// isAcquire reports whether it is rlock.Acquire or TryAcquire.
func isAcquire(callee types.Object) bool {
	fn, ok := callee.(*types.Func)
	return ok && isRlock(fn) && fn.Signature().Recv() == nil && (fn.Name() == "Acquire" || fn.Name() == "TryAcquire")
}

// needsHold reports whether a call concerns the hold in its ctx. That may be an outer section's hold, unless the section does not use its
// own ctx.
func (s *section) needsHold(info *source, call *ast.CallExpr) bool {
	if !isRlock(typeutil.Callee(info.Info, call)) {
		return false
	}
	switch nameOf(call) {
	case "Upgrade", "Downgrade":
		return true
	case "Asked", "Export", "TrustedUntil", "Owner":
		return s.ignored
	case "FencingToken":
		if len(call.Args) == 2 { // of the package
			return s.ignored || s.named != "" && s.named == key(info, call.Args[1])
		}
		return s.ignored || s.lock != "" && s.lock == key(info, lockOf(call))
	}
	return false
}

// isBackground reports whether e is a ctx that never ends.
func isBackground(info *source, e ast.Expr) bool {
	callee := calleeOf(info, e)
	return isFrom(callee, "context") && (callee.Name() == "Background" || callee.Name() == "TODO")
}

// isDetached reports whether e is rlock.Detach(…).
func isDetached(info *source, e ast.Expr) bool {
	callee := calleeOf(info, e)
	return isRlock(callee) && callee.Name() == "Detach"
}

// calleeOf returns the function called by e, or nil.
func calleeOf(info *source, e ast.Expr) types.Object {
	if call, ok := ast.Unparen(e).(*ast.CallExpr); ok {
		return typeutil.Callee(info.Info, call)
	}
	return nil
}
