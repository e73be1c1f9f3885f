package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/doctest"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`) // from a heading's anchor
	block   = regexp.MustCompile("(?s)\n```.*?\n```")
)

// brokenLinks returns a page's links to missing files or headings.
func brokenLinks(page string) (broken []string, err error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	for _, m := range link.FindAllStringSubmatch(block.ReplaceAllString(string(text), ""), -1) {
		if strings.Contains(m[1], ":") { // external
			continue
		}
		path, anchor, _ := strings.Cut(m[1], "#")
		target := page
		if path != "" {
			target = filepath.Join(filepath.Dir(page), path)
		}
		if _, err := os.Stat(target); err != nil || anchor != "" && !hasAnchor(target, anchor) {
			broken = append(broken, fmt.Sprintf("%s: %s", page, m[1]))
		}
	}
	return broken, nil
}

func hasAnchor(page, anchor string) bool {
	text, err := os.ReadFile(page)
	if err != nil {
		return false
	}
	for _, m := range heading.FindAllStringSubmatch(block.ReplaceAllString(string(text), ""), -1) {
		if strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}

// Links between pages, and from pages to files, have targets.
func TestLinks(t *testing.T) {
	t.Parallel()
	pages, err := doctest.Pages(root)
	require.NoError(t, err)
	for _, page := range append(pages, filepath.Join(root, "CONTRIBUTING.md"), filepath.Join(root, "CHANGELOG.md"), filepath.Join(root, "SECURITY.md")) {
		broken, err := brokenLinks(page)
		require.NoError(t, err)
		require.Empty(t, broken)
	}
}

func TestBrokenLinksAreFound(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "p.md")
	require.NoError(t, os.WriteFile(page, []byte("# A heading: `x`, and y\n[1](p.md) [2](#a-heading-x-and-y) [3](https://example.org/none) "+
		"[4](p.md#none) [5](none.md)\n```\n[6](none)\n# None\n```\n[7](#none)\n"), 0o600))
	broken, err := brokenLinks(page)
	require.NoError(t, err)
	require.Equal(t, []string{page + ": p.md#none", page + ": none.md", page + ": #none"}, broken)
}

// docs/README.md links to every page for users, those of modules included, and CONTRIBUTING.md to every page in docs/internals.
func TestIndexNamesEveryPage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ pages, index string }{
		{"docs/*.md", "docs/README.md"},
		{"rlock*/README.md", "docs/README.md"},
		{"docs/internals/*.md", "CONTRIBUTING.md"},
	} {
		pages, err := filepath.Glob(filepath.Join(root, c.pages))
		require.NoError(t, err)
		require.NotEmpty(t, pages)
		index, err := os.ReadFile(filepath.Join(root, c.index))
		require.NoError(t, err)
		for _, page := range pages {
			name, err := filepath.Rel(filepath.Dir(filepath.Join(root, c.index)), page)
			require.NoError(t, err)
			if name != "README.md" {
				require.Contains(t, string(index), "]("+filepath.ToSlash(name)+")", c.index)
			}
		}
	}
}
