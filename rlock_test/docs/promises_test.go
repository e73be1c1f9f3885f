package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	linked = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	marker = regexp.MustCompile(`(?m)^\s*[-*] `)
)

// plain returns a page's words, without links, bold type, list markers and line breaks.
func plain(page string) string {
	page = marker.ReplaceAllString(strings.ReplaceAll(page, "**", ""), "")
	return strings.Join(strings.Fields(linked.ReplaceAllString(page, "$1")), " ")
}

// lostPromises checks a list in the form of testdata/promises.txt. read returns a page. It returns the sentences that stand on their page,
// and the lines that are wrong.
func lostPromises(list string, read func(page string) (string, error)) (kept int, lost []string) {
	texts := make(map[string]string)
	was, says := "", true // the last "-", and whether a "+" followed it
	next := func() {
		if !says {
			lost = append(lost, "nothing says "+was)
		}
		was, says = "", true
	}
	for line := range strings.Lines(list) {
		sign, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch sign {
		case "", "#":
		case "-":
			next()
			was, says = rest, false
		case "=", "+":
			if sign == "=" {
				next()
			}
			says = true
			page, text, _ := strings.Cut(rest, ": ")
			if _, ok := texts[page]; !ok {
				read, err := read(page)
				if err != nil {
					lost = append(lost, err.Error())
				}
				texts[page] = plain(read)
			}
			if text = plain(text); text == "" || !strings.Contains(texts[page], text) {
				lost = append(lost, fmt.Sprintf("%s does not say: %s", page, text))
				continue
			}
			kept++
		default:
			lost = append(lost, "not a line of the list: "+line)
		}
	}
	next()
	return kept, lost
}

// The pages still say what they promised before their sentences were moved and merged.
func TestNothingPromisedIsLost(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("testdata/promises.txt")
	require.NoError(t, err)
	kept, lost := lostPromises(string(list), func(page string) (string, error) {
		text, err := os.ReadFile(filepath.Join(root, page))
		return string(text), err
	})
	require.Empty(t, lost, "if a sentence was reworded, change its line in testdata/promises.txt")
	require.Greater(t, kept, 500)
}

func TestLostPromisesAreFound(t *testing.T) {
	t.Parallel()
	pages := map[string]string{"p.md": "- **One**, [two](p.md#x)\n  three.\n- Four.\n", "q.md": "| a | b |"}
	for list, want := range map[string][]string{
		"= p.md: One, two three.\n= q.md: | a | b |\n":   nil,
		"# why\n\n- 1, 2, 3\n+ p.md: Four.\n+ q.md: a\n": nil,
		"= p.md: Five.":                 {"p.md does not say: Five."},
		"- 1\n+ p.md: One\n+ q.md: One": {"q.md does not say: One"},
		"- 1\n- 2\n+ p.md: Four.":       {"nothing says 1"},
		"- 1\n= p.md: Four.":            {"nothing says 1"},
		"- 1":                           {"nothing says 1"},
		"= p.md":                        {"p.md does not say: "},
		"= none.md: x":                  {"file does not exist", "none.md does not say: x"},
		"what is this":                  {"not a line of the list: what is this"},
	} {
		_, lost := lostPromises(list, func(page string) (string, error) {
			text, ok := pages[page]
			if !ok {
				return "", os.ErrNotExist
			}
			return text, nil
		})
		require.Equal(t, want, lost, list)
	}
}
