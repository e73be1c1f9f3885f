//go:build unix

package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/doctest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The whole program in docs/operating.md serves, refuses what somebody else has, and leaves nothing behind when it is told to end.
func TestWholeProgramOfTheDocs(t *testing.T) {
	t.Parallel()
	blocks, err := doctest.Blocks(projectRoot)
	require.NoError(t, err)
	var text string
	for _, b := range blocks {
		if b.Page == "docs/operating.md" && strings.HasPrefix(b.Text, "package main") {
			text = b.Text
		}
	}
	port := redistest.Start(t) // whose port nobody else takes
	port.Stop()
	const listens = `":8080"`
	require.Contains(t, text, listens)
	source := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(source, []byte(strings.Replace(text, listens, fmt.Sprintf("%q", port.Addr()), 1)), 0o600))
	program := filepath.Join(t.TempDir(), "shop")
	build := exec.CommandContext(t.Context(), "go", append(append([]string{"build", "-o", program}, raceFlags()...), source)...)
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	s := redistest.Start(t)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), "REDIS_ADDR="+s.Addr())
	var log output
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	ship := func(id string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+port.Addr()+"/orders/"+id+"/ship", http.NoBody)
		require.NoError(t, err)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0
		}
		require.NoError(t, answer.Body.Close())
		return answer.StatusCode
	}
	redistest.Eventually(t, patience, func() bool { return ship("1") == http.StatusNoContent }, "it serves")
	locks, err := rlock.New(s.Client(t), rlock.Options{Prefix: "shop:"})
	require.NoError(t, err)
	t.Cleanup(locks.Close)
	_, unlock, err := locks.Mutex("order:2").Lock(t.Context())
	require.NoError(t, err)
	require.Equal(t, http.StatusConflict, ship("2"))
	require.NoError(t, unlock())
	require.Equal(t, http.StatusNoContent, ship("2"))

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), log.String())
	requireEmpty(t, s)
}
