package checks_test

import (
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/go-rlock/rlock/rlockvet/checks"
)

// Each line of the test data with a comment "want" is a finding, and no other line is.
func TestAnalyzers(t *testing.T) {
	for _, test := range []struct {
		analyzer *analysis.Analyzer
		packages []string
	}{
		{checks.OuterCtx, []string{"outerctx", "permit/outerctx", "values", "ignore", "waitonly"}},
		{checks.EndedCtx, []string{"endedctx", "permit/endedctx", "waitonly/ended"}},
		{checks.LostUnlock, []string{"lostunlock", "permit/lostunlock"}},
		{checks.LockErr, []string{"lockerr", "permit/lockerr"}},
		{checks.Misuse, []string{"misuse"}},
	} {
		t.Run(test.analyzer.Name, func(t *testing.T) {
			t.Parallel()
			analysistest.Run(t, analysistest.TestData(), test.analyzer, test.packages...)
		})
	}
}
