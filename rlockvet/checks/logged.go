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

// loggedBranch reports a branch for one kind of failure that only logs, in an if after which the code has the lock for granted.
func (f *function) loggedBranch(r *reporter, t *taking) (reported bool) {
	ast.Inspect(f.node, func(n ast.Node) bool {
		first, ok := n.(*ast.IfStmt)
		if !ok || first.Pos() < t.stmt.End() || reported {
			return !reported
		}
		var logs *ast.IfStmt
		kind := ""
		for link := first; ; {
			if call, ok := ast.Unparen(link.Cond).(*ast.CallExpr); ok && f.reads(call, t.err) && len(link.Body.List) > 0 &&
				!slices.ContainsFunc(link.Body.List, func(s ast.Stmt) bool { return !r.isLog(s) }) {
				if with := f.comparedWith(call); with != "" {
					logs, kind = link, with
				}
			}
			next, ok := link.Else.(*ast.IfStmt)
			if !ok {
				if link.Else != nil { // which may have the section
					logs = nil
				}
				break
			}
			link = next
		}
		if logs == nil || first.Else == nil || !f.isUsedAfter(t, first) {
			return true
		}
		var within []ast.Node
		for _, b := range f.graph.Blocks {
			for _, node := range b.Nodes {
				if first.Pos() <= node.Pos() && node.End() <= first.End() {
					within = append(within, node)
				}
			}
		}
		if len(within) > 0 && !f.isRead(t, t.stmt, within) {
			reported = true
			r.report(logs.Cond, "%s is only logged here, so the code goes on without the %s of the %s in line %d: return, or use Do",
				kind, t.what(), nameOf(t.call), r.line(t.call.Pos()).number)
		}
		return !reported
	})
	return reported
}

// isUsedAfter reports whether the unlock is used after that statement.
func (f *function) isUsedAfter(t *taking, after ast.Node) bool {
	used := false
	ast.Inspect(f.node, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		used = used || ok && t.unlock != nil && id.Pos() > after.End() && f.info.Uses[id] == t.unlock
		return !used
	})
	return used
}
