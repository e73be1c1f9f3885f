package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/cfg"
	"golang.org/x/tools/go/types/typeutil"
)

// state is the set of possible states of a taking at a place, one per path to it.
//
//	state   event                                      next
//	none    the call                                   fresh, or held if its error is not kept
//	fresh   a branch shows that err is not nil         none
//	        a branch shows that it is nil              held
//	        err is used in an unknown way              none
//	        unlock is deferred                         none: a failed Lock has an unlock as well
//	held    unlock is deferred                         kept
//	        a closure that calls unlock is deferred    keptVar
//	fresh, held, kept, keptVar
//	        unlock is called                           ended
//	        unlock goes elsewhere, or is overwritten   none
//	        Downgrade or Export gets the ctx           none: they unlock, if they succeed
//	any     the watched variable is assigned           none
type state uint8

const (
	none  state = 1 << iota // unknown, or not taken yet
	fresh                   // err has not been checked yet
	held
	kept    // until the function returns
	keptVar // as before, if the unlock variable does not change until then
	ended   // the section has ended
)

// inside are the states in which the lock is held.
const inside = held | kept | keptVar

// can reports whether any of these states is possible.
func (s state) can(these state) bool { return s&these != 0 }

// must reports whether only these states are possible.
func (s state) must(these state) bool { return s != 0 && s&^these == 0 }

// become moves s from the states in from to another state.
func (s state) become(from, to state) state {
	if s.can(from) {
		return s&^from | to
	}
	return s
}

// flow follows one taking through its function. An assignment to watch ends the analysis.
type flow struct {
	*function
	taking *taking
	watch  *types.Var
}

// each calls do for each reachable node in source order, with the states before it.
func (f flow) each(do func(n ast.Node, s state)) {
	in := make(map[*cfg.Block]state)
	todo := []*cfg.Block{f.graph.Blocks[0]}
	in[todo[0]] = none
	for len(todo) > 0 {
		b := todo[0]
		todo = todo[1:]
		s := in[b]
		for _, n := range b.Nodes {
			s = f.step(s, n)
		}
		for i, next := range b.Succs {
			if out := in[next] | f.branch(s, b, i == 0); out != in[next] {
				in[next] = out
				todo = append(todo, next)
			}
		}
	}
	type visit struct {
		n ast.Node
		s state
	}
	var all []visit
	for b, s := range in {
		for _, n := range b.Nodes {
			all = append(all, visit{n, s})
			s = f.step(s, n)
		}
	}
	slices.SortStableFunc(all, func(x, y visit) int { return int(x.n.Pos() - y.n.Pos()) })
	for _, v := range all {
		do(v.n, v.s)
	}
}

func (f flow) step(s state, n ast.Node) state {
	t := f.taking
	if n == t.stmt {
		switch {
		case t.unchecked:
			return held
		case t.err == nil || t.unlock == nil && t.semaphore == nil && !t.errOnly:
			return none
		}
		return fresh
	}
	end := f.use(n, t.unlock)
	if t.semaphore != nil {
		end = f.useOfSemaphore(n, t)
	}
	switch end {
	case unused:
	case called:
		s = s.become(fresh|inside, ended)
	case deferred:
		s = s.become(fresh, none).become(held, kept)
	case deferredVar:
		s = s.become(fresh, none).become(held, keptVar)
	case escaped, assigned:
		s = s.become(fresh|inside, none)
	}
	if f.handsOn(n, t) {
		s = s.become(fresh|inside, none)
	}
	if f.use(n, t.err) == escaped {
		if _, isCondition := n.(ast.Expr); t.errOnly && !isCondition || !isLook(n) {
			s = s.become(fresh, none)
		}
	}
	if assigns(f.info, n, f.watch) {
		s = none
	}
	return s
}

// handsOn reports whether n calls Downgrade or Export, which unlock, with the section's ctx.
func (f *function) handsOn(n ast.Node, t *taking) bool {
	if t.section == nil {
		return false
	}
	return slices.ContainsFunc(passesOf(f.info, n, isKey(f.info, key(f.info, t.section))), func(p passed) bool {
		callee := typeutil.Callee(f.info.Info, p.call)
		return isRlock(callee) && (callee.Name() == "Downgrade" || callee.Name() == "Export")
	})
}

// branch returns the states left on one of the edges out of a block.
func (f flow) branch(s state, b *cfg.Block, first bool) state {
	if len(b.Succs) != 2 || len(b.Nodes) == 0 || f.taking.err == nil || !s.can(fresh) {
		return s
	}
	cond, ok := b.Nodes[len(b.Nodes)-1].(ast.Expr)
	if !ok {
		return s
	}
	k := f.knows(cond, first)
	if tag := f.tags[cond]; tag != nil {
		k = f.compare(tag, cond, first)
	}
	switch k {
	case isNil:
		return s.become(fresh, held)
	case isNotNil, isUnclear:
		return s.become(fresh, none)
	default:
		return s
	}
}

// knowledge is a condition's implication for err.
type knowledge int

const (
	nothing   knowledge = iota // says nothing about err
	isOther                    // err may be nil, or another error than the compared one
	isUnclear                  // about err, but not understood
	isNil
	isNotNil
)

func (f flow) knows(cond ast.Expr, outcome bool) knowledge {
	switch e := ast.Unparen(cond).(type) {
	case *ast.UnaryExpr:
		if e.Op == token.NOT {
			return f.knows(e.X, !outcome)
		}
	case *ast.BinaryExpr:
		switch e.Op {
		case token.EQL:
			return f.compare(e.X, e.Y, outcome)
		case token.NEQ:
			return f.compare(e.X, e.Y, !outcome)
		case token.LAND, token.LOR:
			x, y := f.knows(e.X, outcome), f.knows(e.Y, outcome)
			switch both := (e.Op == token.LAND) == outcome; {
			case both: // both have that outcome, so the more specific one counts
				return max(x, y)
			case x == y:
				return x
			case min(x, y) == isOther && max(x, y) == isNil: // err == nil || !errors.Is(err, …)
				return isOther
			}
			return isUnclear
		default: // of numbers, or the like
		}
	case *ast.CallExpr:
		callee := typeutil.Callee(f.info.Info, e)
		if (isFrom(callee, "errors") || isBusy(callee)) && f.use(e, f.taking.err) != unused {
			if outcome { // errors.Is, errors.As or IsBusy
				return isNotNil
			}
			return isOther
		}
	}
	if f.use(cond, f.taking.err) == unused {
		return nothing
	}
	return isUnclear
}

// compare is knows for x == y.
func (f flow) compare(x, y ast.Expr, outcome bool) knowledge {
	if f.info.Types[x].IsNil() {
		x, y = y, x
	}
	id, ok := ast.Unparen(x).(*ast.Ident)
	switch {
	case f.use(x, f.taking.err) == unused && f.use(y, f.taking.err) == unused:
		return nothing
	case !ok || f.info.Uses[id] != f.taking.err:
		return isUnclear
	case f.info.Types[y].IsNil() && outcome:
		return isNil
	case f.info.Types[y].IsNil() || outcome: // a sentinel is not nil
		return isNotNil
	}
	return isOther
}

// isLook reports whether a statement that reads err leaves its meaning to others: a condition (see branch), a return, or a call without a
// result.
func isLook(n ast.Node) bool {
	switch n := n.(type) {
	case ast.Expr, *ast.ReturnStmt, *ast.GoStmt, *ast.DeferStmt:
		return true
	case *ast.ExprStmt:
		_, isCall := n.X.(*ast.CallExpr) // but not err.(type)
		return isCall
	}
	return false
}
