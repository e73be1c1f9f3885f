package lua_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// aNumber is a number passed to Redis by a script.
var aNumber = regexp.MustCompile(`redis\.p?call\([^()]*, -?\d+[,)]`)

// TestHeadersNameWhatBodiesUse compares each script with its header comment.
func TestHeadersNameWhatBodiesUse(t *testing.T) {
	t.Parallel()
	for _, file := range scriptFiles(t) {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			header, body := split(string(source))
			require.NotEmpty(t, header)

			entries := regexp.MustCompile(`(?m)^-- ((?:KEYS|ARGV)\[[^]]+\])  +\S`)
			uses := regexp.MustCompile(`(?:KEYS|ARGV)\[[^]]+\]`)
			require.Equal(t, used(uses.FindAllString(body, -1)), documented(entries, header), "KEYS and ARGV")

			reads := slices.ContainsFunc([]string{"owner_of(", "count_of(", "free_of("}, func(f string) bool { return strings.Contains(body, f) })
			require.Equal(t, reads, strings.Contains(header, "\n-- Error FOREIGN  "), "errors")
			for _, reply := range errorReply.FindAllStringSubmatch(body, -1) {
				require.Contains(t, header, "\n-- Error "+reply[1]+" ")
			}
			body = errorReply.ReplaceAllString(body, "")

			require.False(t, aNumber.MatchString(lua.Text(strings.TrimSuffix(file, ".lua"))),
				"Redis formats a number with printf, so it has to be a string")

			replies := regexp.MustCompile(`(?m)^-- Reply (\{[^}]*\}|-?\d+|token|result|free|slot)  +\S`)
			require.Equal(t, shape(answers(body)), shapes(replies, header), "replies")

			for _, use := range uses.FindAllString(header, -1) { // also where the prose mentions one
				require.Contains(t, documented(entries, header), use)
			}
		})
	}
}

// scriptFiles returns the files of the scripts.
func scriptFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.lua")
	require.NoError(t, err)
	files = slices.DeleteFunc(files, func(file string) bool { return slices.Contains(preludes, strings.TrimSuffix(file, ".lua")) })
	require.Len(t, files, 30)
	return files
}

// preludes are shared functions, with no keys or arguments of their own.
var preludes = []string{"announce", "clock", "counter", "fair", "first", "grant", "hold_key", "latch", "line", "lives", "message", "only", "owner_of", "queue_entry", "raise", "readers", "record", "seen", "serve"}

var errorReply = regexp.MustCompile(`return redis\.error_reply\('([A-Z]+) [^\n]*`)

var aFunction = regexp.MustCompile(`local function (\w+)\(`)

// A script includes a prelude only if it calls it. A missing prelude is a global variable to Redis, which is an error.
func TestPreludesAreCalled(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, file := range scriptFiles(t) {
		text := lua.Text(strings.TrimSuffix(file, ".lua"))
		for _, prelude := range preludes {
			rest := strings.Replace(text, lua.Text(prelude), "", 1)
			if rest == text {
				continue
			}
			seen[prelude] = true
			called := func(function []string) bool { return strings.Contains(rest, function[1]+"(") }
			require.True(t, slices.ContainsFunc(aFunction.FindAllStringSubmatch(lua.Text(prelude), -1), called), "%s in %s", prelude, file)
		}
	}
	require.Len(t, seen, len(preludes))
}

func TestHeaderCheckFindsDifferences(t *testing.T) {
	t.Parallel()
	body := "local x = redis.call('get', KEYS[1])\nif x then return {1, x} end\nreturn {0, redis.call('pttl', KEYS[2])}\n"
	require.Equal(t, []string{"{0, *}", "{1, *}"}, shape(answers(body)))
	body = "local function f(a)\n  return 7\nend\nlocal function g()\n  return 8\nend\nif g() then return f(1) end\nreturn 9\n"
	require.Equal(t, []string{"7", "9"}, shape(answers(body)))
	require.Equal(t, []string{"KEYS[n]", "ARGV[2n+3]", "ARGV[n+1]"}, used([]string{"KEYS[i]", "ARGV[i + 1]", "ARGV[2 * i + 3]"}))
	header, rest := split("-- a\n--\n-- b\n\nlocal x\n-- c\n")
	require.Equal(t, "-- a\n--\n-- b\n", header)
	require.Equal(t, "local x\n", rest)
}

// split cuts a script into the comment at its top and its code, without further comments. The lines of its fenced variant are code.
func split(source string) (header, body string) {
	inHeader := true
	for line := range strings.Lines(source) {
		comment := strings.HasPrefix(strings.TrimSpace(line), "--")
		if code, fenced := strings.CutPrefix(line, "-- fenced "); fenced {
			line, comment = code, false
		}
		inHeader = inHeader && comment
		switch {
		case inHeader:
			header += line
		case !comment && strings.TrimSpace(line) != "":
			body += line
		}
	}
	return header, body
}

// forLoops are the indices of loops, i, as the headers write them.
var forLoops = strings.NewReplacer("i]", "n]", "i ", "n", " + ", "+", "+ ", "+", "- ", "-", " * ", "")

// used converts a body's keys and arguments to the form of the headers, which use n for the index i of a loop over all keys.
func used(found []string) []string {
	var all []string
	for _, use := range found {
		use = forLoops.Replace(use)
		if !slices.Contains(all, use) {
			all = append(all, use)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(order(a), order(b)) })
	return all
}

// order puts KEYS before ARGV.
func order(use string) string {
	if strings.HasPrefix(use, "KEYS") {
		return "0" + use
	}
	return "1" + use
}

func documented(entries *regexp.Regexp, header string) []string {
	var all []string
	for _, m := range entries.FindAllStringSubmatch(header, -1) {
		all = append(all, m[1])
	}
	return used(all)
}

var (
	anyReturn   = regexp.MustCompile(`return ([^\n]+)`)
	anyFunction = regexp.MustCompile(`(?s)local function (\w+)\(.*?\nend\n`)
	anyCall     = regexp.MustCompile(`^(\w+)\(.*\)$`)
)

// answers lists a body's return values, including those of its functions.
func answers(body string) []string {
	functions := make(map[string]string)
	for _, m := range anyFunction.FindAllStringSubmatch(body, -1) {
		functions[m[1]] = m[0]
	}
	return returned(functions, anyFunction.ReplaceAllString(body, ""))
}

func returned(functions map[string]string, body string) []string {
	var all []string
	for _, m := range anyReturn.FindAllStringSubmatch(body, -1) {
		what := strings.TrimSuffix(strings.TrimSpace(m[1]), " end")
		switch what {
		case "verdicts":
			what = "{verdict, ...}"
		case "replies":
			what = "{reply, ...}"
		}
		what = strings.TrimPrefix(strings.TrimPrefix(what, "foreign or "), "refused.err and refused or ")
		if strings.HasPrefix(what, "answer(") { // see record.lua
			all = append(all, "result")
		} else if m := anyCall.FindStringSubmatch(what); m != nil {
			all = append(all, returned(functions, functions[m[1]])...)
		} else if what != "failed" && what != "foreign" { // an error is passed on, and is no reply of the script
			all = append(all, what)
		}
	}
	return all
}

func shapes(replies *regexp.Regexp, header string) []string {
	var all []string
	for _, m := range replies.FindAllStringSubmatch(header, -1) {
		all = append(all, m[1])
	}
	return shape(all)
}

// The first element of a pair is the outcome, a number in the code; the second is a value.
var aPair = regexp.MustCompile(`^\{(-?\d+), (.+)\}$`)

func shape(replies []string) []string {
	var all []string
	for _, r := range replies {
		if m := aPair.FindStringSubmatch(r); m != nil {
			r = "{" + m[1] + ", *}"
		}
		if !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	slices.Sort(all)
	return all
}
