package checks

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// Misuse reports comparisons and durations that cannot be meant.
var Misuse = &analysis.Analyzer{
	Name: "misuse",
	Doc: `report comparisons, durations, tokens and Clients that cannot be meant, for package rlock

Errors of package rlock wrap sentinels such as ErrNotAcquired and are never equal to them: == is always false, use errors.Is. Nor does a
type assertion see a wrapped error: use errors.As.

A plain number as a duration counts nanoseconds: TryLock(ctx, 5) waits for 5 ns. So do time.Duration(seconds) and a constant without a unit.

A fencing token without its ok may be 0, and a store takes that for the lowest token there is. It is reported if it is passed on, and not
visibly taken in a section of its lock.

A Client made for a function's own use keeps its connections and goroutines after the function, unless that closes it.`,
	URL:      url,
	Run:      runMisuse,
	Requires: []*analysis.Analyzer{inspect.Analyzer, takings},
}

func runMisuse(pass *analysis.Pass) (any, error) {
	r := newReporter(pass)
	in := resultOf[*inspector.Inspector](pass, inspect.Analyzer)
	program := newReporter(pass).skipTests() // tests try wrong options, and leave more to the end of their process
	tokens(program, resultOf[*users](pass, takings).functions, in)
	for decl := range inspector.All[*ast.FuncDecl](in) {
		program.unclosed(decl)
	}
	types := []ast.Node{
		(*ast.BinaryExpr)(nil), (*ast.SwitchStmt)(nil), (*ast.CallExpr)(nil), (*ast.TypeAssertExpr)(nil), (*ast.TypeSwitchStmt)(nil),
		(*ast.CompositeLit)(nil), (*ast.AssignStmt)(nil),
	}
	in.Preorder(types, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.TypeAssertExpr:
			if n.Type != nil && isError(r.info.TypeOf(n.X)) {
				r.asserted(n.Type)
			}
		case *ast.TypeSwitchStmt:
			if !isError(r.info.switched(n)) {
				return
			}
			for _, s := range n.Body.List {
				if clause, ok := s.(*ast.CaseClause); ok {
					for _, e := range clause.List {
						r.asserted(e)
					}
				}
			}
		case *ast.CompositeLit:
			for _, e := range n.Elts {
				if field, ok := e.(*ast.KeyValueExpr); ok {
					program.fieldWithoutUnit(field.Key, field.Value)
				}
			}
		case *ast.AssignStmt:
			for i, e := range n.Lhs {
				if field, ok := e.(*ast.SelectorExpr); ok && len(n.Lhs) == len(n.Rhs) {
					program.fieldWithoutUnit(field.Sel, n.Rhs[i])
				}
			}
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
			program.askedOfAnother(n)
			program.withoutEffect(n)
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

// askedOfAnother reports an IsBusy of an error that no wait for a lock has returned: that of an unlock, or of a ctx.
func (r *reporter) askedOfAnother(call *ast.CallExpr) {
	if !isBusy(typeutil.Callee(r.info.Info, call)) || len(call.Args) != 1 {
		return
	}
	from := call.Args[0]
	if value := r.info.valueOf(from); value != nil {
		from = value
	}
	made, ok := ast.Unparen(from).(*ast.CallExpr)
	if !ok {
		return
	}
	method, _ := ast.Unparen(made.Fun).(*ast.SelectorExpr)
	ofCtx := isFrom(typeutil.Callee(r.info.Info, made), "context") // Cause
	ofCtx = ofCtx || method != nil && method.Sel.Name == "Err" && isContext(r.info.TypeOf(method.X))
	if ends(r.info, made) != "" || ofCtx {
		r.report(call, "IsBusy is false for what %s returns: it is about the errors of Lock, TryLock, Acquire and Await", types.ExprString(made))
	}
}

// withoutEffect reports an option of the wait, of a visible handle that is used only to try, which has a wait of its own.
func (r *reporter) withoutEffect(call *ast.CallExpr) {
	zero, ok := r.triesFor(call)
	if !ok {
		return
	}
	made := madeBy(r.info, lockOfSection(r.info, call))
	if made == nil {
		return
	}
	if id, ok := ast.Unparen(lockOfSection(r.info, call)).(*ast.Ident); ok && !r.isUsedOnce(id) {
		return
	}
	for _, arg := range made.Args {
		option, ok := ast.Unparen(arg).(*ast.CallExpr)
		if !ok || !isRlock(typeutil.Callee(r.info.Info, option)) {
			continue
		}
		switch name := nameOf(option); {
		case name == "WithMaxWait":
			r.report(option, "WithMaxWait bounds Lock and Do; this %s in line %d has a wait of its own: leave one out", nameOf(call), r.line(call.Pos()).number)
		case name == "WithWaitForRedis" && zero:
			r.report(option, "WithWaitForRedis has no effect, since this %s in line %d makes one attempt: give it a wait", nameOf(call), r.line(call.Pos()).number)
		}
	}
}

// triesFor reports whether a call of package rlock tries to get a lock, and whether it has a constant wait of 0.
func (r *reporter) triesFor(call *ast.CallExpr) (zero, ok bool) {
	callee := typeutil.Callee(r.info.Info, call)
	if !isRlock(callee) || !strings.HasPrefix(callee.Name(), "Try") {
		return false, false
	}
	for i, arg := range call.Args {
		if isNamed(paramType(r.info, call, i), "time", "Duration") {
			value := r.info.Types[arg].Value
			return value != nil && constant.Sign(constant.ToInt(value)) <= 0, true
		}
	}
	return false, false
}

// isUsedOnce reports whether a variable is read once in the package.
func (r *reporter) isUsedOnce(id *ast.Ident) bool {
	n := 0
	for _, o := range r.info.Uses {
		if o == r.info.Uses[id] {
			n++
		}
	}
	return n == 1
}

// withoutUnit reports a unitless number passed to package rlock as a duration.
func (r *reporter) withoutUnit(call *ast.CallExpr) {
	if !isRlock(typeutil.Callee(r.info.Info, call)) {
		return
	}
	for i, arg := range call.Args {
		if isNamed(paramType(r.info, call, i), "time", "Duration") {
			r.unitOf(arg)
		}
	}
}

// fieldWithoutUnit reports a unitless number as a field of a struct of package rlock.
func (r *reporter) fieldWithoutUnit(field, value ast.Expr) {
	id, ok := field.(*ast.Ident)
	if !ok {
		return
	}
	if v, ok := r.info.Uses[id].(*types.Var); ok && v.IsField() && isRlock(v) && isNamed(v.Type(), "time", "Duration") {
		r.unitOf(value)
	}
}

// unitOf reports a duration that has no unit: a number, a constant of no type, or the conversion of a number of other units.
func (r *reporter) unitOf(e ast.Expr) {
	value := ast.Unparen(e)
	if call, ok := value.(*ast.CallExpr); ok && len(call.Args) == 1 && r.info.Types[call.Fun].IsType() {
		value = ast.Unparen(call.Args[0])
	}
	var id *ast.Ident
	switch value := value.(type) {
	case *ast.BasicLit:
		if value.Value != "0" {
			r.report(e, "%s has no unit, so this is %s ns: write %s*time.Second, say", value.Value, value.Value, value.Value)
		}
		return
	case *ast.Ident:
		id = value
	case *ast.SelectorExpr:
		id = value.Sel
	default:
		return
	}
	switch o := r.info.Uses[id].(type) {
	case *types.Const:
		ns, exact := constant.Int64Val(constant.ToInt(o.Val()))
		basic, ok := o.Type().(*types.Basic)
		few := exact && ns > 0 && ns < int64(time.Millisecond) // more may be meant as ns
		if ok && few && (basic.Info()&types.IsUntyped != 0 || otherUnit.MatchString(id.Name)) {
			r.report(e, "%s has no unit, so this is %s ns: multiply it by time.Second, say", id.Name, o.Val())
		}
	case *types.Var:
		if value != e && otherUnit.MatchString(id.Name) && !isNamed(o.Type(), "time", "Duration") {
			r.report(e, "%s becomes a number of ns here: multiply it by its unit", id.Name)
		}
	}
}

// otherUnit matches names of numbers that are no nanoseconds.
var otherUnit = regexp.MustCompile(`(?i)(seconds?|secs?|minutes?|mins?|hours?|millis)$|(Ms|MS|_ms)$|^ms$`)

// switched returns the type of what a type switch looks into.
func (s *source) switched(n *ast.TypeSwitchStmt) (t types.Type) {
	ast.Inspect(n.Assign, func(n ast.Node) bool {
		if assertion, ok := n.(*ast.TypeAssertExpr); ok && t == nil {
			t = s.TypeOf(assertion.X)
		}
		return t == nil
	})
	return t
}

// asserted reports a type assertion to an error type of package rlock.
func (r *reporter) asserted(typ ast.Expr) {
	pointer, ok := types.Unalias(r.info.TypeOf(typ)).(*types.Pointer)
	if !ok {
		return
	}
	named, ok := types.Unalias(pointer.Elem()).(*types.Named)
	if ok && isRlock(named.Obj()) && strings.HasSuffix(named.Obj().Name(), "Error") {
		r.report(typ, "an error of rlock may be wrapped, and this does not see a wrapped %s: use errors.As", types.ExprString(typ))
	}
}

// unclosed reports a Client that a function opens only to use its locks, and does not close. In package main, only those of HTTP handlers:
// the others may be for the whole process.
func (r *reporter) unclosed(decl *ast.FuncDecl) {
	if decl.Body == nil || r.pass.Pkg.Name() == "main" && !r.isHandler(decl) {
		return
	}
	ast.Inspect(decl.Body, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if !ok || len(a.Rhs) != 1 || len(a.Lhs) != 2 {
			return true
		}
		call, ok := ast.Unparen(a.Rhs[0]).(*ast.CallExpr)
		id, isName := a.Lhs[0].(*ast.Ident)
		if !ok || !isName || !isRlock(typeutil.Callee(r.info.Info, call)) {
			return true
		}
		client, ok := r.info.Defs[id].(*types.Var)
		if pointer, isPointer := r.info.TypeOf(id).(*types.Pointer); !ok || !isPointer || !isNamed(pointer.Elem(), rlockPath, "Client") {
			return true
		}
		if r.onlyLocks(decl.Body, client) {
			r.report(call, "%s is not closed, so its connections and goroutines outlive this function: make one Client for the process, or close it",
				id.Name)
		}
		return true
	})
}

// isHandler reports whether a function has a *http.Request.
func (r *reporter) isHandler(decl *ast.FuncDecl) bool {
	return slices.ContainsFunc(decl.Type.Params.List, func(f *ast.Field) bool {
		pointer, ok := types.Unalias(r.info.TypeOf(f.Type)).(*types.Pointer)
		return ok && isNamed(pointer.Elem(), "net/http", "Request")
	})
}

// onlyLocks reports whether all uses of the Client are calls of its locks, as in client.Mutex("a").Do(…).
func (r *reporter) onlyLocks(body ast.Node, client *types.Var) bool {
	only, used := true, false
	ast.PreorderStack(body, nil, func(n ast.Node, stack []ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && r.info.Uses[id] == client {
			used = true
			method, isMethod := stackEnd[*ast.SelectorExpr](stack, 1)
			made, isCall := stackEnd[*ast.CallExpr](stack, 2)
			of, isUsed := stackEnd[*ast.SelectorExpr](stack, 3)
			only = only && isMethod && isCall && isUsed && made.Fun == method && of.X == made
		}
		return true
	})
	return only && used
}
