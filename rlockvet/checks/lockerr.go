package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/cfg"
	"golang.org/x/tools/go/types/typeutil"
)

// LockErr reports sections that run although Lock may have failed.
var LockErr = &analysis.Analyzer{
	Name: "lockerr",
	Doc: `report ignored errors of Lock, for package rlock

A failed Lock returns a usable ctx and a callable unlock. Code that ignores the error works as long as the lock is free, and otherwise runs
without it. The analyzer reports errors that are dropped, never read, or only compared with a sentinel before the section begins.

The same applies to a semaphore's Acquire. After a failed Acquire, Release must not be called: it would add permits.

A Do runs no section without its lock. Reported are its error that is compared with nothing but a sentinel, and a DoValue whose error is
dropped: the value is then zero as if the function had returned that.

It also reports dropped errors of a latch's Await, and a deferred unlock whose error goes to a variable that nobody reads: to return it, the
function needs a named result.

Test files are not checked.`,
	URL:      url,
	Run:      runLockErr,
	Requires: []*analysis.Analyzer{takings},
}

func runLockErr(pass *analysis.Pass) (any, error) {
	r := newReporter(pass).skipTests()
	for _, f := range resultOf[*users](pass, takings).functions {
		for _, t := range f.takings {
			f.lockErr(r, t)
		}
		for _, d := range f.dos {
			f.doErr(r, d)
		}
		f.unlockErr(r)
	}
	return nil, nil
}

func (f *function) lockErr(r *reporter, t *taking) {
	name, harm, cure := nameOf(t.call), "so the code goes on without the "+t.what()+" if it fails", "check it, or use Do"
	switch {
	case t.awaits:
		harm, cure = "so the code does not wait for the latch if it fails", "check it"
	case t.isHold:
		harm = "so there is no hold, which is nil, if it fails"
	}
	switch {
	case t.errDropped && t.dropped && (t.section == nil || isBlank(t.section)): // reported by lostunlock
	case t.errDropped:
		r.report(t.call, "the error of this %s is dropped, %s: %s", name, harm, cure)
	case t.err == nil || f.isKept(t):
	case !f.isRead(t, t.stmt, nil):
		r.report(t.call, "%s is not looked at after this %s, %s: %s", t.err.Name(), name, harm, cure)
	case !f.isRead(t, t.stmt, r.logsOf(f)):
		r.report(t.call, "%s is only logged after this %s, %s: %s", t.err.Name(), name, harm, strings.Replace(cure, "check it", "return then", 1))
	case f.loggedBranch(r, t):
	case t.semaphore != nil:
		f.givenAnyway(r, t)
	case t.isHold:
		f.nilHold(r, t)
	case t.section != nil:
		flow{f, &taking{stmt: t.stmt, err: t.err, errOnly: true}, nil}.each(func(n ast.Node, s state) {
			used := s.must(fresh) && n != t.stmt && f.use(n, t.err) == unused && slices.ContainsFunc(
				passesOf(f.info, n, isKey(f.info, key(f.info, t.section))),
				func(p passed) bool { return !r.isHarmless(p.call) })
			if used && !f.isRead(t, n, nil) {
				r.report(t.call, "%s may be another error when the section begins in line %d, %s: compare it with nil, or use Do",
					t.err.Name(), r.line(n.Pos()).number, harm)
			}
		})
	}
}

// nilHold reports a method of a hold that is called, or deferred, before the error was looked at.
func (f *function) nilHold(r *reporter, t *taking) {
	if t.unlock == nil {
		return
	}
	known := false // the function has looked whether there is a hold
	flow{f, &taking{stmt: t.stmt, err: t.err, errOnly: true}, t.unlock}.each(func(n ast.Node, s state) {
		if n == t.stmt || known || !s.must(fresh) || f.use(n, t.err) != unused {
			return
		}
		calls, asks := false, false
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				calls = calls || root(f.info, n) == t.unlock
			case *ast.BinaryExpr:
				asks = asks || root(f.info, n.X) == t.unlock && f.info.Types[n.Y].IsNil() || root(f.info, n.Y) == t.unlock && f.info.Types[n.X].IsNil()
			}
			return true
		})
		_, isDefer := n.(*ast.DeferStmt)
		known = asks && !isDefer
		if calls && !asks {
			r.report(t.call, "%s is used in line %d before %s is looked at, and is nil if this %s has failed: check %s first",
				t.unlock.Name(), r.line(n.Pos()).number, t.err.Name(), nameOf(t.call), t.err.Name())
		}
	})
}

// doErr reports an error of Do that is only compared with sentinels, so that no other error is noticed, and a value of DoValue that is used
// without its error.
func (f *function) doErr(r *reporter, d *do) {
	name := nameOf(d.call)
	if d.err == nil {
		if d.also != nil {
			r.report(d.call, "the error of this %s is dropped, so %s is a zero value if the function did not run: check it", name, types.ExprString(d.also))
		}
		return
	}
	t := &taking{stmt: d.stmt, err: d.err}
	looks, sentinel := f.comparisons(d.err)
	if sentinel != "" && !f.isKept(t) && f.isRead(t, d.stmt, nil) && !f.isRead(t, d.stmt, looks) {
		r.report(d.call, "%s is only compared with %s after this %s, so that every other error is taken for success: compare it with nil as well",
			d.err.Name(), sentinel, name)
	}
}

// comparisons lists the nodes that read the error only for errors.Is or errors.As, and one of the compared values. It lists none if one of
// them is ErrNotRun, which covers all errors but those of the function and the unlock.
func (f *function) comparisons(err *types.Var) (all []ast.Node, with string) {
	for _, b := range f.graph.Blocks {
		for _, n := range b.Nodes {
			only := true
			var compared string
			ast.PreorderStack(n, nil, func(m ast.Node, stack []ast.Node) bool {
				if id, ok := m.(*ast.Ident); ok && f.info.Uses[id] == err {
					call, _ := stackEnd[*ast.CallExpr](stack, 1)
					compared = f.comparedWith(call)
					only = only && compared != ""
				}
				return true
			})
			switch {
			case compared == "" || !only:
			case compared == "rlock.ErrNotRun":
				return nil, ""
			default:
				all, with = append(all, n), compared
			}
		}
	}
	return all, with
}

// comparedWith returns the error, or the type of errors, that errors.Is, As, AsType or IsBusy looks for; "" for other calls.
func (f *function) comparedWith(call *ast.CallExpr) string {
	if call == nil {
		return ""
	}
	callee := typeutil.Callee(f.info.Info, call)
	if isBusy(callee) {
		return "ErrNotAcquired (by IsBusy)"
	}
	if !isFrom(callee, "errors") {
		return ""
	}
	short := func(p *types.Package) string { return p.Name() }
	switch callee.Name() {
	case "Is":
		return types.ExprString(call.Args[1])
	case "As":
		if pointer, ok := f.info.TypeOf(call.Args[1]).(*types.Pointer); ok {
			return types.TypeString(pointer.Elem(), short)
		}
	case "AsType":
		if found := resultsOf(f.info, call); len(found) > 0 {
			return types.TypeString(found[0], short)
		}
	}
	return ""
}

// isKept reports whether the error may be read out of sight: by a function literal, or through a pointer. A deferred function does not see
// it if it is a result, because every return with a value sets that anew.
func (f *function) isKept(t *taking) bool {
	return f.isReadIn(t.err, func(deferred bool) bool { return !deferred || !slices.Contains(f.results, t.err) })
}

// isReadIn reports whether a function literal of that kind may read the variable other than to reassign it, or a pointer has it.
func (f *function) isReadIn(v *types.Var, literal func(deferred bool) bool) bool {
	read := false
	ast.PreorderStack(f.node, nil, func(n ast.Node, stack []ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok || f.info.Uses[id] != v {
			return !read
		}
		inDefer, reads := false, false
		for _, outer := range stack[1:] { // without the function itself
			switch outer := outer.(type) {
			case *ast.DeferStmt:
				inDefer = true
			case *ast.FuncLit:
				reads = reads || literal(inDefer)
			case *ast.AssignStmt:
				reads = reads && (len(outer.Lhs) != 1 || root(f.info, outer.Lhs[0]) != v)
			case *ast.UnaryExpr:
				read = read || outer.Op == token.AND
			}
		}
		read = read || reads
		return !read
	})
	return read
}

// isRead reports whether the error is read after that node and before its next assignment. Some reads do not count.
func (f *function) isRead(t *taking, after ast.Node, except []ast.Node) bool {
	seen := make(map[*cfg.Block]bool)
	var read func(b *cfg.Block, from int) bool
	read = func(b *cfg.Block, from int) bool {
		for _, n := range b.Nodes[from:] {
			switch returns, ok := n.(*ast.ReturnStmt); {
			case slices.Contains(except, n):
			case f.reads(n, t.err):
				return true
			case ok && returns.Results != nil, f.use(n, t.err) == assigned:
				return false
			}
		}
		for _, next := range b.Succs {
			if !seen[next] {
				seen[next] = true
				if read(next, 0) {
					return true
				}
			}
		}
		return false
	}
	for _, b := range f.graph.Blocks {
		if i := slices.Index(b.Nodes, after); i >= 0 && read(b, i+1) {
			return true
		}
	}
	return false
}

// reads reports whether n itself, not a deferred function, reads the variable.
func (f *function) reads(n ast.Node, v *types.Var) bool {
	found := false
	ast.PreorderStack(n, nil, func(m ast.Node, stack []ast.Node) bool {
		switch m := m.(type) {
		case *ast.Ident:
			if f.info.ObjectOf(m) == v {
				use := f.useOf(m, stack)
				found = found || use == deferred || use == called || use == escaped
			}
		case *ast.ReturnStmt:
			found = found || m.Results == nil && slices.Contains(f.results, v)
		}
		return !found
	})
	return found
}

// unlockErr reports an unlock's error that a deferred function stores in a variable of the function that is neither a result nor read
// afterwards.
func (f *function) unlockErr(r *reporter) {
	for _, b := range f.graph.Blocks {
		for _, n := range b.Nodes {
			d, ok := n.(*ast.DeferStmt)
			if !ok {
				continue
			}
			fn, ok := ast.Unparen(d.Call.Fun).(*ast.FuncLit)
			if !ok {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				a, ok := n.(*ast.AssignStmt)
				if !ok || len(a.Lhs) != 1 || len(a.Rhs) != 1 || !f.unlocks(a.Rhs[0]) {
					return true
				}
				v := f.local(ast.Unparen(a.Lhs[0]))
				if v != nil && !isWithin([]ast.Node{fn}, v) && !slices.Contains(f.results, v) && !f.isReadIn(v, func(bool) bool { return true }) {
					r.report(a, "nobody sees this error, since %s is no result of the function: name the result %s, without a := of that name in between",
						v.Name(), v.Name())
				}
				return true
			})
		}
	}
}

// unlocks reports whether the value of e includes an unlock's error.
func (f *function) unlocks(e ast.Expr) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		found = found || ok && ends(f.info, call) != ""
		return !found
	})
	return found
}
