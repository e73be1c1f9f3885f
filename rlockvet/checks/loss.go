package checks

import (
	"go/ast"
	"go/token"
	"slices"

	"golang.org/x/tools/go/types/typeutil"
)

// afterLoss lists the code in n, from a position on, that runs only after a ctx or a hold has ended, or if an error is ErrLost.
func afterLoss(info *source, n ast.Node, ends func(ast.Expr) bool, from token.Pos) (all []ast.Node) {
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

// showsLoss reports whether a condition is true only after the section has ended.
func showsLoss(info *source, cond ast.Expr, ctx func(ast.Expr) bool) bool {
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
			callee := typeutil.Callee(info.Info, call)
			return isFrom(callee, "context") && callee.Name() == "Cause" && ctx(call.Args[0])
		default: // of numbers, or the like
		}
	case *ast.CallExpr:
		if callee := typeutil.Callee(info.Info, e); isFrom(callee, "errors") && callee.Name() == "Is" && len(e.Args) == 2 {
			if s, ok := ast.Unparen(e.Args[1]).(*ast.SelectorExpr); ok {
				return isRlock(info.ObjectOf(s.Sel)) && s.Sel.Name == "ErrLost"
			}
		}
	}
	return false
}

// afterError lists the code in n that runs only if an error is not nil.
func afterError(info *source, n ast.Node) (all []ast.Node) {
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

// isWithin reports whether one of the nodes contains that position.
func isWithin(all []ast.Node, at interface{ Pos() token.Pos }) bool {
	return slices.ContainsFunc(all, func(outer ast.Node) bool { return outer.Pos() <= at.Pos() && at.Pos() < outer.End() })
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
