// Package docs_test compiles the Go code in the documentation and checks its links.
package docs_test

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/doctest"
)

const (
	root    = "../.."
	project = "github.com/go-rlock/rlock/"
	prelude = "testdata/prelude.go"
)

// source is a block as the compiler sees it.
type source struct {
	*ast.File
	whole    bool // a complete file, which shares nothing with other blocks
	declares bool // only declarations, visible to later blocks
}

var elided = regexp.MustCompile(`(?m)^(\s*)…`)

// parseBlock turns a block into a file. The block is a whole file, declarations or statements; the latter two
// get header in front.
func parseBlock(fset *token.FileSet, b doctest.Block, header string) (source, error) {
	text := fmt.Sprintf("/*line %s:%d:1*/", b.Page, b.Line) + elided.ReplaceAllString(b.Text, "${1}panic(0)")
	file := func(text string) (*ast.File, error) {
		return parser.ParseFile(fset, "", text, parser.SkipObjectResolution)
	}
	if regexp.MustCompile(`(?m)^package `).MatchString(b.Text) {
		f, err := file(text)
		return source{File: f, whole: true}, err
	}
	f, err := file(header + text)
	if err == nil {
		return source{File: f, declares: true}, nil
	}
	f, err2 := file(header + "func _() error { {" + text + "}; return nil }")
	if err2 == nil {
		return source{File: f}, nil
	}
	if strings.HasPrefix(b.Text, "func ") || strings.HasPrefix(b.Text, "type ") {
		return source{}, err
	}
	return source{}, err2
}

// imports returns the import paths of a file.
func imports(f *ast.File) (paths []string) {
	for _, s := range f.Imports {
		path, _ := strconv.Unquote(s.Path.Value)
		paths = append(paths, path)
	}
	return paths
}

// headerOf returns the imports of the prelude, for use in fragments.
func headerOf(paths []string) string {
	header := "package p; "
	for _, path := range paths {
		header += fmt.Sprintf("import %q; ", path)
	}
	return header
}

// without removes declarations whose names are taken, together with the methods of such types, and adds the
// other names to taken.
func without(f *ast.File, taken map[string]bool) {
	own := make(map[string]bool)
	free := func(name string) bool {
		if name != "_" {
			own[name] = true
		}
		return !taken[name]
	}
	f.Decls = slices.DeleteFunc(f.Decls, func(d ast.Decl) bool {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				return taken[strings.TrimLeft(types.ExprString(d.Recv.List[0].Type), "*")]
			}
			return !free(d.Name.Name)
		case *ast.GenDecl:
			d.Specs = slices.DeleteFunc(d.Specs, func(s ast.Spec) bool {
				switch s := s.(type) {
				case *ast.TypeSpec:
					return !free(s.Name.Name)
				case *ast.ValueSpec:
					return slices.ContainsFunc(s.Names, func(n *ast.Ident) bool { return !free(n.Name) })
				}
				return false
			})
			return len(d.Specs) == 0
		}
		return false
	})
	for name := range own {
		taken[name] = true
	}
}

// compiler type-checks blocks against the packages they import.
type compiler struct {
	fset     *token.FileSet
	importer types.Importer
	header   string
	known    map[string]string // export data by package
}

// newCompiler returns a compiler for these blocks and the prelude.
func newCompiler(t *testing.T, blocks []doctest.Block) *compiler {
	t.Helper()
	c := &compiler{fset: token.NewFileSet()}
	f, err := parser.ParseFile(c.fset, prelude, nil, parser.ImportsOnly)
	require.NoError(t, err)
	paths := imports(f)
	c.header = headerOf(paths)
	for _, b := range blocks {
		if s, err := parseBlock(c.fset, b, "package p; "); err == nil {
			paths = append(paths, imports(s.File)...)
		}
	}
	slices.Sort(paths)
	c.known = exports(t, slices.Compact(paths))
	c.importer = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(c.known[path]) })
	return c
}

// exports asks the go command for the export data of packages and their dependencies. It asks for packages of a
// nested module in that module.
func exports(t *testing.T, paths []string) map[string]string {
	t.Helper()
	dirs := []string{root}
	for _, path := range paths {
		below, ok := strings.CutPrefix(path, project)
		for ; ok && below != "."; below = filepath.Dir(below) {
			dir := filepath.Join(root, below)
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	args := []string{"list", "-e", "-deps", "-export", "-f", "{{.ImportPath}}\t{{.Export}}"}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race") // already built with it
	}
	known := make(map[string]string)
	for _, dir := range dirs { // with a go.work the first dir finds all of them
		if !slices.ContainsFunc(paths, func(path string) bool { return known[path] == "" }) {
			break
		}
		cmd := exec.CommandContext(t.Context(), "go", append(args, paths...)...)
		cmd.Dir = dir
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoError(t, err, stderr.String())
		for line := range strings.Lines(string(out)) {
			path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
			if file != "" && known[path] == "" {
				known[path] = file
			}
		}
	}
	return known
}

// check returns the errors in a block. The block sees the earlier blocks of its page, except that a whole file
// shares nothing.
func (c *compiler) check(b doctest.Block, before []doctest.Block) error {
	s, err := parseBlock(c.fset, b, c.header)
	if err != nil {
		return err
	}
	for _, path := range imports(s.File) {
		if c.known[path] == "" && path != "unsafe" {
			return fmt.Errorf("%s:%d: import %q: no such package in the modules of this project", b.Page, b.Line, path)
		}
	}
	files, taken := []*ast.File{s.File}, make(map[string]bool)
	if !s.whole {
		without(s.File, taken)
		for _, earlier := range slices.Backward(before) {
			if s, err := parseBlock(c.fset, earlier, c.header); err == nil && s.declares {
				without(s.File, taken)
				files = append(files, s.File)
			}
		}
		p, err := parser.ParseFile(c.fset, prelude, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		without(p, taken)
		p.Name.Name = s.Name.Name
		files = append(files, p)
	}
	var errs []error
	config := types.Config{Importer: c.importer, GoVersion: "go1.25", Error: func(err error) {
		var e types.Error
		at := c.fset.Position(token.NoPos)
		if errors.As(err, &e) {
			at = c.fset.Position(e.Pos)
		}
		unused := strings.Contains(e.Msg, "declared and not used") || unusedImport.MatchString(e.Msg)
		inside := at.Filename == b.Page && at.Line >= b.Line && at.Line < b.Line+strings.Count(b.Text, "\n")
		if inside && (s.whole || !unused) { // fragments may leave names unused
			errs = append(errs, fmt.Errorf("%v: %s", at, e.Msg))
		}
	}}
	_, _ = config.Check("p", c.fset, files, nil) // config.Error collects the errors
	return errors.Join(errs...)
}

// unusedImport matches the error for one, also of a package with another name than its folder.
var unusedImport = regexp.MustCompile(`imported (as \w+ )?and not used`)

// checkAll checks all Go blocks.
func (c *compiler) checkAll(blocks []doctest.Block) (checked int, err error) {
	var errs []error
	for i, b := range blocks {
		if b.Lang != "go" {
			continue
		}
		var before []doctest.Block
		for _, earlier := range blocks[:i] {
			if earlier.Lang == "go" && earlier.Page == b.Page {
				before = append(before, earlier)
			}
		}
		checked++
		errs = append(errs, c.check(b, before))
	}
	return checked, errors.Join(errs...)
}

// The prelude and every Go block in README.md and docs compile.
func TestGoBlocksCompile(t *testing.T) {
	t.Parallel()
	blocks, err := doctest.Blocks(root)
	require.NoError(t, err)
	text, err := os.ReadFile(prelude)
	require.NoError(t, err)
	names := doctest.Block{Page: "prelude", Line: 1, Lang: "go", Text: string(text)}
	c := newCompiler(t, append(blocks, names))
	checked, err := c.checkAll(blocks)
	require.NoError(t, err)
	require.Greater(t, checked, 20)
	if err := c.check(names, nil); err != nil {
		for line := range strings.Lines(err.Error()) {
			require.Regexp(t, unusedImport, line) // only the blocks use them
		}
	}
}

func TestBrokenBlocksAreFound(t *testing.T) {
	t.Parallel()
	cases := []struct{ page, want string }{
		{"```go\nerr := client.Mutex(\"a\").Do(ctx, work)\n```\n", ""},
		{"```go\nctx, unlock, err := client.Mutex(\"a\").Lock(ctx)\n…\ndefer unlock()\n```\n", ""},
		{"```go\nfunc f(ctx context.Context) (int, error) {\n\t…\n}\n```\n", ""},
		{"```go\ntype T struct{ n int }\n```\n```go\nfunc (t *T) f() int { return t.n }\n```\n```go\nn := (&T{1}).f()\n```\n", ""},
		{"```go\nfunc ship() {}\n```\n```go\nfunc ship() int { return 1 }\nvar n int = ship()\n```\n", ""},
		{"```go\ntype T struct{ n int }\nfunc (T) f() {}\n```\n```go\ntype T struct{}\nfunc (T) f() {}\n```\n", ""},
		{"```go\nvar client int\nvar n int = client\n```\n", ""},
		{"```go\npackage main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println() }\n```\n", ""},
		{"```go\nvar loss *rlock.LostError\nif errors.As(err, &loss) {\n\tlog.Print(loss.Reason)\n}\n```\n", ""},

		{"```go\nerr := client.Mutx(\"a\").Do(ctx, work)\n```\n", "p.md:2:15: client.Mutx undefined"},
		{"\n\n```go\n\nctx, unlock := client.Mutex(\"a\").Lock(ctx)\n```\n", "p.md:5:16: assignment mismatch"},
		{"```go\nerr := nobodyKnows(ctx)\n```\n", "undefined: nobodyKnows"},
		{"```go\nrlock.Nothing()\n```\n", "undefined: rlock.Nothing"},
		{"```go\nerr := client.Close()\n```\n", "used as value"},
		{"```go\nerr := work(ctx)\nerr := work(ctx)\n```\n", "no new variables"},
		{"```go\nfunc f() error {\n}\n```\n", "missing return"},
		{"```go\nif err != nil {\n```\n", "expected"},
		{"```go\nfunc f( {\n```\n", "p.md:2:"},
		{"```go\nn := t{}\n```\n```go\ntype t struct{}\n```\n", "undefined: t"},
		{"```go\npackage main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { fmt.Println() }\n```\n", `"os" imported and not used`},
		{"```go\npackage main\n\nfunc main() { n := 1 }\n```\n", "declared and not used: n"},
		{"```go\npackage main\n\nfunc main() { client.Close() }\n```\n", "undefined: client"},
		{"```go\npackage main\n\nimport \"example.org/none\"\n\nfunc main() { none.F() }\n```\n", `import "example.org/none": no such package`},
		{"```golang\nx\n```\n", `p.md:1: a block in "golang"`},
		{"```go\nx\n", "p.md:2: the block is not closed"},
	}
	var all []doctest.Block
	for _, c := range cases {
		blocks, _ := doctest.Parse("p.md", c.page) // its error is checked below
		all = append(all, blocks...)
	}
	compiler := newCompiler(t, all)
	for _, c := range cases {
		blocks, err := doctest.Parse("p.md", c.page)
		if err == nil {
			_, err = compiler.checkAll(blocks)
		}
		if c.want == "" {
			require.NoError(t, err, c.page)
		} else {
			require.ErrorContains(t, err, c.want, c.page)
		}
	}
}
