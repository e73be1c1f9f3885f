package checks

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// LostUnlock reports unlocks that are missing, missing on some path, or called at another time than it seems.
var LostUnlock = &analysis.Analyzer{
	Name: "lostunlock",
	Doc: `report missing, late and early unlocks, for package rlock

Without its unlock, a lock is renewed until the process ends. The analyzer reports unlocks that are dropped, overwritten (also after a
closure has captured them), or missing before some return. It also reports an unlock that is not deferred although the section calls
functions: if one of them panics and a caller recovers, the lock stays held.

The same applies to the Hold of an Acquire, unless it is returned or stored, and to the Permit of a PermitSemaphore. A Semaphore's permits have no owner, so the analyzer checks them only if the function
itself releases them later in the same block.

Three unlocks run at the wrong time: "defer check(unlock())" unlocks at once, an unlock deferred in a loop keeps the locks of all
iterations, and one that is deferred after a transaction's Commit runs before it. None runs if the section calls os.Exit or log.Fatal.

A helper of the package that returns an unlock as a func() error takes a lock, too.

Test files are not checked, because tests often expect Lock to fail.`,
	URL:      url,
	Run:      runLostUnlock,
	Requires: []*analysis.Analyzer{inspect.Analyzer, takings},
}

func runLostUnlock(pass *analysis.Pass) (any, error) {
	r := newReporter(pass).skipTests()
	for _, f := range resultOf[*users](pass, takings).functions {
		for _, t := range f.takings {
			switch {
			case t.semaphore != nil:
				f.lostPermits(r, t)
			case !f.info.hasLease(t.call):
				f.lostUnlock(r, t)
				f.exits(r, t)
			}
			f.commitsLate(r, t)
			f.deferredInLoop(r, t)
		}
	}
	for call := range inspector.All[*ast.CallExpr](resultOf[*inspector.Inspector](pass, inspect.Analyzer)) {
		if i, ok := isSection(r.info, call); ok && !r.info.hasLease(call) {
			exitsInDo(r, call, call.Args[i])
		}
	}
	for d := range inspector.All[*ast.DeferStmt](resultOf[*inspector.Inspector](pass, inspect.Analyzer)) {
		unlockedAtOnce(r, d)
	}
	return nil, nil
}

// unlockedAtOnce reports an unlock called in the arguments of a defer, which Go evaluates at the defer statement.
func unlockedAtOnce(r *reporter, d *ast.DeferStmt) {
	ast.Inspect(d.Call, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.CallExpr:
			if n != d.Call && ends(r.info, n) != "" {
				unlock := types.ExprString(n.Fun)
				r.report(n, "%s is called at once, and only %s is deferred, so the section runs without the %s: "+
					"defer a function literal that calls both", unlock, nameOf(d.Call), ends(r.info, n))
			}
		}
		return true
	})
}

// hasLease reports whether the lock visibly expires by itself.
func (s *source) hasLease(call *ast.CallExpr) bool {
	lock := lockOfSection(s, call)
	if value := s.valueOf(lock); lock != nil && value != nil {
		lock = value
	}
	if lock == nil {
		return false
	}
	found := false
	ast.Inspect(lock, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			callee := typeutil.Callee(s.Info, c)
			found = found || isRlock(callee) && callee.Name() == "WithLease"
		}
		return !found
	})
	return found
}

func (f *function) lostUnlock(r *reporter, t *taking) {
	each, it := "unlock", "it"
	switch {
	case t.isPermit:
		each, it = "permit", "its Release"
	case t.isHold:
		each, it = "hold", "its Unlock"
	}
	if t.dropped {
		r.report(t.call, "the %s of this %s is dropped, so the %s stays held: assign it and defer %s, or use Do",
			each, nameOf(t.call), t.what(), it)
		return
	}
	if t.unlock == nil {
		return
	}
	var risk ast.Node
	found := false
	flow := flow{f, t, nil}
	flow.each(func(n ast.Node, s state) {
		switch ret, returns := n.(*ast.ReturnStmt); {
		case found:
		case returns && flow.step(s, n).can(fresh|held):
			found = true
			r.report(t.call, "%s is not called on every path, and the %s stays held after the return in line %d: "+
				"defer it when err is checked, or use Do", t.release(), t.what(), r.line(ret.Pos()).number)
		case s.can(fresh|held) && f.defines(n, t.unlock):
			found = true
			r.report(t.call, "%s is not called on every path, and the %s stays held in the next round of the loop: use Do, or a "+
				"function for each round that defers it", t.release(), t.what())
		case s.can(fresh|held) && f.overwrites(n, t.unlock):
			found = true
			r.report(t.call, "%s is overwritten in line %d before %s is called, so the %s stays held: call it first",
				t.unlock.Name(), r.line(n.Pos()).number, it, t.what())
		case s.can(keptVar) && f.overwrites(n, t.unlock) && f.takes(n):
			found = true
			r.report(t.call, "%s is overwritten in line %d, so the deferred function calls the later one, and this %s stays held: "+
				"give each %s a variable of its own", t.unlock.Name(), r.line(n.Pos()).number, t.what(), each)
		case s.can(held) && risk == nil && f.use(n, t.unlock) == unused:
			risk = f.risk(n)
		}
	})
	if !found && risk != nil && f.isOnlyCalled(t.unlock) {
		cure := "use Do, or defer it as well (a second call changes nothing)"
		if f.loopOf(t.stmt) != nil {
			cure = "use Do, or a function for each round that defers it"
		}
		r.report(t.call, "%s is not deferred, so a panic in line %d leaves the %s held: %s",
			t.release(), r.line(risk.Pos()).number, t.what(), cure)
	}
}

// deferredInLoop reports an unlock deferred in a loop with a section per round: each round uses its ctx, and nothing after the loop may
// need the locks. A loop that collects locks is not reported.
func (f *function) deferredInLoop(r *reporter, t *taking) {
	loop, own := f.loopOf(t.stmt), t.ctx
	if t.isHold {
		own = t.unlock
	}
	if loop == nil || t.unlock == nil || own == nil || own.Pos() < loop.Pos() {
		return
	}
	again, works, later := false, false, false
	flow{f, t, nil}.each(func(n ast.Node, s state) {
		switch {
		case n == t.stmt:
			again = s.can(kept | keptVar)
		case n.Pos() >= loop.End():
			later = later || s.can(kept|keptVar) && f.risk(n) != nil
		default:
			works = works || s.can(inside) && len(f.uses(n, t)) > 0
		}
	})
	if again && works && !later {
		r.report(t.call, "%s is deferred in a loop, so the %s stays held in all later rounds: use Do, or a function for each "+
			"round that defers it", t.release(), t.what())
	}
}

// exits reports an end of the process with the lock held.
func (f *function) exits(r *reporter, t *taking) {
	over := afterLoss(f.info, f.node, f.ofSection(t), t.stmt.End())
	flow{f, t, nil}.each(func(n ast.Node, s state) {
		if s.must(inside) {
			r.reportExits(n, over, nameOf(t.call), t.what())
		}
	})
}

// ofSection matches what ends with the section: its ctx, and its hold.
func (f *function) ofSection(t *taking) func(ast.Expr) bool {
	own := t.key(f.info)
	if !t.isHold || t.unlock == nil {
		return isKey(f.info, own)
	}
	return func(e ast.Expr) bool {
		value := f.info.valueOf(e)
		return root(f.info, e) == t.unlock || value != nil && key(f.info, value) == own
	}
}

// exitsInDo is exits for the function of a Do.
func exitsInDo(r *reporter, call *ast.CallExpr, fn ast.Expr) {
	literal, ok := ast.Unparen(fn).(*ast.FuncLit)
	if !ok {
		return
	}
	own := ""
	for _, name := range literal.Type.Params.List[0].Names {
		own = key(r.info, name)
	}
	r.reportExits(literal.Body, afterLoss(r.info, literal.Body, isKey(r.info, own), literal.Pos()), nameOf(call), "lock")
}

// reportExits reports calls in n that end the process, other than in code that runs only after a loss.
func (r *reporter) reportExits(n ast.Node, over []ast.Node, section, what string) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.GoStmt, *ast.DeferStmt:
			return false
		case *ast.CallExpr:
			callee := typeutil.Callee(r.info.Info, n)
			ends := isFrom(callee, "os") && callee.Name() == "Exit" || isFrom(callee, "log") && strings.HasPrefix(callee.Name(), "Fatal")
			if ends && !isWithin(over, n) {
				r.report(n, "%s calls no deferred function, so the %s of this %s stays held until its lease is over: return an error, and end the "+
					"process outside of the section", types.ExprString(n.Fun), what, section)
			}
		}
		return true
	})
}

// commitsLate reports a transaction of the section whose Commit was deferred before the unlock, and so runs after it.
func (f *function) commitsLate(r *reporter, t *taking) {
	if t.unlock == nil {
		return
	}
	var commits []*ast.CallExpr
	var used []ast.Node
	unlocks := 0 // the line of the deferred unlock
	flow{f, t, nil}.each(func(n ast.Node, s state) {
		d, isDefer := n.(*ast.DeferStmt)
		switch use := f.use(n, t.unlock); {
		case isDefer && n.Pos() < t.stmt.Pos():
			ast.Inspect(d, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && nameOf(call) == "Commit" && f.isTransaction(lockOf(call)) {
					commits = append(commits, call)
				}
				return true
			})
		case use == deferred, use == deferredVar:
			unlocks = r.line(n.Pos()).number
		case s.must(inside):
			used = append(used, n)
		}
	})
	for _, commit := range commits {
		tx := root(f.info, commit.Fun)
		if unlocks > 0 && tx != nil && slices.ContainsFunc(used, func(n ast.Node) bool { return f.use(n, tx) != unused }) {
			r.report(commit, "this runs after the unlock in line %d, which is deferred later, so others get the lock before they see the changes: "+
				"commit in the section", unlocks)
		}
	}
}

// isTransaction reports whether e has a Rollback.
func (f *function) isTransaction(e ast.Expr) bool {
	if e == nil || f.info.TypeOf(e) == nil {
		return false
	}
	method, _, _ := types.LookupFieldOrMethod(f.info.TypeOf(e), true, f.info.pkg, "Rollback")
	_, ok := method.(*types.Func)
	return ok
}

// loopOf returns the innermost loop around a statement in its function, or nil.
func (f *function) loopOf(stmt ast.Node) (loop ast.Node) {
	ast.PreorderStack(f.node, nil, func(n ast.Node, stack []ast.Node) bool {
		if n != stmt {
			return n.Pos() <= stmt.Pos() && stmt.End() <= n.End()
		}
		for _, outer := range slices.Backward(stack) {
			switch outer.(type) {
			case *ast.ForStmt, *ast.RangeStmt:
				loop = outer
				return false
			}
		}
		return false
	})
	return loop
}

// isOnlyCalled reports whether the function only calls the unlock.
func (f *function) isOnlyCalled(unlock *types.Var) bool {
	only := true
	for _, b := range f.graph.Blocks {
		for _, n := range b.Nodes {
			use := f.use(n, unlock)
			only = only && use != deferred && use != deferredVar && use != escaped
		}
	}
	return only
}

// calm are packages whose functions are not expected to panic.
var calm = map[string]bool{
	"bytes": true, "context": true, "errors": true, "fmt": true, "log": true, "log/slog": true, "maps": true, "math": true, "path": true,
	"strconv": true, "strings": true, "sync": true, "sync/atomic": true, "time": true, rlockPath: true,
}

// isLog reports whether it is a function of a logger.
func isLog(callee types.Object) bool {
	fn, ok := callee.(*types.Func)
	return ok && logs(fn)
}

// risk returns a call in n that may panic.
func (f *function) risk(n ast.Node) (found ast.Node) {
	switch n.(type) {
	case *ast.GoStmt, *ast.DeferStmt:
		return nil
	}
	ast.Inspect(n, func(m ast.Node) bool {
		switch m := m.(type) {
		case *ast.FuncLit:
			return false
		case *ast.CallExpr:
			callee := typeutil.Callee(f.info.Info, m)
			v, isVar := callee.(*types.Var)
			switch {
			case f.info.Types[m.Fun].IsType(), takesLock(resultsOf(f.info, m)), isVar && isUnlock(v.Type()):
			case callee == nil, callee.Pkg() == nil && callee.Name() != "panic": // len, or the Error of an error
			case callee.Pkg() != nil && calm[callee.Pkg().Path()], isLog(callee):
			case found == nil:
				found = m
			}
		}
		return found == nil
	})
	return found
}
