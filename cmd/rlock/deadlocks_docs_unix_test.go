//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/doctest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// inACircle is the page's situation: three processes whose sections wait for each other in a circle, and in the last process a fourth
// section that waits for Redisson. It returns when all wait. pause is the time between two of their steps.
func inACircle(t *testing.T, s *redistest.Server, pause time.Duration) (processes []*running) {
	t.Helper()
	c := s.Client(t)
	const java = "285475da-9152-4c83-822a-67ee2f116a79:12"
	require.NoError(t, c.Do(t.Context(), c.B().Hset().Key("catalogue").FieldValue().FieldValue(java, "1").Build()).Error())
	require.NoError(t, c.Do(t.Context(), c.B().Pexpire().Key("catalogue").Milliseconds(30_000).Build()).Error())
	self, err := os.Executable()
	require.NoError(t, err)
	type section = struct{ Has, Wants string }
	for _, of := range [][]section{
		{{"stock:7", "invoices"}}, {{"invoices", "order:42"}, {"report", "catalogue"}}, {{"order:42", "stock:7"}},
	} {
		text, err := json.Marshal(sections{s.Addr(), of})
		require.NoError(t, err)
		p := startCommand(t, []string{sectionsVariable + "=" + string(text)}, self)
		p.saw("ready")
		<-time.After(pause)
		processes = append(processes, p)
	}
	for _, p := range []*running{processes[0], processes[1], processes[1], processes[2]} {
		_, err := fmt.Fprintln(p.in)
		require.NoError(t, err)
		p.saw("waits")
		<-time.After(pause)
	}
	return processes
}

// varying matches the parts of the output that differ between runs, with their placeholders.
var varying = []struct {
	form *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "<id>"},
	{regexp.MustCompile(`\S+ \(pid \d+,`), "<host> (pid <pid>,"},
	{regexp.MustCompile(`\d+\.\ds\b`), "<time>"},
}

func timeless(text string) string {
	for _, v := range varying {
		text = v.form.ReplaceAllString(text, v.as)
	}
	return text
}

const deadlocksPrompt = "$ rlock deadlocks\n"

// docsHost replaces the host name in the page.
const docsHost = "web-1"

// docs/cli.md shows the output of "rlock deadlocks" for three processes in a deadlock, as text and picture. "make picture" makes this test
// write both.
func TestDeadlocksOfTheDocs(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	path := os.Getenv("RLOCK_TRANSCRIPT")
	pause := time.Duration(0)
	if path != "" { // with times that differ
		pause = 1300 * time.Millisecond
	}
	processes := inACircle(t, s, pause)
	var r result
	redistest.Eventually(t, patience, func() bool {
		r = call(t, s.Addr(), "deadlocks")
		return strings.Count(r.out, ", waits for \"") == 4 && strings.HasPrefix(r.out, "deadlock 1\n")
	}, "all are seen")
	require.Equal(t, exitFailed, r.code)
	require.Empty(t, r.err)
	for _, p := range processes {
		require.Contains(t, r.out, fmt.Sprintf("(pid %d,", p.cmd.Process.Pid))
	}
	if path != "" {
		host, err := os.Hostname()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, []byte(deadlocksPrompt+strings.ReplaceAll(r.out, host+" (pid", docsHost+" (pid")), 0o600))
		return
	}
	blocks, err := doctest.Blocks(projectRoot)
	require.NoError(t, err)
	shown := ""
	for _, b := range blocks {
		if text, ok := strings.CutPrefix(b.Text, deadlocksPrompt); ok {
			shown = text
		}
	}
	require.Equal(t, timeless(strings.TrimSpace(r.out)), timeless(strings.TrimSpace(shown)))

	picture, err := os.ReadFile(filepath.Join(projectRoot, "docs", "deadlocks.svg"))
	require.NoError(t, err)
	drawn := html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(string(picture), ""))
	words := func(text string) string { return timeless(strings.Join(strings.Fields(text), " ")) }
	require.Equal(t, words(deadlocksPrompt+r.out), words(drawn))

	found := 0
	for line := range strings.Lines(call(t, s.Addr(), "deadlocks", "-json").out) {
		var w standstill
		require.NoError(t, json.Unmarshal([]byte(line), &w))
		require.Len(t, w.Holds, 1)
		found += w.Deadlock
	}
	require.Equal(t, 3, found)

	// "rlock top" marks the locks of the circle, and no others.
	marks := make(map[string]string)
	for line := range strings.Lines(call(t, s.Addr(), "top").out) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		marks[cells[0]] = cells[len(cells)-1]
	}
	require.Equal(t, map[string]string{"order:42": "1", "stock:7": "1", "invoices": "1", "catalogue": "-"}, marks)
	numbers := make(map[string]int)
	for line := range strings.Lines(call(t, s.Addr(), "top", "-json").out) {
		var w wanted
		require.NoError(t, json.Unmarshal([]byte(line), &w))
		numbers[w.Name] = w.Deadlock
	}
	require.Equal(t, map[string]int{"order:42": 1, "stock:7": 1, "invoices": 1, "catalogue": 0}, numbers)

	// When one of the processes is killed, its reports are gone at once, and so is the deadlock.
	require.NoError(t, processes[1].cmd.Process.Kill())
	processes[1].rest()
	redistest.Eventually(t, patience, func() bool { r = call(t, s.Addr(), "deadlocks"); return r.code == 0 }, "the deadlock is gone")
	require.NotContains(t, r.out, "deadlock")
	require.Regexp(t, `holds "stock:7" for \S+, waits for "invoices" for \S+\n    behind \S+, which says nothing\n`, r.out)
}
