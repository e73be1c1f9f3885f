package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
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

// build returns the path of the tool. Without the commit in it: go vet keeps its results until the tool changes.
func build(t *testing.T) string {
	t.Helper()
	tool := filepath.Join(t.TempDir(), "rlockvet")
	if runtime.GOOS == "windows" {
		tool += ".exe"
	}
	if out, err := run(t, ".", "go", "build", "-buildvcs=false", "-o", tool, "."); err != nil {
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
// rlockvet/README.md promises: under go vet, and alone.
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
	want := make(map[string][]string) // regular expressions, per folder: of the analyzer of that name, or of all
	add := func(name, text string, mark *regexp.Regexp, quote func(string) string) {
		write(name, text)
		dir, file := path.Split(name)
		for i, line := range strings.Split(text, "\n") {
			if m := mark.FindStringSubmatch(line); m != nil {
				want[dir] = append(want[dir], fmt.Sprintf("^%s:%d: %s", file, i+1, quote(m[1])))
			}
		}
	}
	analyzers := []string{"outerctx", "endedctx", "lostunlock", "lockerr", "misuse"}
	data := filepath.Join("checks", "testdata", "src")
	var files []string
	for _, analyzer := range analyzers {
		for _, dir := range []string{analyzer, "permit/" + analyzer, "requests/" + analyzer} {
			found, err := filepath.Glob(filepath.Join(data, dir, "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range found {
				files = append(files, dir+"/"+filepath.Base(file))
			}
		}
	}
	files = append(files, "planted/planted.go", "planted/newer.go") // by all analyzers
	for _, name := range files {
		add(name, read(filepath.Join(data, name)), regexp.MustCompile("// want `\\^?(.*)`"), func(pattern string) string { return ".*" + pattern })
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

var store interface {
	Write(ctx context.Context, token int64, data []byte) error
}
`
	for _, block := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(filepath.Join(root, "rlockvet", "README.md")), -1) {
		page += "\n" + block[1]
	}
	add("page/page.go", page, regexp.MustCompile(" // (.*)"), regexp.QuoteMeta)

	// The go.mod of an unpublished module is incomplete; -mod=mod completes it.
	if out, err := run(t, module, "go", "list", "-mod=mod", "-deps", "./..."); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	check := func(dir, how, findings string) {
		t.Helper()
		left := want[dir]
		for _, m := range regexp.MustCompile(`(?m)(\w+\.go:\d+):\d+(: .*)`).FindAllStringSubmatch(findings, -1) {
			n := len(left)
			left = slices.DeleteFunc(slices.Clone(left), func(w string) bool { return regexp.MustCompile(w).MatchString(m[1] + m[2]) })
			if len(left) == n {
				t.Errorf("%s, %s: not wanted: %s", dir, how, m[0])
			}
		}
		for _, w := range left {
			t.Errorf("%s, %s: not found: %s", dir, how, w)
		}
	}
	found := underVet(t, module, tool)
	for dir := range want {
		by := found[strings.TrimSuffix(dir, "/")]
		switch dir {
		case "page/":
		case "planted/":
			check(dir, "go vet -json", strings.Join(slices.Collect(maps.Values(by)), ""))
		default:
			check(dir, "go vet -json", by[path.Base(dir)])
		}
	}
	for _, command := range [][]string{{"go", "vet", "-vettool=" + tool, "./page"}, {tool, "./page"}} {
		out, err := run(t, module, command[0], command[1:]...)
		if err == nil {
			t.Errorf("%s: no error", command)
		}
		check("page/", command[0], out)
	}
}

// underVet returns what all analyzers find in a module, in one run of go vet: by folder and analyzer, as the lines that go vet prints.
func underVet(t *testing.T, module, tool string) map[string]map[string]string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "vet", "-vettool="+tool, "-json", "./...")
	command.Dir = module
	out, err := command.CombinedOutput() // standard error, before Go 1.26
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found := make(map[string]map[string]string)
	comments := regexp.MustCompile("(?m)^#.*")
	for decoder := json.NewDecoder(bytes.NewReader(comments.ReplaceAll(out, nil))); ; {
		var packages map[string]map[string][]struct{ Posn, Message string }
		if err := decoder.Decode(&packages); err == io.EOF {
			return found
		} else if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for pkg, analyzers := range packages {
			dir := strings.TrimPrefix(strings.Fields(pkg)[0], "example/")
			if found[dir] == nil {
				found[dir] = make(map[string]string)
			}
			for analyzer, findings := range analyzers {
				for _, f := range findings {
					found[dir][analyzer] += f.Posn + ": " + f.Message + "\n"
				}
			}
		}
	}
}
