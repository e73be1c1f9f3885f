package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// Misuse reports comparisons and durations that cannot be meant.
var Misuse = &analysis.Analyzer{
	Name: "misuse",
	Doc: `report comparisons and durations that cannot be meant, for package rlock

Errors of package rlock wrap sentinels such as ErrNotAcquired and are never equal to them: == is always false, use errors.Is. A plain
number as a duration counts nanoseconds: TryLock(ctx, 5) waits for 5 ns.`,
	URL:      url,
	Run:      runMisuse,
	Requires: []*analysis.Analyzer{inspect.Analyzer, takings},
}

func runMisuse(pass *analysis.Pass) (any, error) {
	r := newReporter(pass)
	in := resultOf[*inspector.Inspector](pass, inspect.Analyzer)
	in.Preorder([]ast.Node{(*ast.BinaryExpr)(nil), (*ast.SwitchStmt)(nil), (*ast.CallExpr)(nil)}, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				r.compared(n.X)
				r.compared(n.Y)
			}
		case *ast.SwitchStmt:
			for _, s := range n.Body.List {
				if clause, ok := s.(*ast.CaseClause); ok && n.Tag != nil {
					for _, e := range clause.List {
						r.compared(e)
					}
				}
			}
		case *ast.CallExpr:
			r.withoutUnit(n)
		}
	})
	return nil, nil
}

// compared reports e if it is a sentinel.
func (r *reporter) compared(e ast.Expr) {
	s, ok := ast.Unparen(e).(*ast.SelectorExpr)
	if !ok {
		return
	}
	if v, ok := r.info.Uses[s.Sel].(*types.Var); ok && isRlock(v) && !v.IsField() && strings.HasPrefix(v.Name(), "Err") {
		r.report(e, "no error is equal to %s, since errors of rlock wrap it: use errors.Is", types.ExprString(e))
	}
}

// withoutUnit reports a unitless number passed to package rlock as a duration.
func (r *reporter) withoutUnit(call *ast.CallExpr) {
	if !isRlock(typeutil.Callee(r.info.Info, call)) {
		return
	}
	for i, arg := range call.Args {
		n, ok := ast.Unparen(arg).(*ast.BasicLit)
		if ok && n.Value != "0" && isNamed(paramType(r.info, call, i), "time", "Duration") {
			r.report(arg, "%s has no unit, so this is %s ns: write %s*time.Second, say", n.Value, n.Value, n.Value)
		}
	}
}
