//go:build interop

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/examples/internal/program"
	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// jar is the Java program, which make interop builds.
const jar = "java/target/migrate.jar"

var line = regexp.MustCompile(`^ *(\d+) to +(\d+)  (\S+) +(go|java) +([0-9a-f-]{36}):\d+ +parcel (\d+), 2 levels$`)

// Both sides ship their parcels, never two of one order together, and a hold longer than the watchdog time is kept.
func TestMigrate(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "migrate")
	said, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", said)
	cmd := exec.CommandContext(t.Context(), binary, "-jar", jar)
	cmd.Env = append(os.Environ(), "REDIS_URL=redis://"+redistest.Start(t).Addr())
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // on which it ends the Java side
	cmd.WaitDelay = 10 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	t.Logf("\n%s", out)
	require.NoError(t, err, "%s", &stderr)
	require.Empty(t, stderr.String())

	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, lines, 24)
	require.Equal(t, success, lines[23])
	var (
		clients = make(map[string]string)        // by side
		counts  = make(map[string]int)           // of sections, by order and side
		until   = make(map[string]time.Duration) // the end of the last section, by order
	)
	for _, l := range lines[1:23] {
		f := line.FindStringSubmatch(l)
		require.NotNil(t, f, l)
		order, side, client := f[3], f[4], f[5]
		from, to := milliseconds(t, f[1]), milliseconds(t, f[2])
		require.GreaterOrEqual(t, from, until[order], l)
		if order == "order:big" {
			require.Greater(t, to-from, watchdog, l)
		}
		until[order] = to
		counts[order+" "+side]++
		if clients[side] == "" {
			clients[side] = client
		}
		require.Equal(t, clients[side], client, l)
	}
	require.NotEqual(t, clients["go"], clients["java"])
	require.Equal(t, map[string]int{
		"order:1 go": 5, "order:2 go": 5, "order:big go": 1,
		"order:1 java": 5, "order:2 java": 5, "order:big java": 1,
	}, counts)
}

// Under faults it claims no success that it has not seen, leaves no Java behind, and no lock in the way of the next run.
func TestMigrateUnderFaults(t *testing.T) {
	t.Parallel()
	program.Faults(t, func(t *testing.T, f *program.Fault) {
		redis := f.Server.Client(t)
		first := f.Start("-jar", jar)
		begun := func() bool {
			is, err := redis.Do(t.Context(), redis.B().Exists().Key(journalKey).Build()).AsBool()
			return err == nil && is
		}
		redistest.Eventually(t, time.Minute, begun, "both sides are at work")
		f.Strike(first)
		code := first.Wait()
		said := strings.Join(f.Rest(), "\n") // whole: the Java side has ended, too
		switch {
		case f.Kills:
			require.Equal(t, -1, code)
		case f.Keeps && code == 0: // nobody needed Redis while it was away
			require.Contains(t, said, success)
		default:
			require.Equal(t, 1, code, said)
			require.NotContains(t, said, success)
			require.Regexp(t, `(?m)^migrate: `, said)
		}

		p := program.Build(t, f.Server.Addr())
		require.Zero(t, p.Start("-jar", jar).Wait())
		require.Contains(t, p.Rest(), success)
	})
}

// success is the last line of a run in which all went well.
const success = "22 sections, and no two of one lock together"

func milliseconds(t *testing.T, text string) time.Duration {
	t.Helper()
	ms, err := strconv.Atoi(text)
	require.NoError(t, err)
	return time.Duration(ms) * time.Millisecond
}

// Without a Java program, or without Redis, one line says what to do.
func TestMigrateMissing(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), "none.jar"), "none.jar: no such file or directory (build it: mvn -q -f migrate/java package)")
	t.Setenv("REDIS_URL", "redis://127.0.0.1:1")
	require.ErrorContains(t, run(t.Context(), jar), "(start one, or set REDIS_URL)")
}
