package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// The check can fail.
func TestSections(t *testing.T) {
	for _, c := range []struct {
		name    string
		journal string // order, owner, event, parcel
		err     string // "" for a valid journal
	}{
		{"nothing", "", ""},
		{"one after the other", "1 a in 0, 1 a out 1, 1 b in 0, 1 b out 2", ""},
		{"two orders", "1 a in 0, 2 b in 0, 1 a out 1, 2 b out 1", ""},
		{"together", "1 a in 0, 1 b in 0, 1 a out 1, 1 b out 2", "1: b came in while a was inside"},
		{"out before in", "1 a out 1", "1: a left, and was not inside"},
		{"out of another's section", "1 a in 0, 1 b out 1", "1: b left, and was not inside"},
		{"counted twice", "1 a in 0, 1 a out 1, 1 b in 0, 1 b out 1", "1: b counted parcel 1, want 2"},
		{"still in", "1 a in 0", "1: a did not leave"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var journal []rueidis.XRangeEntry
			for i, line := range strings.Split(c.journal, ", ") {
				if f := strings.Fields(line); len(f) > 0 {
					values := map[string]string{"order": f[0], "owner": f[1], "event": f[2], "parcel": f[3]}
					journal = append(journal, rueidis.XRangeEntry{ID: fmt.Sprintf("%d-0", i), FieldValues: values})
				}
			}
			all, err := sections(journal)
			if c.err != "" {
				require.EqualError(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Len(t, all, len(journal)/2)
		})
	}
}

// The Java side is built with the newest Redisson of the interop tests.
func TestRedissonVersion(t *testing.T) {
	version := regexp.MustCompile(`<redisson.version>.*</redisson.version>`)
	ours, err := os.ReadFile("java/pom.xml")
	require.NoError(t, err)
	theirs, err := os.ReadFile("../../rlock_test/redisson/pom.xml")
	require.NoError(t, err)
	require.NotEmpty(t, version.Find(ours))
	require.Equal(t, string(version.Find(theirs)), string(version.Find(ours)))
}
