package checks

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// logsOf lists the nodes that read an error only to log it: calls of loggers, and conditions of ifs with nothing but such calls.
func (r *reporter) logsOf(f *function) (all []ast.Node) {
	ast.Inspect(f.node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			if n.Else == nil && len(n.Body.List) > 0 && !slices.ContainsFunc(n.Body.List, func(s ast.Stmt) bool { return !r.isLog(s) }) {
				all = append(all, n.Cond)
			}
		case *ast.ExprStmt:
			if r.isLog(n) {
				all = append(all, n)
			}
		}
		return true
	})
	return all
}

// isLog reports whether a statement writes a log line and continues.
func (r *reporter) isLog(s ast.Stmt) bool {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := ast.Unparen(e.X).(*ast.CallExpr)
	return ok && r.isLogger(call)
}

// enders appear in the names of functions that log a line and end the program.
var enders = []string{"Fatal", "Panic", "Exit", "Critical", "Must"}

func (r *reporter) isLogger(call *ast.CallExpr) bool {
	text := types.ExprString(call.Fun)
	if slices.ContainsFunc(enders, func(word string) bool { return strings.Contains(text, word) }) {
		return false
	}
	fn, ok := typeutil.Callee(r.info.Info, call).(*types.Func)
	if !ok || fn.Pkg() == nil {
		return false
	}
	switch path := fn.Pkg().Path(); {
	case path == "log", slices.Contains(observers, path), logs(fn):
		return true
	case path == "fmt":
		return strings.HasPrefix(fn.Name(), "Print") || strings.HasPrefix(fn.Name(), "Fprint")
	}
	decl := r.info.bodies[fn.Origin()]
	return decl != nil && fn.Signature().Results().Len() == 0 && r.onlyLogs(fn.Origin(), decl)
}

// onlyLogs reports whether a function of the package only logs, at most under a condition.
func (r *reporter) onlyLogs(fn *types.Func, decl *ast.FuncDecl) bool {
	if logs, ok := r.loggers[fn]; ok {
		return logs
	}
	r.loggers[fn] = false // during analysis
	var only func([]ast.Stmt) bool
	only = func(list []ast.Stmt) bool {
		return !slices.ContainsFunc(list, func(s ast.Stmt) bool {
			if branch, ok := s.(*ast.IfStmt); ok && branch.Else == nil {
				return !only(branch.Body.List)
			}
			return !r.isLog(s)
		})
	}
	r.loggers[fn] = len(decl.Body.List) > 0 && only(decl.Body.List)
	return r.loggers[fn]
}
