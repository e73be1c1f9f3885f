package checks

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/types/typeutil"
)

// The permits of a Semaphore have no owner and no unlock: another call releases them, perhaps in another goroutine or process. So the calls
// of a function are only paired if they appear to be.

// acquired returns the semaphore of a call that takes its permits, as written, or nil.
func acquired(info *source, call *ast.CallExpr) ast.Expr {
	callee := typeutil.Callee(info.Info, call)
	if isMethod(callee, "Semaphore", "Acquire", "TryAcquire") {
		return lockOf(call)
	}
	return nil
}

// isMethod reports whether it is one of these methods of a type of package rlock.
func isMethod(callee types.Object, typ string, names ...string) bool {
	fn, ok := callee.(*types.Func)
	if !ok || !isRlock(fn) || fn.Signature().Recv() == nil || !slices.Contains(names, fn.Name()) {
		return false
	}
	pointer, ok := types.Unalias(fn.Signature().Recv().Type()).(*types.Pointer)
	return ok && isNamed(pointer.Elem(), rlockPath, typ)
}

// ends returns what a call releases, for messages; "" if it is neither an unlock nor a Release.
func ends(info *source, call *ast.CallExpr) string {
	callee := typeutil.Callee(info.Info, call)
	switch {
	case isUnlock(info.TypeOf(call.Fun)), isMethod(callee, "Hold", "Unlock"):
		return "lock"
	case isMethod(callee, "Permit", "Release"):
		return "permit"
	case givesPermits(callee):
		return "permits"
	}
	return ""
}

// endsSection reports whether it is the method of a Permit or a Hold that ends its section.
func endsSection(callee types.Object) bool {
	return isMethod(callee, "Permit", "Release") || isMethod(callee, "Hold", "Unlock")
}

// givesPermits reports whether a method releases a semaphore's permits.
func givesPermits(callee types.Object) bool {
	return isMethod(callee, "Semaphore", "Release", "ReleaseIfExists", "AddPermits")
}

// useOfSemaphore returns how n uses the semaphore's permits.
func (f *function) useOfSemaphore(n ast.Node, t *taking) (most usage) {
	semaphore := key(f.info, t.semaphore)
	ast.PreorderStack(n, nil, func(m ast.Node, stack []ast.Node) bool {
		e, ok := m.(ast.Expr)
		if !ok || semaphore == "" || key(f.info, e) != semaphore {
			return true
		}
		most = max(most, f.useOfPermits(e, stack))
		return false
	})
	return most
}

func (f *function) useOfPermits(semaphore ast.Expr, stack []ast.Node) usage {
	in, ok := stackEnd[*ast.SelectorExpr](stack, 1)
	gives := false
	if ok && in.X == semaphore {
		callee := f.info.Uses[in.Sel]
		if gives = givesPermits(callee); !gives && isRlock(callee) {
			return unused // an Acquire, for example
		}
	}
	if len(stack) == 0 {
		return escaped
	}
	call, isCall := stackEnd[*ast.CallExpr](stack, 2)
	isCall = isCall && gives && call.Fun == in
	inLiteral := slices.ContainsFunc(stack, func(n ast.Node) bool { _, ok := n.(*ast.FuncLit); return ok })
	deferring, inDefer := stack[0].(*ast.DeferStmt)
	_, inGo := stack[0].(*ast.GoStmt)
	switch {
	case inDefer && inLiteral:
		return deferredVar
	case inDefer && (!isCall || deferring.Call == call):
		return deferred
	case inGo, inLiteral, !isCall:
		return escaped
	}
	return called
}

// stackEnd returns the node that far from the end of the stack.
func stackEnd[T ast.Node](stack []ast.Node, from int) (n T, ok bool) {
	if len(stack) < from {
		return n, false
	}
	n, ok = stack[len(stack)-from].(T)
	return n, ok
}

// isPaired reports whether the function itself must release the permits: a later statement of the same block does. Otherwise a goroutine,
// the caller or another process may.
func (f *function) isPaired(t *taking) bool {
	paired, before := false, false
	ast.PreorderStack(f.node, nil, func(n ast.Node, stack []ast.Node) bool {
		if n == f.node {
			return true
		}
		switch n := n.(type) {
		case *ast.FuncLit, *ast.DeferStmt:
			before = before || n.Pos() < t.stmt.Pos() && f.mentions(n, t)
			return false
		case *ast.BlockStmt:
			paired = paired || f.pairs(n.List, t)
		case *ast.CaseClause:
			paired = paired || f.pairs(n.Body, t)
		case *ast.CommClause:
			paired = paired || f.pairs(n.Body, t)
		}
		return true
	})
	return paired && !before
}

// pairs reports whether a later one of these statements releases the permits. The taking must be among them, or be the init statement of an
// if among them; then the branches of that if count as well.
func (f *function) pairs(list []ast.Stmt, t *taking) bool {
	i := slices.IndexFunc(list, func(s ast.Stmt) bool {
		branch, isIf := s.(*ast.IfStmt)
		return s == t.stmt || isIf && branch.Init == t.stmt
	})
	if i < 0 {
		return false
	}
	later := slices.Clone(list[i+1:])
	if branch, ok := list[i].(*ast.IfStmt); ok {
		later = append(later, branch.Body.List...)
		if other, ok := branch.Else.(*ast.BlockStmt); ok {
			later = append(later, other.List...)
		}
	}
	return slices.ContainsFunc(later, func(s ast.Stmt) bool {
		if branch, ok := s.(*ast.IfStmt); ok && branch.Init != nil {
			s = branch.Init
		}
		switch s.(type) {
		case *ast.ExprStmt, *ast.AssignStmt, *ast.ReturnStmt, *ast.DeferStmt:
			use := f.useOfSemaphore(s, t)
			return use == called || use == deferred || use == deferredVar
		}
		return false
	})
}

// mentions reports whether a call in n, even a later one, releases the semaphore's permits.
func (f *function) mentions(n ast.Node, t *taking) bool {
	found := false
	ast.Inspect(n, func(m ast.Node) bool {
		call, ok := m.(*ast.CallExpr)
		found = found || ok && givesPermits(typeutil.Callee(f.info.Info, call)) && key(f.info, lockOf(call)) == key(f.info, t.semaphore)
		return !found
	})
	return found
}

// lostPermits reports permits that some path through the function does not release.
func (f *function) lostPermits(r *reporter, t *taking) {
	if !f.isPaired(t) {
		return
	}
	release := types.ExprString(t.semaphore) + ".Release"
	var risk ast.Node
	found, onlyCalled := false, true
	flow := flow{f, t, root(f.info, t.semaphore)}
	flow.each(func(n ast.Node, s state) {
		use := f.useOfSemaphore(n, t)
		onlyCalled = onlyCalled && (n == t.stmt || use == unused || use == called)
		switch ret, returns := n.(*ast.ReturnStmt); {
		case found:
		case returns && flow.step(s, n).can(held):
			found = true
			r.report(t.call, "%s is not called on every path, and the permits stay taken after the return in line %d: "+
				"defer it when err is checked, or use Do", release, r.line(ret.Pos()).number)
		case n == t.stmt && s.can(held):
			found = true
			r.report(t.call, "%s is not called on every path, and the permits stay taken in the next round of the loop: use Do, or a "+
				"function for each round that defers it", release)
		case s.can(held) && risk == nil && use == unused:
			risk = f.risk(n)
		}
	})
	if !found && risk != nil && onlyCalled {
		cure := "defer it instead, or use Do"
		if f.loopOf(t.stmt) != nil {
			cure = "use Do, or a function for each round that defers it"
		}
		r.report(t.call, "%s is not deferred, so a panic in line %d leaves the permits taken: %s", release, r.line(risk.Pos()).number, cure)
	}
}

// givenAnyway reports a Release of permits that a failed Acquire did not take.
func (f *function) givenAnyway(r *reporter, t *taking) {
	flow{f, &taking{stmt: t.stmt, err: t.err, errOnly: true}, root(f.info, t.semaphore)}.each(func(n ast.Node, s state) {
		use := f.useOfSemaphore(n, t)
		if n != t.stmt && s.must(fresh) && (use == called || use == deferred || use == deferredVar) && f.mentions(n, t) && f.use(n, t.err) == unused {
			r.report(t.call, "the permits are given back in line %d although this %s may have failed, so there are more of them then: "+
				"compare %s with nil first, or use Do", r.line(n.Pos()).number, nameOf(t.call), t.err.Name())
		}
	})
}
