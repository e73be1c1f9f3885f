package checks

import (
	"fmt"
	"go/ast"

	"golang.org/x/tools/go/analysis"
)

// EndedCtx reports the use of a section's ctx after its unlock.
var EndedCtx = &analysis.Analyzer{
	Name: "endedctx",
	Doc: `report uses of a section's ctx after its unlock, for package rlock

The unlock cancels the ctx that Lock returned. Calls that still use it fail, and so does the next Lock under it. This is easily missed if a
Lock in a loop assigns to a ctx declared outside, or if "ctx, unlock, err := m.Lock(ctx)" assigns to a function's parameter.

Cancelling the ctx passed to Lock ends the section too. Often that ctx has a timeout meant only for the wait. And a function that defers the
unlock returns a cancelled ctx.`,
	URL:      url,
	Run:      runEndedCtx,
	Requires: []*analysis.Analyzer{takings},
}

func runEndedCtx(pass *analysis.Pass) (any, error) {
	r := newReporter(pass)
	for _, f := range resultOf[*users](pass, takings).functions {
		for _, t := range f.takings {
			if t.ctx != nil && t.unlock != nil {
				f.endedCtx(r, t)
			}
		}
	}
	return nil, nil
}

func (f *function) endedCtx(r *reporter, t *taking) {
	name := t.ctx.Name()
	by := fmt.Sprintf("the unlock of the %s in line %d", nameOf(t.call), r.line(t.call.Pos()).number)
	flow{f, t, t.ctx}.each(func(n ast.Node, s state) {
		if ret, ok := n.(*ast.ReturnStmt); ok && s.must(kept) && f.use(n, t.unlock) == unused {
			f.returnsEnded(r, t, ret, by)
		}
		if !s.can(ended) {
			return
		}
		for _, p := range f.uses(n, t) {
			_, section := isSection(f.info, p.call)
			switch {
			case section, takesLock(resultsOf(f.info, p.call)): // an error on this path, whatever the other paths do
				r.report(p.arg, "%s was cancelled by %s: give this %s a ctx from before that, and the section a ctx of its own name",
					name, by, nameOf(p.call))
			case s.must(ended) && !r.isHarmless(p.call):
				r.report(p.arg, "%s was cancelled by %s: pass a ctx from before that, and give the section a ctx of its own name", name, by)
			}
		}
	})
	if t.cancel == nil {
		return
	}
	cancelled := &taking{stmt: t.stmt, err: t.err, unlock: t.cancel}
	flow{f, cancelled, t.ctx}.each(func(n ast.Node, s state) {
		for _, p := range f.uses(n, t) {
			if s.must(ended) && !r.isHarmless(p.call) {
				r.report(p.arg, "%s was cancelled by %s, whose ctx the %s in line %d was given: defer %s, or bound the wait with TryLock",
					name, t.cancel.Name(), nameOf(t.call), r.line(t.call.Pos()).number, t.cancel.Name())
			}
		}
	})
}

// uses lists the calls in n that get the section's ctx.
func (f *function) uses(n ast.Node, t *taking) []passed {
	return passesOf(f.info, n, isKey(f.info, key(f.info, t.section)))
}

// returnsEnded reports a returned section's ctx whose unlock is deferred.
func (f *function) returnsEnded(r *reporter, t *taking, ret *ast.ReturnStmt, by string) {
	for _, e := range ret.Results {
		if k := key(f.info, e); k != "" && k == key(f.info, t.section) {
			r.report(e, "%s is cancelled by %s, which is deferred, so the caller gets a ctx that has ended: return the unlock as well, and do not defer it",
				t.ctx.Name(), by)
		}
	}
}
