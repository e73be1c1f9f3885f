// Package checks has the analyzers of rlockvet, the vet tool for users of package rlock. They recognize locks by type: every call that
// returns an [rlock.UnlockFunc] or a Permit takes a lock, even a user's own function. A Semaphore is recognized by its methods.
//
// The analysis stays within one function body. Once an unlock or a ctx leaves the function, nothing is reported: a finding should be worth
// its reader's time.
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

// Analyzers returns all analyzers.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{OuterCtx, EndedCtx, LostUnlock, LockErr, Misuse}
}

// url is the analyzers' documentation for users.
const url = "https://github.com/go-rlock/rlock/blob/main/rlockvet/README.md"

// resultOf returns the result of a required analyzer.
func resultOf[T any](pass *analysis.Pass, a *analysis.Analyzer) T {
	result, _ := pass.ResultOf[a].(T)
	return result
}

// reporter reports findings not suppressed by a comment, each position once.
type reporter struct {
	pass    *analysis.Pass
	info    *source
	ignored map[line]string // the reason
	skipped map[string]bool // files
	seen    map[token.Pos]bool

	// Properties of the package's functions, as far as known.
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

// skipTests skips test files: *_test.go, and files that import testing. Tests often take a lock that must fail.
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

// followsCode reports whether there is code before the comment on its line.
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
