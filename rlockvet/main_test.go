package main

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// root is the folder of the library.
const root = ".."

// build returns the path of the tool.
func build(t *testing.T) string {
	t.Helper()
	tool := filepath.Join(t.TempDir(), "rlockvet")
	if runtime.GOOS == "windows" {
		tool += ".exe"
	}
	if out, err := run(t, ".", "go", "build", "-o", tool, "."); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return tool
}

func run(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir = dir
	out, err := command.CombinedOutput()
	return string(out), err
}

// In a user's module with the real library, the tool finds what the test data wants, although that is written for an imitation, and what
// docs/rlockvet.md promises: under go vet, and alone.
func TestRealLibrary(t *testing.T) {
	t.Parallel()
	tool := build(t)
	module := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(module, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}

	library, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	write("go.mod", fmt.Sprintf("module example\n\ngo 1.25.0\n\nrequire github.com/go-rlock/rlock v0.0.0\n\n"+
		"replace github.com/go-rlock/rlock => %s\n", library))
	write("go.sum", read(filepath.Join(root, "go.sum")))
	want := make(map[string][]string) // per folder: with the analyzer of that name, or with all
	add := func(name, text, mark string) {
		write(name, text)
		dir, file := path.Split(name)
		for i, line := range strings.Split(text, "\n") {
			if _, comment, ok := strings.Cut(line, mark); ok {
				want[dir] = append(want[dir], fmt.Sprintf("%s:%d: %s", file, i+1, comment))
			}
		}
	}
	analyzers := []string{"outerctx", "endedctx", "lostunlock", "lockerr", "misuse"}
	data := filepath.Join("checks", "testdata", "src")
	var files []string
	for _, analyzer := range analyzers {
		for _, dir := range []string{analyzer, "permit/" + analyzer} {
			found, err := filepath.Glob(filepath.Join(data, dir, "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range found {
				files = append(files, dir+"/"+filepath.Base(file))
			}
		}
	}
	for _, name := range files {
		text := read(filepath.Join(data, name))
		add(name, regexp.MustCompile("// want `.*").ReplaceAllString(text, "// want "), "// want ")
	}
	page := `package page

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func charge(ctx context.Context) error { return ctx.Err() }
func report(ctx context.Context) error { return ctx.Err() }
`
	for _, block := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(filepath.Join(root, "docs", "rlockvet.md")), -1) {
		page += "\n" + block[1]
	}
	add("page/page.go", page, " // ")

	// The go.mod of an unpublished module is incomplete; -mod=mod completes it.
	if out, err := run(t, module, "go", "list", "-mod=mod", "-deps", "./..."); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	check := func(dir, name string, args ...string) {
		t.Helper()
		out, err := run(t, module, name, args...)
		if err == nil {
			t.Errorf("%s %s: no error", name, args)
		}
		left := want[dir]
		for _, m := range regexp.MustCompile(`(?m)(\w+\.go:\d+):\d+(: .*)`).FindAllStringSubmatch(out, -1) {
			n := len(left)
			left = slices.DeleteFunc(slices.Clone(left), func(w string) bool { return strings.HasPrefix(m[1]+m[2], w) })
			if len(left) == n {
				t.Errorf("%s %s: not wanted: %s", name, args, m[0])
			}
		}
		for _, w := range left {
			t.Errorf("%s %s: not found: %s", name, args, w)
		}
	}
	for dir := range want {
		if dir != "page/" {
			analyzer := path.Base(dir)
			check(dir, "go", "vet", "-vettool="+tool, "-"+analyzer, "./"+dir)
		}
	}
	check("page/", "go", "vet", "-vettool="+tool, "./page")
	check("page/", tool, "./page")
}

// The library, its tests, its command and its test kit have no findings. "make lint" checks all modules.
func TestThisRepository(t *testing.T) {
	t.Parallel()
	tool := build(t)
	for _, dir := range []string{".", "rlock_test", "cmd/rlock", "rlocktest"} {
		if out, err := run(t, filepath.Join(root, dir), "go", "vet", "-vettool="+tool, "./..."); err != nil {
			t.Errorf("%s: %v\n%s", dir, err, out)
		}
	}
}
