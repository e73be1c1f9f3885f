package lua_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHeadersNameWhatBodiesUse compares each script with the comment at its top.
func TestHeadersNameWhatBodiesUse(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.lua")
	require.NoError(t, err)
	files = slices.DeleteFunc(files, func(file string) bool { return file == prelude })
	require.Len(t, files, 17)
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			header, body := split(ownerOf.ReplaceAllString(string(source), ""))
			require.NotEmpty(t, header)

			entries := regexp.MustCompile(`(?m)^-- ((?:KEYS|ARGV)\[[^]]+\])  +\S`)
			uses := regexp.MustCompile(`(?:KEYS|ARGV)\[[^]]+\]`)
			require.Equal(t, used(uses.FindAllString(body, -1)), documented(entries, header), "KEYS and ARGV")

			require.Equal(t, strings.Contains(body, "owner_of("), strings.Contains(header, "\n-- Error FOREIGN  "), "errors")
			for _, reply := range errorReply.FindAllStringSubmatch(body, -1) {
				require.Contains(t, header, "\n-- Error "+reply[1]+" ")
			}
			body = errorReply.ReplaceAllString(body, "")

			replies := regexp.MustCompile(`(?m)^-- Reply (\{[^}]*\}|-?\d+|token)  +\S`)
			require.Equal(t, shape(answers(body)), shapes(replies, header), "replies")

			for _, use := range uses.FindAllString(header, -1) { // also where the prose speaks of one
				require.Contains(t, documented(entries, header), use)
			}
		})
	}
}

// prelude stands before the scripts about fair locks, and has no keys or arguments of its own.
const prelude = "fair.lua"

var errorReply = regexp.MustCompile(`return redis\.error_reply\('([A-Z]+) [^\n]*`)

var (
	ownerOf = regexp.MustCompile(`(?s)\n-- owner_of .*?\nend\n`)
	readers = regexp.MustCompile(`(?s)\n-- readers .*?\nend\n`)
)

// A script cannot call another one, so those that ask for the owner of a key, or for the readers, have a copy each.
func TestCopies(t *testing.T) {
	t.Parallel()
	for _, copied := range []struct {
		what  *regexp.Regexp
		files []string
	}{
		{ownerOf, []string{"acquire.lua", "force.lua", "read_acquire.lua", "write_acquire.lua", "rw_force.lua", prelude}},
		{readers, []string{"write_acquire.lua", "write_release.lua"}},
	} {
		var first string
		for _, file := range copied.files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			text := string(copied.what.Find(source))
			require.NotEmpty(t, text, file)
			if first == "" {
				first = text
			}
			require.Equal(t, first, text, file)
		}
	}
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

// split cuts a script into the comment at its top and its code, without further comments.
func split(source string) (header, body string) {
	inHeader := true
	for line := range strings.Lines(source) {
		comment := strings.HasPrefix(strings.TrimSpace(line), "--")
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

// used brings what a body uses into the form of the headers: a loop over all keys, with i, is
// written with n there.
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

// answers lists what a body returns, also what it returns of a function.
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
		if m := anyCall.FindStringSubmatch(what); m != nil {
			all = append(all, returned(functions, functions[m[1]])...)
		} else if what != "failed" && what != "foreign" { // an error is handed on, it is no reply of the script
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

// The first element of a pair says what happened and stands in the code as a number, the second is a value.
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
