package checks

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/types/typeutil"
)

// passed is a ctx passed to a call.
type passed struct {
	call *ast.CallExpr
	arg  ast.Expr
	how  how
}

// how is the way a call gets a ctx.
type how int

const (
	asArgument how = iota
	asReceiver     // ctx.Done() and ctx.Err()
	inRequest      // in a *http.Request
	inFunction     // arg, a variable, holds a function literal that passes it on
)

// passes lists the ctxs passed on where n runs, without goroutines and deferred calls. It looks into function literals called at once, or
// passed to a call and with a result; literals without a result seem to be kept for later.
type passes struct {
	*source
	ctx    func(ast.Expr) bool   // matches ctx arguments
	keys   func(key string) bool // matches *http.Request arguments; nil: none
	heeded bool                  // whether ctx.Done() and ctx.Err() count
	waited []string              // keys of awaited goroutine groups, whose goroutines run here, too
}

// isKey matches expressions with that key, or none if it is "".
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

// by lists the ctxs passed to one call.
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

// heedsRequest reports whether a call works under the ctx of its *http.Request.
func (p passes) heedsRequest(call *ast.CallExpr) bool {
	switch name := nameOf(call); name {
	case "ServeHTTP", "RoundTrip":
		return true
	case "Do":
		return isFrom(typeutil.Callee(p.Info, call), "net/http")
	}
	return false
}

// isRequest reports whether e is a *http.Request with the ctx.
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

// runsNow reports whether the call visibly runs the function before it returns, or in an awaited goroutine.
func (p passes) runsNow(call *ast.CallExpr, fn *ast.FuncLit) bool {
	if name := nameOf(call); name == "Go" || name == "TryGo" {
		return slices.Contains(p.waited, key(p.source, lockOf(call)))
	}
	return fn.Type.Results != nil
}

// isDone reports whether the function signals its end to an awaited group.
func (p passes) isDone(fn *ast.FuncLit) bool {
	found := false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		found = found || ok && nameOf(call) == "Done" && slices.Contains(p.waited, key(p.source, lockOf(call)))
		return !found
	})
	return found
}

// waits lists the keys of the groups whose Wait is called in n: of sync.WaitGroup or errgroup.Group.
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
