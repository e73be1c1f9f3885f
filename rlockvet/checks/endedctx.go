package checks

import (
	"go/ast"

	"golang.org/x/tools/go/analysis"
)

// EndedCtx reports the use of a section's ctx after its unlock.
var EndedCtx = &analysis.Analyzer{
	Name: "endedctx",
	Doc: `report the ctx of a section of package rlock that is used after its unlock

The unlock cancels the ctx that Lock returned. What gets it afterwards fails, also the next Lock. That is easily missed in a loop whose
Lock assigns to a ctx from outside of it, and where "ctx, unlock, err := m.Lock(ctx)" assigns to the parameter of the function.`,
	URL:      url,
	Run:      runEndedCtx,
	Requires: []*analysis.Analyzer{takings},
}

func runEndedCtx(pass *analysis.Pass) (any, error) {
	r := newReporter(pass)
	for _, f := range resultOf[[]*function](pass, takings) {
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
	flow{f, t, t.ctx}.each(func(n ast.Node, s state) {
		if !s.can(ended) {
			return
		}
		for _, p := range passes(f.info, n, isKey(f.info, key(f.info, t.section))) {
			_, section := isSection(f.info, p.call)
			switch {
			case section, takesLock(resultsOf(f.info, p.call)): // an error on this path, whichever others there are
				r.report(p.arg, "%s was cancelled by the unlock of the %s in line %d: give this %s a ctx from before that, and the section "+
					"a ctx of its own name", name, nameOf(t.call), r.line(t.call.Pos()).number, nameOf(p.call))
			case s.must(ended) && !r.isHarmless(p.call):
				r.report(p.arg, "%s was cancelled by the unlock of the %s in line %d: pass a ctx from before that, and give the section "+
					"a ctx of its own name", name, nameOf(t.call), r.line(t.call.Pos()).number)
			}
		}
	})
}
