package docs_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/doctest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// watched is a program's output, which closes said when it has a line.
type watched struct {
	mu   sync.Mutex // guards the following
	text bytes.Buffer
	once sync.Once
	said chan struct{}
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.text.Write(p)
	if bytes.ContainsRune(w.text.Bytes(), '\n') {
		w.once.Do(func() { close(w.said) })
	}
	return n, err
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// Each program of docs/recipes.md does its work on a Redis, and ends: by itself, or after SIGTERM.
func TestRecipesRun(t *testing.T) {
	t.Parallel()
	blocks, err := doctest.Blocks(root)
	require.NoError(t, err)
	redis := redistest.Start(t)
	prints := regexp.MustCompile(`log\.Print\("(\w+)`)
	programs := 0
	for _, b := range blocks {
		if b.Page != "docs/recipes.md" || !strings.HasPrefix(b.Text, "package main\n") {
			continue
		}
		programs++
		t.Run(fmt.Sprint("line ", b.Line), func(t *testing.T) {
			t.Parallel()
			require.Contains(t, b.Text, `"redis://127.0.0.1:6379"`)
			file := filepath.Join(t.TempDir(), "main.go")
			text := strings.ReplaceAll(b.Text, "127.0.0.1:6379", redis.Addr())
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			binary := filepath.Join(t.TempDir(), "program")
			built, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-w", "-o", binary, file).CombinedOutput()
			require.NoError(t, err, "%s", built)
			out := &watched{said: make(chan struct{})}
			cmd := exec.CommandContext(t.Context(), binary)
			cmd.Stdout, cmd.Stderr = out, out
			cmd.WaitDelay = time.Minute
			require.NoError(t, cmd.Start())
			select {
			case <-out.said:
			case <-time.After(time.Minute):
			}
			if strings.Contains(b.Text, "syscall.SIGTERM") {
				require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			}
			require.NoError(t, cmd.Wait(), out.String())
			require.Contains(t, out.String(), prints.FindStringSubmatch(b.Text)[1])
		})
	}
	require.Equal(t, 6, programs)
}
