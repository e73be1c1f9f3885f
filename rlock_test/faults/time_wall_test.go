package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// wallPatch shifts the wall clock of time.Now by BASE seconds, and by JUMP more in every other period of EVERY
// nanoseconds. The monotonic reading stays, as when an operator sets a machine's clock. (libfaketime does not
// affect Go, which does not read the clock through the C library.)
const wallPatch = `package time

import "syscall"

var wallBase, wallJump, wallEvery = wallEnv("WALL_BASE"), wallEnv("WALL_JUMP"), wallEnv("WALL_EVERY")

func wallEnv(name string) int64 {
	text, _ := syscall.Getenv(name)
	n, _ := atoi(text)
	return int64(n)
}

func wallNow() (sec int64, nsec int32, mono int64) {
	sec, nsec, mono = runtimeNow()
	sec += wallBase
	if wallEvery > 0 && mono/wallEvery%2 == 1 {
		sec += wallJump
	}
	return sec, nsec, mono
}
`

// buildWallclock builds the program with the patched time package.
func buildWallclock(t *testing.T) (bin string) {
	t.Helper()
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	dir := t.TempDir()
	root := filepath.Join(dir, "go") // go replaces no file of a Go that it has fetched into its module cache
	require.NoError(t, os.Symlink(strings.TrimSpace(string(goroot)), root))
	stdlib := filepath.Join(root, "src", "time")
	text, err := os.ReadFile(filepath.Join(stdlib, "time.go"))
	require.NoError(t, err)
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()"
	require.Contains(t, string(text), now, "package time has changed: adapt the patch")
	text = bytes.Replace(text, []byte(now), []byte(strings.Replace(now, "runtimeNow", "wallNow", 1)), 1)
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return path
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(stdlib, "time.go"): write("time.go", text),
		filepath.Join(stdlib, "wall.go"): write("wall.go", []byte(wallPatch)),
	}})
	require.NoError(t, err)
	bin = filepath.Join(dir, "wallclock")
	build := exec.Command(filepath.Join(root, "bin", "go"), "build", "-overlay", write("overlay.json", overlay), "-o", bin, "./wallclock")
	build.Env = append(os.Environ(), "GOROOT="+root, "GOTOOLCHAIN=local")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return bin
}

// Fault 6, G1 and G2: clients' wall clocks are hours apart, and jump back and forth by hours within each lease.
// The clients still exclude each other, and every hold is renewed.
func TestClientsWithWrongWallClocks(t *testing.T) {
	t.Parallel()
	bin := buildWallclock(t)
	name := redistest.Name(t)
	counter := filepath.Join(t.TempDir(), "counter")
	require.NoError(t, os.WriteFile(counter, []byte("0"), 0o600))
	addr := redistest.Shared(t)
	var wg sync.WaitGroup
	clocks := []struct{ base, jump, every time.Duration }{
		{},
		{base: -7 * time.Hour},
		{base: 7 * time.Hour},
		{base: 48 * time.Hour, jump: 5 * time.Hour, every: 200 * time.Millisecond},
		{jump: -5 * time.Hour, every: 200 * time.Millisecond},
	}
	for _, clock := range clocks {
		wg.Go(func() {
			cmd := exec.Command(bin, addr, name, counter)
			cmd.Env = append(os.Environ(),
				fmt.Sprint("WALL_BASE=", int64(clock.base.Seconds())),
				fmt.Sprint("WALL_JUMP=", int64(clock.jump.Seconds())),
				fmt.Sprint("WALL_EVERY=", clock.every.Nanoseconds()))
			began := time.Now()
			out, err := cmd.CombinedOutput()
			var wall int64
			var jumps int
			_, scanErr := fmt.Sscan(string(out), &wall, &jumps)
			if !assert.NoError(t, err, string(out)) || !assert.NoError(t, scanErr, string(out)) {
				return
			}
			// The clock really was wrong.
			off := time.Unix(wall, 0).Sub(began)
			lowest, highest := min(clock.base, clock.base+clock.jump), max(clock.base, clock.base+clock.jump)
			assert.Greater(t, off, lowest-time.Minute)
			assert.Less(t, off, highest+time.Minute)
			if clock.jump == 0 {
				assert.Zero(t, jumps)
			} else {
				assert.Greater(t, jumps, 3)
			}
		})
	}
	wg.Wait()
	text, err := os.ReadFile(counter)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(len(clocks)), string(text), "no update is lost")
}
