package checks

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/types/typeutil"
)

// passed is a ctx that a call gets.
type passed struct {
	call *ast.CallExpr
	arg  ast.Expr
	how  how
}

// how a call gets a ctx.
type how int

const (
	asArgument how = iota
	asReceiver     // ctx.Done() and ctx.Err()
	inRequest      // a *http.Request has it
	inFunction     // arg, a variable, has a function literal that passes it on
)

// passes lists what is passed on where n runs: not in goroutines and deferred calls. Of function literals, it looks into those that are called at
// once, or given to a call and have a result; one without seems to be kept for later.
type passes struct {
	*source
	ctx    func(ast.Expr) bool   // what is looked for, as an argument
	keys   func(key string) bool // the same, for a *http.Request; nil for arguments alone
	heeded bool                  // whether ctx.Done() and ctx.Err() count
	waited []string              // the keys of groups of goroutines that are waited for, and so run there
}

// isKey matches expressions with that key, and none if it is "".
func isKey(info *source, k string) func(ast.Expr) bool {
	return func(e ast.Expr) bool { return k != "" && key(info, e) == k }
}

func passesOf(info *source, n ast.Node, ctx func(ast.Expr) bool) []passed {
	return passes{source: info, ctx: ctx}.in(n)
}

func (p passes) in(n ast.Node) (all []passed) {
	runs := make(map[*ast.FuncLit]bool)
	ast.Inspect(n, func(m ast.Node) bool {
		switch m := m.(type) {
		case *ast.DeferStmt:
			return false
		case *ast.GoStmt:
			fn, ok := ast.Unparen(m.Call.Fun).(*ast.FuncLit)
			if !ok || !p.isDone(fn) {
				return false
			}
			runs[fn] = true
		case *ast.FuncLit:
			return runs[m]
		case *ast.CallExpr:
			all = append(all, p.by(m)...)
			if fn, ok := ast.Unparen(m.Fun).(*ast.FuncLit); ok {
				runs[fn] = true
			}
			for _, arg := range m.Args {
				if fn, ok := ast.Unparen(arg).(*ast.FuncLit); ok && p.runsNow(m, fn) {
					runs[fn] = true
				}
			}
		}
		return true
	})
	return all
}

// by lists what one call gets.
func (p passes) by(call *ast.CallExpr) (all []passed) {
	for i, arg := range call.Args {
		switch arg := ast.Unparen(arg); {
		case isContext(paramType(p.source, call, i)) && p.ctx(arg):
			all = append(all, passed{call, arg, asArgument})
		case p.keys != nil && p.heedsRequest(call) && p.isRequest(arg):
			all = append(all, passed{call, arg, inRequest})
		}
	}
	if s, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok && p.heeded && (s.Sel.Name == "Done" || s.Sel.Name == "Err") && p.ctx(s.X) {
		all = append(all, passed{call, s.X, asReceiver})
	}
	if fn, ok := p.valueOf(call.Fun).(*ast.FuncLit); ok && p.keys != nil {
		inner := p
		inner.keys, inner.heeded = nil, false
		inner.ctx = func(e ast.Expr) bool {
			v := root(p.source, e)
			return v != nil && !isWithin([]ast.Node{fn}, v) && p.ctx(e)
		}
		for _, in := range inner.in(fn.Body) {
			all = append(all, passed{in.call, ast.Unparen(call.Fun), inFunction})
		}
	}
	return all
}

// heedsRequest reports whether a call works under the ctx of a *http.Request that it gets.
func (p passes) heedsRequest(call *ast.CallExpr) bool {
	switch name := nameOf(call); name {
	case "ServeHTTP", "RoundTrip":
		return true
	case "Do":
		return isFrom(typeutil.Callee(p.Info, call), "net/http")
	}
	return false
}

// isRequest reports whether e is a *http.Request that has the ctx.
func (p passes) isRequest(e ast.Expr) bool {
	pointer, ok := types.Unalias(p.TypeOf(e)).(*types.Pointer)
	if !ok || !isNamed(pointer.Elem(), "net/http", "Request") {
		return false
	}
	value := p.valueOf(e)
	if made, ok := value.(*ast.CallExpr); ok {
		return isFrom(typeutil.Callee(p.Info, made), "net/http") && nameOf(made) == "NewRequestWithContext" && p.ctx(made.Args[0])
	}
	return p.keys(key(p.source, e) + ".Context()")
}

// runsNow reports whether the call runs the function before it returns, as far as can be seen, or in a goroutine that is waited for.
func (p passes) runsNow(call *ast.CallExpr, fn *ast.FuncLit) bool {
	if name := nameOf(call); name == "Go" || name == "TryGo" {
		return slices.Contains(p.waited, key(p.source, lockOf(call)))
	}
	return fn.Type.Results != nil
}

// isDone reports whether the function tells a group that is waited for of its end.
func (p passes) isDone(fn *ast.FuncLit) bool {
	found := false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		found = found || ok && nameOf(call) == "Done" && slices.Contains(p.waited, key(p.source, lockOf(call)))
		return !found
	})
	return found
}

// waits lists the keys of what n waits for: of the Wait of a sync.WaitGroup or errgroup.Group.
func waits(info *source, n ast.Node) (keys []string) {
	ast.Inspect(n, func(m ast.Node) bool {
		switch m := m.(type) {
		case *ast.FuncLit:
			return false
		case *ast.CallExpr:
			if k := key(info, lockOf(m)); k != "" && nameOf(m) == "Wait" && len(m.Args) == 0 {
				keys = append(keys, k)
			}
		}
		return true
	})
	return keys
}
