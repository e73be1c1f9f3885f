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

// A user's module that imports the real library has the findings that the test data wants, which is written for an imitation of it:
// under go vet, and with the tool alone.
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
	want := make(map[string][]string) // by folder, which is called as the analyzer
	for _, name := range []string{
		"outerctx/outerctx.go", "outerctx/outerctx_test.go",
		"endedctx/endedctx.go",
		"lostunlock/lostunlock.go", "lostunlock/lostunlock_test.go", "lostunlock/kit.go",
	} {
		text := read(filepath.Join("checks", "testdata", "src", name))
		write(name, text)
		for i, line := range strings.Split(text, "\n") {
			if strings.Contains(line, "// want `") {
				dir, file := path.Split(name)
				want[dir] = append(want[dir], fmt.Sprintf("%s:%d", file, i+1))
			}
		}
	}

	// The go.mod of a module that is not published is not complete; -mod=mod completes it.
	if out, err := run(t, module, "go", "list", "-mod=mod", "-deps", "./..."); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	finding := regexp.MustCompile(`(?m)(\w+\.go:\d+):\d+: `)
	for dir, lines := range want {
		only := "-" + strings.TrimSuffix(dir, "/")
		commands := [][]string{{"go", "vet", "-vettool=" + tool, only, "./" + dir}}
		if dir == "endedctx/" {
			commands = append(commands, []string{tool, only, "./" + dir})
		}
		for _, command := range commands {
			out, err := run(t, module, command[0], command[1:]...)
			if err == nil {
				t.Errorf("%s: no error", command)
			}
			var got []string
			for _, m := range finding.FindAllStringSubmatch(out, -1) {
				got = append(got, m[1])
			}
			slices.Sort(got)
			slices.Sort(lines)
			if !slices.Equal(slices.Compact(got), lines) { // a package is looked at with its tests once more
				t.Errorf("%s: found %q\nwant %q\n%s", command, got, lines, out)
			}
		}
	}
}

// The library, its tests, its command and its test kit have no findings. "make lint" looks at all modules.
func TestThisRepository(t *testing.T) {
	t.Parallel()
	tool := build(t)
	for _, dir := range []string{".", "rlock_test", "cmd/rlock", "rlocktest"} {
		if out, err := run(t, filepath.Join(root, dir), "go", "vet", "-vettool="+tool, "./..."); err != nil {
			t.Errorf("%s: %v\n%s", dir, err, out)
		}
	}
}
