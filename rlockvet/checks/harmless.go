package checks

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// isHarmless reports whether a function only reads a ctx's values, or derives a ctx with another end.
func (r *reporter) isHarmless(call *ast.CallExpr) bool {
	callee := typeutil.Callee(r.info.Info, call)
	if callee == nil || callee.Pkg() == nil {
		return false
	}
	switch path := callee.Pkg().Path(); path {
	case "context":
		return callee.Name() == "Cause" || callee.Name() == "WithoutCancel"
	case rlockPath: // queries
		_, isSection := isSection(r.info, call)
		return !isSection && !takesLock(resultsOf(r.info, call)) && !waitsLong[callee.Name()]
	default:
		if slices.Contains(observers, path) {
			return true
		}
	}
	fn, ok := callee.(*types.Func)
	if !ok {
		return false
	}
	if decl := r.info.bodies[fn.Origin()]; decl != nil {
		return r.onlyReads(fn.Origin(), decl)
	}
	return logs(fn) || fn.Pkg() != r.info.pkg && onlyGets(fn)
}

// waitsLong are methods of package rlock that wait for others, and return only an error.
var waitsLong = map[string]bool{"Acquire": true, "TryAcquire": true, "Await": true, "TryAwait": true}

// observers are packages that read a ctx for logs, spans and metrics, and do not wait.
var observers = []string{
	"log/slog", "github.com/rs/zerolog", "github.com/rs/zerolog/log", "github.com/sirupsen/logrus", "go.uber.org/zap",
	"go.opentelemetry.io/otel/log", "go.opentelemetry.io/otel/metric",
}

// logs reports whether a function looks like a logger's, by its name and signature.
func logs(fn *types.Func) bool {
	s := fn.Signature()
	if s.Results().Len() > 0 || fn.Pkg() == nil {
		return false
	}
	if s.Recv() == nil {
		return slices.Contains([]string{"log", "logger", "logging", "klog", "glog", "zlog"}, fn.Pkg().Name())
	}
	switch name := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(fn.Name(), "f"), "Context"), "Ctx"); name {
	case "Debug", "Error", "Info", "Log", "Print", "Trace", "Warn", "Warning":
		return true
	}
	return false
}

// onlyGets reports whether a function of another package seems to get a value out of a ctx: the ctx is its only argument, and it cannot
// fail. Its body is not analyzed.
func onlyGets(fn *types.Func) bool {
	s := fn.Signature()
	if s.Recv() != nil || s.Params().Len() != 1 || s.Variadic() || s.Results().Len() == 0 {
		return false
	}
	for v := range s.Results().Variables() {
		if _, isChan := v.Type().Underlying().(*types.Chan); isChan || isError(v.Type()) || isContext(v.Type()) {
			return false
		}
	}
	return true
}

// onlyReads reports whether a function of the package at most calls Value on its ctx, or passes it to functions that do no more. Calls of
// Err or Done depend on the ctx's end, so they need the right ctx.
func (r *reporter) onlyReads(fn *types.Func, decl *ast.FuncDecl) bool {
	if reads, ok := r.readers[fn]; ok {
		return reads
	}
	r.readers[fn] = false // during analysis: recursive functions are not understood
	info := r.info
	uses, reads := 0, 0
	ast.PreorderStack(decl.Body, nil, func(n ast.Node, stack []ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		v, ok := info.Uses[id].(*types.Var)
		if !ok || !isContext(v.Type()) {
			return true
		}
		uses++ // of any ctx: a receiver's, for example, may be derived from it
		switch parent := stack[len(stack)-1].(type) {
		case *ast.SelectorExpr:
			if parent.X == id && parent.Sel.Name == "Value" {
				reads++
			}
		case *ast.CallExpr:
			if slices.Contains(parent.Args, ast.Expr(id)) && r.isHarmless(parent) {
				reads++
			}
		}
		return true
	})
	r.readers[fn] = uses == reads
	return r.readers[fn]
}
