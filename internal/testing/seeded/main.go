// Command seeded shows that the tests find bugs: it puts one at a time into the engine, runs the tests until one fails, and says which.
// Run it in the project's root: make seeded.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// packages are tried in this order: those with the shortest tests first.
var packages = []string{"./internal/engine", "./rlock_test/conversations", "./rlocktest", "./rlock_test"}

func main() {
	only := flag.String("run", "", "only the bugs whose names match this regular expression")
	flag.Parse()
	if err := run(regexp.MustCompile(*only)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(only *regexp.Regexp) error {
	var missed []string
	for _, b := range bugs {
		if !only.MatchString(b.name) {
			continue
		}
		began := time.Now()
		by, err := b.foundBy()
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		if by == "" {
			by = "NOT FOUND"
			missed = append(missed, b.name)
		}
		fmt.Fprintf(os.Stdout, "%-70s %-60s %4.0f s\n", b.name, by, time.Since(began).Seconds())
	}
	if len(missed) > 0 {
		return fmt.Errorf("seeded: no test finds: %s", strings.Join(missed, "; "))
	}
	return nil
}

// foundBy returns the first test that fails with the bug; "" if none does.
func (b bug) foundBy() (test string, err error) {
	dir, err := os.MkdirTemp("", "seeded")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	overlay, err := b.overlay(dir)
	if err != nil {
		return "", err
	}
	for _, p := range packages {
		cmd := exec.Command("go", "test", "-overlay="+overlay, "-vet=off", "-count=1", "-failfast", "-parallel=32", "-timeout=3m", p)
		out, err := cmd.CombinedOutput()
		if err == nil {
			continue
		}
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
			return "", err
		}
		if name := failed(string(out)); name != "" {
			return name, nil
		}
		return "", fmt.Errorf("it does not run:\n%s", out)
	}
	return "", nil
}

// overlay writes the changed file, and what makes the go command take it.
func (b bug) overlay(dir string) (path string, err error) {
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	file := filepath.Join(root, "internal", filepath.FromSlash(b.file))
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), b.old); n != 1 {
		return "", fmt.Errorf("%q stands %d times in %s", b.old, n, b.file)
	}
	changed := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), b.old, b.new, 1)), 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, replace, 0o600)
}

var (
	fails   = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	running = regexp.MustCompile(`(?m)^panic: test timed out[^\n]*\n\s*running tests:\n\s*(\S+)`)
	panics  = regexp.MustCompile(`(?m)^(?:panic|fatal error): .*`)
)

// failed returns the test that failed, timed out or crashed, by the output of go test.
func failed(out string) string {
	if m := running.FindStringSubmatch(out); m != nil {
		return m[1] + " (does not end)"
	}
	name := ""
	for _, m := range fails.FindAllStringSubmatch(out, -1) {
		if name != "" && !strings.HasPrefix(m[1], name+"/") { // -failfast ends others, which then may fail, too
			break
		}
		name = m[1]
	}
	if name != "" {
		return name
	}
	return panics.FindString(out)
}
