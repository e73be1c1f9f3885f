// Rlockvet finds mistakes in code that uses package rlock: ignored errors of Lock, sections under another ctx than their own, a ctx used
// after its section, missing, late and skipped unlocks, wrong comparisons and durations, and unchecked tokens. It also covers the permits of
// semaphores.
//
//	go run github.com/go-rlock/rlock/rlockvet@latest ./...
//
// It also works as a go vet tool, which caches its results in the build cache:
//
//	go install github.com/go-rlock/rlock/rlockvet@latest
//	go vet -vettool=$(which rlockvet) ./...
//
// A finding is one line. A comment on that line, or alone on the line above, suppresses it:
//
//	//rlockvet:ignore the reason
//
// rlockvet/README.md describes the checks and their limits. Package checks has the analyzers for other drivers.
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/go-rlock/rlock/rlockvet/checks"
)

func main() { multichecker.Main(checks.Analyzers()...) }
