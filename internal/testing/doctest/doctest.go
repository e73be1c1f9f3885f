// Package doctest finds the code blocks in the documentation, for the tests that compile and run them.
// CONTRIBUTING.md says how to write a block.
package doctest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Block is a fenced block of a page.
type Block struct {
	Page string // its path from the root
	Line int    // of the first line of Text
	Lang string
	Text string
}

// Languages are the allowed languages of a block, with one spelling each, so that no block escapes the tests by
// another.
var Languages = []string{"", "console", "go", "java", "json", "mermaid", "promql", "sh", "sql", "text", "yaml"}

// Pages returns README.md, those of the modules beside the library, and all pages in docs and its folders, in order. root is the folder of
// the project.
func Pages(root string) ([]string, error) {
	pages, err := filepath.Glob(filepath.Join(root, "rlock*", "README.md"))
	if err != nil {
		return nil, err
	}
	pages = append([]string{filepath.Join(root, "README.md")}, pages...)
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			pages = append(pages, path)
		}
		return err
	})
	return pages, err
}

// Blocks returns the blocks of these pages.
func Blocks(root string) ([]Block, error) {
	pages, err := Pages(root)
	if err != nil {
		return nil, err
	}
	var all []Block
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, page)
		if err != nil {
			return nil, err
		}
		blocks, err := Parse(filepath.ToSlash(name), string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, blocks...)
	}
	return all, nil
}

var fence = regexp.MustCompile("^\\s*```\\s*(.*?)\\s*$")

// Parse returns the blocks of one page.
func Parse(page, text string) (all []Block, err error) {
	var open *Block
	line := 0
	for s := range strings.Lines(text) {
		line++
		mark := fence.FindStringSubmatch(strings.TrimRight(s, "\r\n"))
		switch {
		case mark == nil && open != nil:
			open.Text += s
		case mark == nil:
		case open == nil && !slices.Contains(Languages, mark[1]):
			return nil, fmt.Errorf("%s:%d: a block in %q: use one of %q", page, line, mark[1], Languages[1:])
		case open == nil:
			open = &Block{Page: page, Line: line + 1, Lang: mark[1]}
		default:
			all, open = append(all, *open), nil
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s:%d: the block is not closed", page, open.Line)
	}
	return all, nil
}
