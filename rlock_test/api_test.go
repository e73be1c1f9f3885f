package rlock_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "let TestAPI write the current API to docs/api")

// docs/api lists the exported API of each package with a stability promise, so that every change of the API shows up in review.
func TestAPI(t *testing.T) {
	for _, folder := range []string{"rlock", "rlocktest", "rlockgoredis", "rlockotel", "adapters/certmagic", "adapters/gocron", "adapters/tusd"} {
		golden := goldenOf(folder)
		is := exported(t, filepath.Join("..", folder))
		if *rewrite {
			require.NoError(t, os.WriteFile(golden, []byte(is), 0o644))
		}
		was := answer(os.ReadFile(golden)).ok(t)
		require.Equal(t, string(was), is, "the API of %s has changed; if it is meant to: make api", folder)
	}
}

// goldenOf returns the file with the API of the package in a folder.
func goldenOf(folder string) string {
	return filepath.Join("..", "docs", "api", strings.ReplaceAll(folder, "/", "-")+".txt")
}

// Each exported name has a row in docs/api/README.md that gives the reason for it. A name that begins with a dot is a method of the
// type before it.
func TestAPIIsJustified(t *testing.T) {
	text := answer(os.ReadFile(filepath.Join("..", "docs", "api", "README.md"))).ok(t)
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		folder, rows, _ := strings.Cut(section, "\n")
		var named []string
		for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|").FindAllStringSubmatch(rows, -1) {
			of := ""
			for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
				if method, ok := strings.CutPrefix(name[1], "."); ok {
					named = append(named, of+"."+method)
					continue
				}
				of, _, _ = strings.Cut(name[1], ".")
				named = append(named, name[1])
			}
		}
		require.ElementsMatch(t, names(t, goldenOf(folder)), named, "%s", folder)
	}
}

// names returns all names that a file of docs/api declares, methods with their type.
func names(t *testing.T, golden string) (all []string) {
	t.Helper()
	text := answer(os.ReadFile(golden)).ok(t)
	file := answer(parser.ParseFile(token.NewFileSet(), golden, "package p\n"+string(text), parser.SkipObjectResolution)).ok(t)
	for _, d := range file.Decls {
		values, ok := d.(*ast.GenDecl)
		if !ok || values.Tok == token.TYPE {
			_, name, _ := strings.Cut(declared(d), " ")
			all = append(all, name)
			continue
		}
		for _, spec := range values.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				all = append(all, name.Name)
			}
		}
	}
	return all
}

// exported returns the declarations that a package exports, without comments and bodies, with methods after their types.
func exported(t *testing.T, folder string) string {
	t.Helper()
	files := answer(filepath.Glob(filepath.Join(folder, "*.go"))).ok(t)
	set := token.NewFileSet()
	texts := make(map[string]string) // by sort key
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := answer(parser.ParseFile(set, name, nil, parser.SkipObjectResolution)).ok(t)
		ast.FileExports(file)
		for _, d := range file.Decls {
			key := declared(d)
			if key == "" {
				continue
			}
			if f, ok := d.(*ast.FuncDecl); ok {
				f.Body = nil
			}
			var text bytes.Buffer
			require.NoError(t, format.Node(&text, set, d))
			texts[key] = text.String() + "\n"
		}
	}
	require.NotEmpty(t, texts, "%s exports nothing", folder)
	var all []string
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		all = append(all, texts[key])
	}
	return strings.Join(all, "\n")
}

// declared returns the sort key of a declaration; "" if it exports nothing.
func declared(d ast.Decl) string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return "func " + d.Name.Name
		}
		of := d.Recv.List[0].Type
		if star, ok := of.(*ast.StarExpr); ok {
			of = star.X
		}
		if generic, ok := of.(*ast.IndexExpr); ok {
			of = generic.X
		}
		if name, ok := of.(*ast.Ident); ok && name.IsExported() {
			return "type " + name.Name + "." + d.Name.Name
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				return "type " + spec.Name.Name
			case *ast.ValueSpec:
				return d.Tok.String() + " " + spec.Names[0].Name
			}
		}
	}
	return ""
}

// Importing the library adds only rueidis, uuid and their own dependencies: go.mod requires nothing else, not even for tests or
// tools.
func TestImportBringsTwoModules(t *testing.T) {
	text := answer(fs.ReadFile(os.DirFS(".."), "go.mod")).ok(t)
	var asked []string
	for _, m := range regexp.MustCompile(`(?m)^(?:require|tool)?[ \t]+([a-z]\S+)( v\S+)?$`).FindAllSubmatch(text, -1) {
		asked = append(asked, string(m[1]))
	}
	require.Equal(t, []string{"github.com/google/uuid", "github.com/redis/rueidis"}, asked)
	require.NotRegexp(t, `(?m)^(replace|exclude)`, string(text))
}
