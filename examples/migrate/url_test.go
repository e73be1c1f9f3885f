package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/examples/internal/program"
)

// The error for a malformed REDIS_URL does not show its password.
func TestMigrateNoURL(t *testing.T) {
	jar := filepath.Join(t.TempDir(), "empty.jar")
	require.NoError(t, os.WriteFile(jar, nil, 0o600))
	for _, noURL := range program.NoURLs {
		t.Setenv("REDIS_URL", "redis://"+noURL)
		require.EqualError(t, run(t.Context(), jar), "REDIS_URL is not a Redis URL such as redis://127.0.0.1:6379")
	}
}
