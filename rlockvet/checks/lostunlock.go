package checks

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// LostUnlock reports unlocks that are not called, or not whenever the function ends.
var LostUnlock = &analysis.Analyzer{
	Name: "lostunlock",
	Doc: `report unlocks of package rlock that are not called

A lock whose unlock is not called is renewed until the process ends. Reported are an unlock that is dropped, one that some return
leaves out, one that is overwritten, and one that is called but not deferred although the section calls functions: a panic in one
of them, recovered further up, leaves the lock held.

Files for tests are left alone: a Lock that has to fail is common there.`,
	URL:      url,
	Run:      runLostUnlock,
	Requires: []*analysis.Analyzer{takings},
}

func runLostUnlock(pass *analysis.Pass) (any, error) {
	r := newReporter(pass).skipTests()
	for _, f := range resultOf[[]*function](pass, takings) {
		for _, t := range f.takings {
			if !f.hasLease(t.call) {
				f.lostUnlock(r, t)
			}
		}
	}
	return nil, nil
}

// hasLease reports whether the lock is seen to end by itself.
func (f *function) hasLease(call *ast.CallExpr) bool {
	found := false
	ast.Inspect(call.Fun, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			callee := typeutil.Callee(f.info, c)
			found = found || isRlock(callee) && callee.Name() == "WithLease"
		}
		return !found
	})
	return found
}

func (f *function) lostUnlock(r *reporter, t *taking) {
	if t.dropped {
		r.report(t.call, "the unlock of this %s is dropped, so the lock stays held: assign it and defer it, or use Do", nameOf(t.call))
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
			r.report(t.call, "%s is not called on every path, and the lock stays held after the return in line %d: "+
				"defer it when err is checked, or use Do", t.unlock.Name(), r.line(ret.Pos()).number)
		case s.can(fresh|held) && f.use(n, t.unlock) == assigned:
			found = true
			r.report(t.call, "%s is overwritten in line %d before it is called, so the lock stays held: call it first",
				t.unlock.Name(), r.line(n.Pos()).number)
		case s.can(held) && risk == nil && f.use(n, t.unlock) == unused:
			risk = f.risk(n)
		}
	})
	if !found && risk != nil && f.isOnlyCalled(t.unlock) {
		r.report(t.call, "%s is not deferred, so a panic in line %d leaves the lock held: use Do, or defer it as well (a second call "+
			"changes nothing)", t.unlock.Name(), r.line(risk.Pos()).number)
	}
}

// isOnlyCalled reports whether the function calls the unlock, and does nothing else with it.
func (f *function) isOnlyCalled(unlock *types.Var) bool {
	only := true
	for _, b := range f.graph.Blocks {
		for _, n := range b.Nodes {
			use := f.use(n, unlock)
			only = only && use != deferred && use != escaped
		}
	}
	return only
}

// calm are packages whose functions are not expected to panic.
var calm = map[string]bool{
	"context": true, "errors": true, "fmt": true, "log": true, "log/slog": true, "strconv": true, "strings": true,
	"sync/atomic": true, "time": true, rlockPath: true,
}

// risk is a call in n that may panic.
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
			callee := typeutil.Callee(f.info, m)
			v, isVar := callee.(*types.Var)
			switch {
			case f.info.Types[m.Fun].IsType(), takesLock(resultsOf(f.info, m)), isVar && isUnlock(v.Type()):
			case callee == nil, callee.Pkg() == nil && callee.Name() != "panic": // len, or the Error of an error
			case callee.Pkg() != nil && calm[callee.Pkg().Path()]:
			case found == nil:
				found = m
			}
		}
		return found == nil
	})
	return found
}
