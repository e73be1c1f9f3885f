package lua_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/go-rlock/rlock/internal/require"
)

// A program restricted to FIPS 140 algorithms can import the package, although Redis names scripts by SHA-1, which FIPS 140 does not allow.
func TestImportUnderFIPS140(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=fips140=only")
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
}
