package conformance

import (
	"slices"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// The properties listed as missing from a kind all exist.
func TestExceptions(t *testing.T) {
	for _, k := range kinds() {
		for name := range k.without {
			require.True(t, slices.ContainsFunc(properties, func(p property) bool { return p.name == name }), name)
		}
	}
}
