package checks_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/go-rlock/rlock/rlockvet/checks"
)

// all is all analyzers in one, because analysistest expects one analyzer to report everything that is wanted.
func all() *analysis.Analyzer {
	a := &analysis.Analyzer{
		Name: "all", Doc: "runs all analyzers",
		Run: func(pass *analysis.Pass) (any, error) {
			for _, one := range checks.Analyzers() {
				if _, err := one.Run(pass); err != nil {
					return nil, err //nolint:wrapcheck // a test
				}
			}
			return nil, nil
		},
	}
	for _, one := range checks.Analyzers() {
		a.Requires = append(a.Requires, one.Requires...)
	}
	return a
}

// Of thirty planted mistakes in each file the analyzers find at least 24. TestAnalyzers and TestRealLibrary show that they do find what is
// marked.
func TestPlanted(t *testing.T) {
	for _, name := range []string{"planted.go", "newer.go"} {
		text, err := os.ReadFile(filepath.Join(analysistest.TestData(), "src", "planted", name))
		if err != nil {
			t.Fatal(err)
		}
		planted := regexp.MustCompile(`(?m)^// [PQ]\d\d: `).Split(string(text), -1)[1:]
		found := 0
		for _, one := range planted {
			what, _, _ := strings.Cut(one, "\n")
			switch marked, excused := strings.Contains(one, "// want `"), strings.Contains(what, "Not found: "); {
			case marked == excused:
				t.Errorf("%s: marked as found: %v, excused: %v", what, marked, excused)
			case marked:
				found++
			}
		}
		if len(planted) != 30 || found < 24 {
			t.Errorf("%s: %d of %d mistakes found", name, found, len(planted))
		}
	}
}

// Each line of the test data with a comment "want" is a finding, and no other line is.
func TestAnalyzers(t *testing.T) {
	of := map[string]*analysis.Analyzer{ // by package
		"outerctx": checks.OuterCtx, "permit/outerctx": checks.OuterCtx, "values": checks.OuterCtx, "ignore": checks.OuterCtx,
		"waitonly": checks.OuterCtx,
		"endedctx": checks.EndedCtx, "permit/endedctx": checks.EndedCtx, "waitonly/ended": checks.EndedCtx,
		"lostunlock": checks.LostUnlock, "permit/lostunlock": checks.LostUnlock,
		"lockerr": checks.LockErr, "permit/lockerr": checks.LockErr,
		"misuse": checks.Misuse, "misuse/command": checks.Misuse,
	}
	of["planted"] = all()
	// One analyzer stands for all of them, because each run loads and checks the standard library.
	each := &analysis.Analyzer{
		Name: "each", Doc: "runs the analyzer of the package",
		Run: func(pass *analysis.Pass) (any, error) {
			path := strings.TrimSuffix(strings.TrimSuffix(pass.Pkg.Path(), ".test"), "_test") // also its tests
			if analyzer := of[path]; analyzer != nil {
				return analyzer.Run(pass)
			}
			return nil, fmt.Errorf("no analyzer for %s", pass.Pkg.Path())
		},
	}
	var packages []string
	for path, analyzer := range of {
		packages = append(packages, path)
		each.Requires = append(each.Requires, analyzer.Requires...)
	}
	slices.Sort(packages)
	slices.SortFunc(each.Requires, func(a, b *analysis.Analyzer) int { return strings.Compare(a.Name, b.Name) })
	each.Requires = slices.Compact(each.Requires)
	analysistest.Run(t, analysistest.TestData(), each, packages...)
}
