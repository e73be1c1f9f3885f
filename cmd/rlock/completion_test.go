//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// completionCases are command lines, and what completes their last word.
var completionCases = map[string][]string{
	"rlock rec":                    {"record"},
	"rlock re":                     {"record", "report"},
	"rlock record -e":              {"-every"},
	"rlock record -rate 5 -li":     {"-limit"},
	"rlock record -rate ":          nil,
	"rlock demo -":                 {"-cheats"},
	"rlock help wat":               {"watch"},
	"rlock completion ":            {"bash", "fish", "zsh"},
	"rlock show jo":                nil,
	"rlock report ni":              {"night.html", "night.jsonl"},
	"rlock report -o nigh":         {"night.html", "night.jsonl"},
	"rlock ls -cacert ca":          {"ca file.pem"},
	"rlock run -w":                 {"-wait", "-wait-group", "-watchdog"},
	"rlock run job -- mkfif":       {"mkfifo"},
	"rlock run job -- cat night.j": {"night.jsonl"},
	"rlock version -":              nil,
}

// completionDir has the files and the program of completionCases.
func completionDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"night.jsonl", "night.html", "ca file.pem"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	return dir
}

// shellWith runs a shell in that folder, with rlock on its path.
func shellWith(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"), "HOME="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

func linesOf(text string) (all []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// A real bash completes commands, flags, files, and the command that runs under a lock.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	dir := completionDir(t)
	for line, want := range completionCases {
		words := strings.Fields(line)
		if strings.HasSuffix(line, " ") {
			words = append(words, "")
		}
		got := shellWith(t, dir, "bash", append([]string{"--norc", "--noprofile", "-c", `source <(rlock completion bash)
			[[ $(complete -p rlock) == "complete -F _rlock rlock" ]] || exit 1
			COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
			_rlock
			printf '%s\n' "${COMPREPLY[@]}" | sort -u`, "bash"}, words...)...)
		require.Equal(t, want, linesOf(got), line)
	}
}

// All commands and flags of the help are completed, and each has a text.
func TestCompletions(t *testing.T) {
	t.Parallel()
	var names []string
	for _, c := range completions() {
		names = append(names, c.name)
		require.NotEmpty(t, c.about, c.name)
		for _, f := range c.flags {
			require.NotEmpty(t, f.about, "%s -%s", c.name, f.name)
			require.NotContains(t, f.about, "(", "%s -%s", c.name, f.name)
			if f.name == "redis" {
				require.Contains(t, f.about, "redis://")
			}
		}
		if known := find(c.name); known != nil && c.name != "version" {
			require.Len(t, c.flags, strings.Count(known.usage, "\n  -"), c.name)
		}
	}
	for _, c := range commands() {
		require.Contains(t, names, c.name)
	}
	for _, args := range [][]string{nil, {"tcsh"}, {"bash", "zsh"}, {"-x"}} {
		r := call(t, "", append([]string{"completion"}, args...)...)
		require.Equal(t, exitUsage, r.code)
		require.Empty(t, r.out)
		require.Contains(t, r.err, "see: rlock help completion")
	}
}
