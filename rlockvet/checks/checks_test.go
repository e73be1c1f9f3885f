package checks_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/go-rlock/rlock/rlockvet/checks"
)

// Each line of the test data with a comment "want" is a finding, and no other line is.
func TestAnalyzers(t *testing.T) {
	of := map[string]*analysis.Analyzer{ // by package
		"outerctx": checks.OuterCtx, "permit/outerctx": checks.OuterCtx, "values": checks.OuterCtx, "ignore": checks.OuterCtx,
		"waitonly": checks.OuterCtx,
		"endedctx": checks.EndedCtx, "permit/endedctx": checks.EndedCtx, "waitonly/ended": checks.EndedCtx,
		"lostunlock": checks.LostUnlock, "permit/lostunlock": checks.LostUnlock,
		"lockerr": checks.LockErr, "permit/lockerr": checks.LockErr,
		"misuse": checks.Misuse,
	}
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
