package rlock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// docTest is a test function anywhere in the repository.
type docTest struct {
	file     string   // path from the root of the repository
	promises []string // the promises in its comment
}

// docTests finds all tests of the repository, in all modules and under all build tags.
func docTests(t *testing.T) map[string]docTest {
	t.Helper()
	tests := make(map[string]docTest)
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				name := strings.TrimPrefix(filepath.ToSlash(path), "../")
				tests[f.Name.Name] = docTest{name, docPromises(f.Doc.Text())}
			}
		}
		return nil
	}))
	return tests
}

var (
	docTo      = regexp.MustCompile(`G([1-9])\s+to\s+G([1-9])`)
	docPromise = regexp.MustCompile(`G[1-9]`)
	docName    = regexp.MustCompile("`(Test[A-Za-z0-9_]*…?|[a-z0-9_*/]+_test\\.go)`")
)

// docPromises returns the promises in a text such as "G1, G2 and G5 to G8".
func docPromises(text string) []string {
	text = docTo.ReplaceAllStringFunc(text, func(span string) string {
		m := docTo.FindStringSubmatch(span)
		var all []string
		for g := m[1][0]; g <= m[2][0]; g++ {
			all = append(all, "G"+string(rune(g)))
		}
		return strings.Join(all, " ")
	})
	all := docPromise.FindAllString(text, -1)
	slices.Sort(all)
	return slices.Compact(all)
}

// docs/internals/testing.md names every test of rlock_test and no test that does not exist. The promises that it lists for a fault are those
// in the comments of its tests.
func TestDocsNameTheTests(t *testing.T) {
	text := answer(os.ReadFile("../docs/internals/testing.md")).ok(t)
	tests := docTests(t)
	named := make(map[string]bool)
	faults := false // in a table about the fault tests
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "### ") {
			faults = strings.Contains(line, "(rlock_test/faults)")
		}
		row := docName.FindAllStringSubmatch(line, -1)
		var says []string // the promises of the row's tests
		for _, m := range row {
			name, prefix := strings.CutSuffix(m[1], "…")
			found := false
			for test, at := range tests {
				switch {
				case test == name, prefix && strings.HasPrefix(test, name):
				case strings.HasSuffix(name, ".go"):
					full, _ := filepath.Match(name, at.file)
					if base, _ := filepath.Match(name, filepath.Base(at.file)); !base && !full {
						continue
					}
				default:
					continue
				}
				found, named[test] = true, true
				says = append(says, at.promises...)
			}
			assert.True(t, found, "docs/internals/testing.md names %s, which does not exist", m[1])
		}
		if cells := strings.Split(line, "|"); faults && len(cells) == 6 && len(row) > 0 {
			slices.Sort(says)
			assert.Equal(t, docPromises(cells[2]), slices.Compact(says), "the promises of%sand those in the comments of its tests", cells[1])
		}
	}
	for test, at := range tests {
		if strings.HasPrefix(at.file, "rlock_test/") {
			assert.True(t, named[test], "docs/internals/testing.md does not name %s", test)
		}
	}
}

// No page names a test that does not exist.
func TestPagesNameTestsThatExist(t *testing.T) {
	tests := docTests(t)
	named := 0
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".md") || filepath.Base(path) == "CHANGELOG.md" { // which may tell of earlier ones
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range docName.FindAllStringSubmatch(string(text), -1) {
			if name, prefix := strings.CutSuffix(m[1], "…"); strings.HasPrefix(name, "Test") {
				_, found := tests[name]
				for test := range tests {
					found = found || prefix && strings.HasPrefix(test, name)
				}
				assert.True(t, found, "%s names %s, which does not exist", path, m[1])
				named++
			}
		}
		return err
	}))
	require.NotZero(t, named)
}
