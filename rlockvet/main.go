// Rlockvet finds mistakes in code that uses package rlock: an error of Lock that is ignored, a section that goes on with another ctx
// than its own, a ctx that is used after its section, an unlock that is not called, or not when it should be, and comparisons and
// durations that cannot mean what they say. It knows the permits of semaphores, too.
//
//	go run github.com/go-rlock/rlock/rlockvet@latest ./...
//
// It is a tool for go vet as well, which keeps its results in the build cache:
//
//	go install github.com/go-rlock/rlock/rlockvet@latest
//	go vet -vettool=$(which rlockvet) ./...
//
// Each finding is one line. A comment on that line, or on one of its own above it, silences it:
//
//	//rlockvet:ignore the reason
//
// What it reports, and what it cannot see, is in docs/rlockvet.md. Package checks has the analyzers for other drivers.
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/go-rlock/rlock/rlockvet/checks"
)

func main() { multichecker.Main(checks.Analyzers()...) }
