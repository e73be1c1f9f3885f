package main

import (
	"os"
	"regexp"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		code int
		out  string
		err  string
	}{
		{nil, 2, "", usage},
		{[]string{"help"}, 0, usage, ""},
		{[]string{"-h"}, 0, usage, ""},
		{[]string{"help", "demo"}, 0, usageDemo, ""},
		{[]string{"help", "run"}, 0, usageRun, ""},
		{[]string{"help", "version"}, 0, usage, ""},
		{[]string{"demo", "-h"}, 0, usageDemo, ""},
		{[]string{"run", "--help"}, 0, usageRun, ""},
		{[]string{"help", "me"}, 2, "", "rlock: unknown command \"me\" (see: rlock help)\n"},
		{[]string{"lock"}, 2, "", "rlock: unknown command \"lock\" (see: rlock help)\n"},
		{[]string{"version", "--help"}, 0, usage, ""},
		{[]string{"version", "2"}, 2, "", "rlock: version takes no arguments (see: rlock help)\n"},
	} {
		require.Equal(t, result{c.code, c.out, c.err}, call(t, "", c.args...), c.args)
	}
	require.Equal(t, result{code: 2, err: "rlock: flag provided but not defined: -x (see: rlock help ls)\n"}, call(t, "", "ls", "-x"))
	require.Regexp(t, `^rlock \S+, go\S+ \w+/\w+`, call(t, "", "version").out)
	info := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}}
	require.Regexp(t, `^rlock \(devel\), .*, revision abc, modified$`, versionLine(info))
}

// Each command has help that fits into a terminal, is in the list, and describes flags that the command has.
func TestUsages(t *testing.T) {
	t.Parallel()
	requirePlain(t, usage)
	text, err := os.ReadFile("../../docs/cli.md")
	require.NoError(t, err)
	described := regexp.MustCompile(`(?m)^  -([\w-]+)`)
	for _, c := range commands() {
		requirePlain(t, c.usage)
		require.Regexp(t, `(?m)^  rlock `+c.name+` `, usage)
		require.Regexp(t, `(?m)^## .*rlock `+c.name+`\b`, string(text))
		require.Equal(t, result{out: c.usage}, call(t, "", "help", c.name))
		for _, flag := range described.FindAllStringSubmatch(c.usage, -1) {
			r := call(t, "127.0.0.1:1", c.name, "-"+flag[1], "-h") // -h ends the flags, and shows the help, unless it is taken for a value
			require.NotContains(t, r.err, "not defined", "%s %s", c.name, flag[1])
		}
	}
}

// What no Client takes as an option is wrong usage, whether Redis answers or not.
func TestBadClientOptions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		says string
		args []string
	}{
		{"Options.Prefix", []string{"run", "-prefix", "}", "job", "--", "true"}},
		{"Options.WatchdogTimeout", []string{"run", "-watchdog", "1ms", "job", "--", "true"}},
		{"Options.Label", []string{"run", "-label", "two\nlines", "job", "--", "true"}},
		{"Options.Prefix", []string{"ls", "-prefix", "}"}},
		{"Options.Prefix", []string{"show", "-prefix", "}", "job"}},
		{"Options.Prefix", []string{"top", "-prefix", "}"}},
		{"Options.Prefix", []string{"watch", "-prefix", "}", "job"}},
		{"Options.Prefix", []string{"record", "-prefix", "}"}},
		{"Options.Prefix", []string{"ask", "-prefix", "}", "job"}},
		{"Options.Prefix", []string{"deadlocks", "-prefix", "}"}},
		{"Options.Prefix", []string{"unlock", "-force", "-yes", "-prefix", "}", "job"}},
		{"Options.Prefix", []string{"token", "-prefix", "}", "job"}},
		{"Options.Prefix", []string{"doctor", "-prefix", "}"}},
	} {
		r := call(t, "127.0.0.1:1", c.args...)
		require.Equal(t, exitUsage, r.code, "%s: %s", c.args, r.err)
		require.Contains(t, r.err, c.says)
		require.Empty(t, r.out)
	}
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"job": "job", "a b": "a b", "ключ": "ключ", "": `""`, "a\nb": `"a\nb"`, "a\tb": `"a\tb"`, "\x1b[2J": `"\x1b[2J"`, "\xff": `"\xff"`,
	} {
		require.Equal(t, want, printable(name))
	}
}

// Flags may come before or after a name; a duration without a unit gets a hint.
func TestFlagsBehindTheName(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		require.Equal(t, "inside\n", call(t, "127.0.0.1:1", "run", "-addr", s.Addr(), "job", "-wait", "5s", "-v=false", "--", "echo", "inside").out)
		require.Equal(t, "-wait 5\n", call(t, s.Addr(), "run", "job", "--", "echo", "-wait", "5").out, "those of the command are its own")
		require.Equal(t, "inside\n", call(t, s.Addr(), "run", "--", "-job", "--", "echo", "inside").out)
		require.Equal(t, exitFree, call(t, "127.0.0.1:1", "show", "job", "-json", "-addr", s.Addr()).code)
		require.Equal(t, exitFree, call(t, "127.0.0.1:1", "unlock", "job", "-force", "-yes", "-addr", s.Addr()).code)
		require.Zero(t, call(t, "127.0.0.1:1", "ls", "job*", "-addr", s.Addr()).code)
		for says, args := range map[string][]string{
			`-wait 5: a duration needs a unit, as in 5s`:     {"run", "-wait", "5", "job", "--", "true"},
			`-kill-after 1.5: a duration needs a unit, as`:   {"run", "job", "-kill-after", "1.5", "--", "true"},
			`-every 1: a duration needs a unit, as in 1s`:    {"watch", "job", "-every", "1"},
			`invalid value "soon" for flag -wait`:            {"run", "-wait", "soon", "job", "--", "true"},
			`invalid value "1.5" for flag -limit`:            {"ls", "-limit", "1.5"},
			`its own flags before the dashes`:                {"run", "job", "true", "-v"},
			`show takes one argument, not also "another"`:    {"show", "job", "-json", "another"},
			`ls takes one argument, not also "b" (quote`:     {"ls", "a", "b"},
			`flag provided but not defined: -nope (see: rlo`: {"show", "job", "-nope"},
		} {
			r := call(t, s.Addr(), args...)
			require.Equal(t, exitUsage, r.code, args)
			require.Contains(t, r.err, says)
			require.Empty(t, r.out)
		}
	})
}
