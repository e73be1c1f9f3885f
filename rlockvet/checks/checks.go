// Package checks has the analyzers of rlockvet, the vet tool for users of package rlock. They know its locks by their types: every
// call that returns an [rlock.UnlockFunc] takes a lock, also a function of the user's own. So does one
// that returns a Permit. A Semaphore is known by its methods.
//
// What a call can do to a section is followed within one function body. Where an unlock or a ctx goes elsewhere, nothing is
// reported: a finding should be worth its reader's time.
//
// [rlock.UnlockFunc]: https://pkg.go.dev/github.com/go-rlock/rlock/rlock#UnlockFunc
package checks

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Analyzers returns all of them.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{OuterCtx, EndedCtx, LostUnlock, LockErr, Misuse}
}

// url is where the analyzers are described for users.
const url = "https://github.com/go-rlock/rlock/blob/main/docs/rlockvet.md"

// resultOf is what an analyzer that is required has found.
func resultOf[T any](pass *analysis.Pass, a *analysis.Analyzer) T {
	result, _ := pass.ResultOf[a].(T)
	return result
}

// reporter reports what no comment silences, and each place once.
type reporter struct {
	pass    *analysis.Pass
	info    *source
	ignored map[line]string // the reason
	skipped map[string]bool // files
	seen    map[token.Pos]bool

	// Functions of the package, as far as that is known.
	readers map[*types.Func]bool // whether they only read a ctx
	loggers map[*types.Func]bool // whether they only log
}

type line struct {
	file   string
	number int
}

const ignoreDirective = "//rlockvet:ignore"

func newReporter(pass *analysis.Pass) *reporter {
	r := &reporter{
		pass: pass, info: resultOf[*users](pass, takings).source, ignored: make(map[line]string), skipped: make(map[string]bool), seen: make(map[token.Pos]bool),
		readers: make(map[*types.Func]bool), loggers: make(map[*types.Func]bool),
	}
	for _, file := range pass.Files {
		for _, group := range file.Comments {
			for _, c := range group.List {
				reason, ok := strings.CutPrefix(c.Text, ignoreDirective)
				if !ok {
					continue
				}
				at := r.line(c.Pos())
				if !r.followsCode(file, c) {
					at.number++
				}
				reason, _, _ = strings.Cut(reason, " //") // a comment on the comment
				r.ignored[at] = strings.TrimSpace(reason)
			}
		}
	}
	return r
}

// skipTests leaves out files for tests: those that are called so, or import testing. A test often plays the other one, who
// must not get the lock.
func (r *reporter) skipTests() *reporter {
	for _, file := range r.pass.Files {
		name := r.line(file.Pos()).file
		r.skipped[name] = strings.HasSuffix(name, "_test.go") ||
			slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` })
	}
	return r
}

func (r *reporter) line(pos token.Pos) line {
	p := r.pass.Fset.Position(pos)
	return line{p.Filename, p.Line}
}

// followsCode reports whether the line of the comment begins with something else.
func (r *reporter) followsCode(file *ast.File, c *ast.Comment) bool {
	at, found := r.line(c.Pos()), false
	ast.Inspect(file, func(n ast.Node) bool {
		switch n.(type) {
		case nil, *ast.Comment, *ast.CommentGroup:
			return false
		}
		found = found || n.Pos() < c.Pos() && (r.line(n.Pos()) == at || r.line(n.End()) == at)
		return !found
	})
	return found
}

func (r *reporter) report(at ast.Node, format string, args ...any) {
	line := r.line(at.Pos())
	if r.seen[at.Pos()] || r.skipped[line.file] {
		return
	}
	r.seen[at.Pos()] = true
	reason, ignored := r.ignored[line]
	switch message := fmt.Sprintf(format, args...); {
	case !ignored:
		r.pass.ReportRangef(at, "%s", message)
	case reason == "":
		r.pass.ReportRangef(at, "%s (%s needs a reason)", message, ignoreDirective)
	}
}
