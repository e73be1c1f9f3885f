package conformance

import (
	"slices"
	"testing"

	"github.com/go-rlock/rlock/internal/require"
)

// Every property that a kind lacks exists.
func TestExceptions(t *testing.T) {
	for _, k := range kinds() {
		for name := range k.without {
			require.True(t, slices.ContainsFunc(properties, func(p property) bool { return p.name == name }), name)
		}
	}
}
